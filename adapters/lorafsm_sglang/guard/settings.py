"""How an engine's process learns that it is guarded: environment variables that the launcher sets.

Without `LORAFSM_GUARD_ENGINE` the plugin does nothing at all.  The token lies in a file of its own, so that it is
in no command line, no environment and no log.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path

from attrs import field, frozen

from lorafsm.errors import InvalidField
from lorafsm.identity import fault_in_epoch, fault_in_identifier

ENGINE = "LORAFSM_GUARD_ENGINE"
EPOCH = "LORAFSM_GUARD_EPOCH"
STORE = "LORAFSM_GUARD_STORE"
HOST = "LORAFSM_GUARD_HOST"
TOKEN_FILE = "LORAFSM_GUARD_TOKEN_FILE"  # noqa: S105 - the name of a variable that names a file
CAPACITY = "LORAFSM_GUARD_CAPACITY"
UNMANAGED = "LORAFSM_GUARD_UNMANAGED"
LAUNCHER = "LORAFSM_GUARD_LAUNCHER"
"""Set by the plugin itself: pid of the process that has the guard, whose children need none."""

PLUGINS, PLUGIN = "sglang.srt.plugins", "lorafsm_guard"
"""Group and name of the entry point by which SGLang finds the plugin."""

TOKEN_HEADER = "X-Lorafsm-Token"  # noqa: S105 - the name of a header
"""Beside `Authorization`, which is SGLang's own."""

ENGINE_PATH = Path(__file__).resolve().parent / "engine-path"
"""The same entry point for an engine's PYTHONPATH, where lorafsm is a checkout that nobody installed."""

_SHORTEST_TOKEN = 16
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the stash is meant to be memory; other machines use TMPDIR


@frozen(kw_only=True)
class GuardSettings:
    """What one guarded engine is told.

    `store` is the artifact store that all engines read, `host` the folder of this engine's own copies; `capacity`
    counts managed versions (RFC 5.2); `unmanaged` lets adapters without the reserved prefix in.
    """

    engine: str
    epoch: str
    store: Path
    host: Path
    token: str = field(repr=False)
    capacity: int = 2
    unmanaged: bool = False
    stash: Path = field(factory=lambda: _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir()))


def guard_environment(
    inherit: Mapping[str, str],
    engine: str,
    epoch: str,
    *,
    store: Path,
    host: Path,
    token_file: Path,
    capacity: int = 2,
    unmanaged: bool = False,
) -> dict[str, str]:
    """`inherit` with what a guarded engine is told; `token_file` is readable by its owner only.

    An installed lorafsm brings the plugin's entry point; where it is not installed, a folder with it goes on the
    engine's PYTHONPATH.
    """
    path = [inherit["PYTHONPATH"]] if inherit.get("PYTHONPATH") else []
    if not entry_points(group=PLUGINS, name=PLUGIN):
        path.insert(0, str(ENGINE_PATH))
    return {
        **{name: value for name, value in inherit.items() if name != LAUNCHER},
        **({"PYTHONPATH": os.pathsep.join(path)} if path else {}),
        ENGINE: engine,
        EPOCH: epoch,
        STORE: str(store),
        HOST: str(host),
        TOKEN_FILE: str(token_file),
        CAPACITY: str(capacity),
        UNMANAGED: "1" if unmanaged else "0",
    }


def write_token(path: Path, token: str) -> Path:
    """Put the control routes' token into a file that only its owner can read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(token, encoding="ascii")
    return path


def settings_from(environment: Mapping[str, str]) -> GuardSettings | None:
    """What this process was told; None where it is not guarded.  Raises InvalidField naming the variable."""
    if not environment.get(ENGINE):
        return None
    engine, epoch = environment[ENGINE], environment.get(EPOCH, "")
    if fault := fault_in_identifier(engine):
        raise InvalidField(ENGINE, fault)
    if fault := fault_in_epoch(epoch):
        raise InvalidField(EPOCH, fault)
    capacity = environment.get(CAPACITY, "2")
    if not capacity.isdigit() or int(capacity) < 1:
        raise InvalidField(CAPACITY, "must be a count of managed versions, at least 1")
    return GuardSettings(
        engine=engine,
        epoch=epoch,
        store=_absolute(environment, STORE),
        host=_absolute(environment, HOST),
        token=read_token(_absolute(environment, TOKEN_FILE)),
        capacity=int(capacity),
        unmanaged=environment.get(UNMANAGED) == "1",
    )


def read_token(path: Path) -> str:
    """The token of a private file; InvalidField for one that others can read, or a token that can be guessed."""
    try:
        mode = path.stat().st_mode
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidField(TOKEN_FILE, f"cannot be read ({type(error).__name__}); write it with write_token") from error
    if stat.S_IMODE(mode) & 0o077:
        raise InvalidField(TOKEN_FILE, "can be read by others; chmod it to 600")
    if len(token) < _SHORTEST_TOKEN:
        raise InvalidField(TOKEN_FILE, f"holds fewer than {_SHORTEST_TOKEN} characters; use secrets.token_hex")
    return token


def _absolute(environment: Mapping[str, str], name: str) -> Path:
    path = Path(environment.get(name, ""))
    if not path.is_absolute():
        raise InvalidField(name, "must be an absolute path on the engine's host")
    return path

"""Reading adapter folders that may be anything: every fault is a typed error before bytes are trusted."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from safetensors import SafetensorError, safe_open

from lorafsm.errors import InvalidField
from lorafsm_torch.errors import invalid
from lorafsm_torch.freeze import Snapshot, freeze_snapshot
from lorafsm_torch.peft import CONFIG_FILE, check_expected_shapes, check_lora

TENSORS_FILE = "adapter_model.safetensors"
WRITTEN_BY_PEFT = frozenset({"README.md"})

_LARGEST_JSON = 64 << 20  # bytes; a manifest of 100 000 tensors is smaller
_DTYPES: Mapping[str, str] = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def check_adapter_folder(
    path: Path | str,
    expected: Mapping[str, tuple[int, ...]] | None = None,
    *,
    ignored: Collection[str] = WRITTEN_BY_PEFT,
) -> Snapshot:
    """Read a PEFT adapter folder from outside and freeze it, or refuse it (ARTIFACT_INVALID).

    The folder holds `adapter_model.safetensors` and `adapter_config.json`, both regular files, and nothing else
    but the names in `ignored`.  `expected` maps tensor names to shapes, if the caller knows them.  Config, header
    and shapes are checked before a tensor is allocated.  The error's `field` names the file, the config entry or
    the tensor.
    """
    folder = Path(path)
    check_entries(folder, {TENSORS_FILE, CONFIG_FILE}, ignored)
    config = parse_json(read_bounded(folder / CONFIG_FILE), CONFIG_FILE)
    with open_tensors(folder / TENSORS_FILE) as file:
        shapes = {name: shape for name, (_, shape) in file.header.items()}
        check_lora(config, shapes)
        if expected is not None:
            check_expected_shapes(shapes, expected, TENSORS_FILE)
        try:
            return freeze_snapshot(config, file.tensors())
        except InvalidField as error:
            where = CONFIG_FILE if (error.field or "").startswith("config") else TENSORS_FILE
            raise invalid(f"{where}: {error.field}", error.message) from error


def check_entries(folder: Path, required: Collection[str], ignored: Collection[str] = ()) -> None:
    """Refuse a folder that is none, lacks a required file, or holds anything but regular files of known names."""
    try:
        with os.scandir(folder) as entries:
            found = {entry.name: entry.stat(follow_symlinks=False).st_mode for entry in entries}
    except OSError as error:
        raise invalid(str(folder), f"is not a readable folder ({error.strerror}); name an adapter folder") from error
    for name in sorted(found):
        if stat.S_ISLNK(found[name]):
            raise invalid(name, "is a symbolic link; put the file itself into the folder")
        if name not in required and name not in ignored:
            raise invalid(name, f"does not belong into the folder; it holds {', '.join(sorted(required))} only")
        if not stat.S_ISREG(found[name]):
            raise invalid(name, "must be a regular file")
    for name in sorted(required):
        if name not in found:
            raise invalid(name, "is missing; export the adapter again")


def read_bounded(path: Path) -> bytes:
    """A JSON file's bytes; refuses one too large to be meant."""
    try:
        # The entry was a regular file a moment ago; should it have become a link or a pipe, neither follow nor wait.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            data = file.read(_LARGEST_JSON + 1)
    except OSError as error:
        raise invalid(path.name, f"cannot be read: {error.strerror}") from error
    if len(data) > _LARGEST_JSON:
        raise invalid(path.name, f"is larger than {_LARGEST_JSON} bytes, hence not the file that its name says")
    return data


def parse_json(data: bytes, name: str) -> dict[str, Any]:
    """The JSON object in `data`, the contents of the file `name`."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise invalid(name, f"is not JSON ({error}); export the adapter again") from error
    if not isinstance(value, dict):
        raise invalid(name, f"must hold a JSON object, not {type(value).__name__}")
    return value


@frozen
class TensorFile:
    """An open safetensors file; `header` maps names to dtype (as in a manifest) and shape."""

    header: Mapping[str, tuple[str, tuple[int, ...]]]
    metadata: Mapping[str, str]
    _file: Any

    def tensors(self) -> dict[str, torch.Tensor]:
        """All tensors by name.  They are views of the file's pages: clone what must outlive it."""
        return {name: self._file.get_tensor(name) for name in sorted(self.header)}


@contextmanager
def open_tensors(path: Path) -> Iterator[TensorFile]:
    """Open a safetensors file and read its header; refuses a truncated or padded file and foreign dtypes.

    safetensors proves that the header's offsets cover the file exactly, so a shape cannot promise more bytes than
    are there.
    """
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            header = {}
            for name in file.keys():  # noqa: SIM118  (not a dict)
                piece = file.get_slice(name)
                dtype = piece.get_dtype()
                if dtype not in _DTYPES:
                    raise invalid(name, f"has dtype {dtype}; must be one of {', '.join(_DTYPES.values())}")
                header[name] = (_DTYPES[dtype], tuple(piece.get_shape()))
            yield TensorFile(header, dict(file.metadata() or {}), file)
    except (SafetensorError, OSError) as error:
        raise invalid(path.name, f"is not a whole safetensors file ({error}); copy or export it again") from error

"""One SGLang server as a subprocess: start, wait until ready, stop or kill by pid.

Engines are subprocesses always: a scheduler that crashes takes its parent with it.  Each one leads its own
session, so Ctrl-C in a terminal reaches only the owner, who then stops it.
"""

from __future__ import annotations

import atexit
import functools
import os
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Self

import httpx

from lorafsm_sglang.ports import free_port, is_free

Progress = Callable[[str, float, str], None]
"""Called with engine name, seconds since its start, and what is going on (one line)."""

_PORT_TAKEN = ("address already in use", "Port is already in use", "is already in use")
_POLL_S = 0.25
_LAST_WORDS = 5  # lines of the log in which a server that gave up says why


class EngineStartError(RuntimeError):
    """The engine did not become ready; ``log_path`` names its log and ``tail`` is the log's end."""

    code = "ENGINE_START_FAILED"

    def __init__(self, engine: str, what: str, log_path: Path, tail: str) -> None:
        super().__init__(f"engine {engine}: {what}; log {log_path} ends with:\n{tail}")
        self.engine = engine
        self.what = what
        self.log_path = log_path
        self.tail = tail

    def __reduce__(self) -> tuple[type[EngineStartError], tuple[str, str, Path, str]]:
        return (type(self), (self.engine, self.what, self.log_path, self.tail))


class EngineStopError(RuntimeError):
    """Processes outlived SIGKILL (a stuck kernel call); ``pids`` names them."""

    code = "ENGINE_STOP_FAILED"

    def __init__(self, engine: str, pids: Sequence[int]) -> None:
        super().__init__(f"engine {engine}: pids {list(pids)} outlived SIGKILL")
        self.engine = engine
        self.pids = tuple(pids)

    def __reduce__(self) -> tuple[type[EngineStopError], tuple[str, Sequence[int]]]:
        return (type(self), (self.engine, self.pids))


class EngineProcess:
    """A server started from ``flags`` (see `cpu_profile.cpu_flags`) in ``environment``.

    ``port`` is a wish: a busy port is replaced by a free one, up to ``port_attempts`` times, so read `url`
    after `wait_ready`.  ``python`` is the interpreter that has SGLang.  A context manager that stops.
    """

    def __init__(
        self,
        name: str,
        flags: Sequence[str],
        environment: Mapping[str, str],
        log_path: Path,
        *,
        port: int | None = None,
        port_attempts: int = 4,
        python: str = sys.executable,
        module: str = "sglang.launch_server",
    ) -> None:
        self.name = name
        self.log_path = Path(log_path)
        self.host = "127.0.0.1"
        self.port = port if port is not None else free_port()
        self.restarts_for_port = 0
        self.ready_after_s: float | None = None
        self._command = [python, "-m", module, *flags, "--log-level-http", "info"]
        self._environment = dict(environment)
        self._port_attempts = port_attempts
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._launch_offset = 0
        self._started_at = 0.0

    def __repr__(self) -> str:
        return f"EngineProcess({self.name!r}, {self.url!r}, pid={self.pid})"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Base URL of the server."""
        return f"http://{self.host}:{self.port}"

    @property
    def pid(self) -> int | None:
        """Pid of the server's root process; it leads the session of all of the engine's processes."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Launch and return at once; `wait_ready` waits.  Starting a running engine is an error."""
        if self.alive():
            raise RuntimeError(f"engine {self.name} runs already (pid {self.pid}); stop it first")
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        self.ready_after_s = None
        self._started_at = time.monotonic()
        self._launch()

    def _launch(self) -> None:
        if not is_free(self.port, self.host):
            self.port = free_port(self.host)
            self.restarts_for_port += 1
        self._release_files()
        self._log = self.log_path.open("ab")
        # Its sockets lie here: a killed engine cannot remove them.
        self._scratch = tempfile.TemporaryDirectory(prefix="lorafsm-engine-")
        self._launch_offset = self.log_path.stat().st_size
        # SGLang's own choice of this port may meet the other engine's, which starts at the same time.
        ports = ("--host", self.host, "--port", str(self.port), "--nccl-port", str(free_port()))
        self._process = subprocess.Popen(
            [*self._command, *ports],
            # Read by the owner-watch plugin of the CPU profile: a killed owner leaves no engine behind.
            env={**self._environment, "LORAFSM_ENGINE_OWNER": str(os.getpid()), "TMPDIR": self._scratch.name},
            # Python puts its working directory first on the path: not a checkout with folders of any name.
            cwd=self.log_path.parent,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        _running.add(self)

    def alive(self) -> bool:
        """Whether the root process runs."""
        return self._process is not None and self._process.poll() is None

    def wait_ready(self, deadline_s: float, on_progress: Progress | None = None) -> None:
        """Wait until the engine has generated a token, at most ``deadline_s`` seconds from `start`."""
        wait_all_ready([self], deadline_s, on_progress)

    def poll_ready(self, deadline_s: float) -> bool:
        """One look: True when ready; raises `EngineStartError` on an exit or when time is up."""
        waited = time.monotonic() - self._started_at
        # A server that finds its port taken may hang in its own shutdown: what it says counts, not only its end.
        if not self.alive() or self._lost_its_port():
            self._relaunch_or_fail()
        elif self._answers():
            self.ready_after_s = waited
            return True
        if waited > deadline_s:
            raise self._start_error(f"not ready after {waited:.0f} s")
        return False

    def _answers(self) -> bool:
        try:
            # /ready turns 200 after the warm-up generation; /health would generate once more and sleep 1 s.
            return _readiness_client().get(f"{self.url}/ready").is_success
        except httpx.HTTPError:
            return False

    def _lost_its_port(self) -> bool:
        return any(sign in self.log_tail(_LAST_WORDS) for sign in _PORT_TAKEN)

    def _relaunch_or_fail(self) -> None:
        if self._process is None:
            raise RuntimeError(f"engine {self.name} was not started")
        status = self._process.returncode
        tail = self.log_tail(200)
        # Children of a server that died at its port may still run; and the log must be free for the next.
        self.stop(grace_s=0)
        if any(sign in tail for sign in _PORT_TAKEN) and self.restarts_for_port < self._port_attempts:
            self.restarts_for_port += 1
            self.port = free_port(self.host)
            self._launch()
            return
        what = f"exited with status {status} before it was ready" if status is not None else "found no free port"
        raise self._start_error(what)

    def _start_error(self, what: str) -> EngineStartError:
        return EngineStartError(self.name, what, self.log_path, self.log_tail(30))

    def log_tail(self, lines: int) -> str:
        """Last lines of the log since the last launch."""
        with self.log_path.open("rb") as log:
            log.seek(self._launch_offset)
            return b"\n".join(log.read().splitlines()[-lines:]).decode("utf-8", errors="replace")

    def stop(self, grace_s: float = 1.0) -> None:
        """End the whole process tree by pid; SIGKILL after ``grace_s`` seconds.  Stopping twice is fine.

        SGLang needs up to 8 s to end by itself; on a CPU there is nothing that it would have to give back.
        """
        from lorafsm_sglang import process_tree

        if self._process is not None:
            survivors = process_tree.end(self._process.pid, grace_s)
            if survivors:
                raise EngineStopError(self.name, survivors)
            self._process.wait()
        _running.discard(self)
        self._release_files()

    def kill(self) -> None:
        """SIGKILL the whole tree at once: the engine crashes."""
        self.stop(grace_s=0)

    def memory_bytes(self) -> int:
        """Memory of the engine's processes in bytes, shared pages counted once."""
        from lorafsm_sglang import process_tree

        return 0 if self.pid is None else process_tree.memory_bytes(self.pid)

    def _release_files(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None


@functools.cache
def _readiness_client() -> httpx.Client:
    # One for all polls: making one takes tens of milliseconds.
    return httpx.Client(timeout=2.0, trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))


def wait_all_ready(engines: Sequence[EngineProcess], deadline_s: float, on_progress: Progress | None = None) -> None:
    """Wait for engines that start at the same time; the first failure is raised at once.

    Stops nothing: the owner's ``finally`` does.
    """
    waiting = list(engines)
    while waiting:
        for engine in list(waiting):
            if engine.poll_ready(deadline_s):
                waiting.remove(engine)
            if on_progress is not None:
                elapsed = time.monotonic() - engine._started_at
                state = "ready" if engine.ready_after_s is not None else engine.log_tail(1) or "starting"
                on_progress(engine.name, elapsed, state)
        if waiting:
            time.sleep(_POLL_S)


_running: weakref.WeakSet[EngineProcess] = weakref.WeakSet()


@atexit.register
def _stop_what_is_left() -> None:
    # Last resort for an owner that forgot; a killed interpreter cannot do this.
    for engine in list(_running):
        engine.kill()

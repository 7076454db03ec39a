"""End a process and everything it started, found from its pid and never by name."""

from __future__ import annotations

import contextlib
import os
import time

import psutil

_KILL_TIMEOUT_S = 10.0
_TRACKER_TIMEOUT_S = 2.0
_POLL_S = 0.02


def members(pid: int) -> list[psutil.Process]:
    """The process, its descendants, and whoever else is in the session that it leads.

    The session finds children whose parent has died; it counts only when ``pid`` was started as its leader.
    """
    found: dict[int, psutil.Process] = {}
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            found[process.pid] = process
    if os.getsid(0) != pid:
        for process in psutil.process_iter():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.getsid(process.pid) == pid:
                    found[process.pid] = process
    return [process for process in found.values() if _runs(process)]


def end(pid: int, grace_s: float) -> list[int]:
    """SIGTERM to the root, SIGKILL to all that is left after ``grace_s`` seconds; returns pids that survive.

    Only the root gets SIGTERM: an SGLang server that sees a child end by itself takes it for a crash and
    sleeps before it reports.
    """
    tree = members(pid)
    if grace_s > 0:
        for process in tree:
            if process.pid == pid:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.terminate()
        tree = _still_running(tree, grace_s)
    # Asked again: children may have been started, or orphaned, in the meantime.
    left = {process.pid: process for process in (*members(pid), *tree) if _runs(process)}
    # Python's resource tracker ends by itself after the others, and removes their named semaphores first.
    trackers = [process for process in left.values() if _is_resource_tracker(process)]
    for process in left.values():
        if process not in trackers:
            _kill(process)
    for process in _still_running(trackers, _TRACKER_TIMEOUT_S):
        _kill(process)
    return [process.pid for process in _still_running(list(left.values()), _KILL_TIMEOUT_S)]


def memory_bytes(pid: int) -> int:
    """Memory of the tree in bytes, shared pages divided among their users (Linux's PSS)."""
    total = 0
    for process in members(pid):
        with contextlib.suppress(psutil.Error):
            total += int(process.memory_full_info().pss)
    return total


def _kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()


def _is_resource_tracker(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return any("multiprocessing.resource_tracker" in part for part in process.cmdline())
    return False


def _still_running(processes: list[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    # Not psutil.wait_procs: it waits for zombies that nobody may ever reap.
    deadline = time.monotonic() + timeout_s
    while (running := [process for process in processes if _runs(process)]) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return running


def _runs(process: psutil.Process) -> bool:
    # An orphan whose new parent does not reap stays a zombie; it holds nothing and has ended.
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False

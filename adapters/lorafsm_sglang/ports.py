"""Free loopback ports, never the same one twice within this process.

They lie below those that the system gives to outgoing connections: an engine binds its port half a minute after it was
chosen, and until then any connection of any process might have been given it.
"""

from __future__ import annotations

import random
import socket
import threading
from pathlib import Path

_LOWEST = 15_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES = 100
_handed_out: set[int] = set()
_lock = threading.Lock()


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen on this port now; the answer may be old when it is used."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do it: a connection that lingers after a close does not make a port busy.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def free_port(host: str = "127.0.0.1") -> int:
    """A free port that this process has not handed out before; another process may still take it."""
    chance = random.SystemRandom()  # processes that were forked from one another must not try the same ports
    for _ in range(_TRIES):
        port = chance.randrange(_LOWEST, _end_of_range())
        if is_free(port, host) and _take(port):
            return port
    while True:  # nothing is free there: any other
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind((host, 0))
            port = int(probe.getsockname()[1])
        if _take(port):
            return port


def _take(port: int) -> bool:
    with _lock:
        if port in _handed_out:
            return False
        _handed_out.add(port)
        return True


def _end_of_range() -> int:
    """Where the system's own ports begin, as far as it says so."""
    try:
        return max(int(_RANGE.read_text().split()[0]), _LOWEST + _TRIES)
    except (OSError, ValueError, IndexError):
        return 32_768

"""Free loopback ports, never the same one twice within this process."""

from __future__ import annotations

import socket
import threading

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
    while True:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind((host, 0))
            port = int(probe.getsockname()[1])
        with _lock:
            if port not in _handed_out:
                _handed_out.add(port)
                return port

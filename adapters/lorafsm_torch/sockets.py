"""Which sockets of this process belong to a process group, and how to end them.

Gloo has no way to give up: its `abort` does not wake what waits (torch 2.13).  Shutting its sockets down from another
thread does, at both ends and at once.  A socket is recognised by its addresses, on a duplicate descriptor that no
other thread can close meanwhile.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

Address = tuple[str, int]
Connection = tuple[Address, Address]
"""Own address and the other end's."""

_OPEN = Path("/proc/self/fd")


def listeners() -> frozenset[Address]:
    """Addresses on which this process listens."""
    return frozenset(_own(s) for s in _sockets() if s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def connections(ours: Collection[Address], theirs: Collection[Address]) -> frozenset[Connection]:
    """What came in at one of `ours`, or went out to one of `theirs`."""
    return frozenset(
        (own, peer) for s in _sockets() if (peer := _peer(s))[1] and ((own := _own(s)) in ours or peer in theirs)
    )


def shut_down(these: Collection[Connection]) -> None:
    """End connections, at both ends, whoever waits in them."""
    if not these:
        return
    for s in _sockets():
        if (_own(s), _peer(s)) in these:
            with suppress(OSError):  # the other end was faster
                s.shutdown(socket.SHUT_RDWR)


def address_towards(host: str, port: int) -> str:
    """This machine's address as `host` sees it; nothing is sent."""
    family, kind, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(where)
        return str(probe.getsockname()[0])


def resolved(host: str, port: int) -> list[Address]:
    """All addresses of a host and port."""
    return [_plain(where[4]) for where in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def _sockets() -> Iterator[socket.socket]:
    """A duplicate of every TCP socket of this process, closed when the caller goes on."""
    for entry in list(_OPEN.iterdir()):
        with _duplicate(entry) as s:
            if s is not None and s.family in (socket.AF_INET, socket.AF_INET6) and s.type == socket.SOCK_STREAM:
                yield s


@contextmanager
def _duplicate(entry: Path) -> Iterator[socket.socket | None]:
    with ExitStack() as stack:
        s: socket.socket | None = None
        with suppress(OSError):  # closed meanwhile, or no socket
            if str(entry.readlink()).startswith("socket:"):
                descriptor = os.dup(int(entry.name))
                try:
                    s = stack.enter_context(socket.socket(fileno=descriptor))
                except OSError:
                    os.close(descriptor)
        yield s


def _own(s: socket.socket) -> Address:
    return _address(s.getsockname)


def _peer(s: socket.socket) -> Address:
    return _address(s.getpeername)


def _address(ask: Callable[[], Any]) -> Address:
    try:
        return _plain(ask())
    except OSError:  # not connected, or ended meanwhile
        return "", 0


def _plain(address: Any) -> Address:
    return str(address[0]).removeprefix("::ffff:"), int(address[1])

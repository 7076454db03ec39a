"""Each mutant in a process of its own, forked from one that has read all there is to read; each within a time limit.

The limit is of processor time, so that a machine with other work judges as an idle one does.
"""

from __future__ import annotations

import json
import math
import os
import resource
import selectors
import signal
from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from typing import Any

from attrs import frozen


@frozen
class _Child:
    name: str
    pid: int
    pipe: int
    until: float  # monotonic seconds: who waits for something uses no processor


_PATIENCE = 20  # times the limit, by the clock


def each(
    names: Iterable[str], work: Callable[[str], Any], jobs: int, seconds: Callable[[str], float]
) -> Iterator[tuple[str, Any]]:
    """(name, what `work` answered in a child), as they end; "too late" for one that took more processor seconds.

    What `work` answers must be JSON; a child that dies answers its exit status.
    """
    waiting, selector = iter(names), selectors.DefaultSelector()
    children: dict[int, _Child] = {}
    texts: dict[int, bytes] = {}
    more = True
    while more or children:
        while more and len(children) < jobs:
            name = next(waiting, None)
            if name is None:
                more = False
                break
            child = _forked(name, work, seconds(name))
            children[child.pipe], texts[child.pipe] = child, b""
            selector.register(child.pipe, selectors.EVENT_READ)
        for key, _ in selector.select(0.5):
            data = os.read(key.fd, 1 << 16)
            texts[key.fd] += data
            if not data:
                yield _ended(children.pop(key.fd), texts.pop(key.fd), selector)
        for child in [child for child in children.values() if monotonic() > child.until]:
            os.kill(child.pid, signal.SIGKILL)
            del children[child.pipe], texts[child.pipe]
            yield _ended(child, b"", selector)


def _forked(name: str, work: Callable[[str], Any], seconds: float) -> _Child:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), math.ceil(seconds) + 1))
        try:
            answer = json.dumps(work(name))
        except BaseException as error:
            answer = json.dumps({"raised": repr(error)})
        os.write(write, answer.encode()[:60_000])
        os._exit(0)
    os.close(write)
    return _Child(name, pid, read, monotonic() + _PATIENCE * seconds)


def _ended(child: _Child, text: bytes, selector: selectors.BaseSelector) -> tuple[str, Any]:
    selector.unregister(child.pipe)
    os.close(child.pipe)
    _, status = os.waitpid(child.pid, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL):
        return child.name, "too late"
    return child.name, json.loads(text) if text else {"ended": status}

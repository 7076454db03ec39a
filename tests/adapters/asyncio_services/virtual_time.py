"""An event loop whose time passes only when nothing else can happen: no test waits for a clock on the wall.

`asyncio.sleep` and every time-out under test end at once in the order of their ends.  When nothing is ready and no
timer is set, nothing can ever happen again: that is raised, not waited for.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

START_S = 1_000.0


class NothingCanHappen(RuntimeError):
    """The program under test waits for something that nobody will do."""


class _JumpingSelector(selectors.DefaultSelector):
    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise NothingCanHappen("nothing is ready and no timer is set")
        self.loop.passed_s += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """As its parent, with a time of its own."""

    def __init__(self) -> None:
        self.passed_s = 0.0
        selector = _JumpingSelector()
        super().__init__(selector)
        selector.loop = self

    def time(self) -> float:
        """Seconds; begins at START_S."""
        return START_S + self.passed_s


def now_ms() -> int:
    """The running loop's time in ms: the clock that tests inject."""
    return round(asyncio.get_running_loop().time() * 1000)


def virtually(story: Coroutine[Any, Any, T]) -> T:
    """Run a story in virtual time; its result."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(story)

"""The one clock of a registry that runs as an actor."""

from __future__ import annotations

import time


class Clock:
    """Milliseconds since 1970 that never run backwards.

    It starts at the machine's time, or at `floor` where that is later (what a recovered registry has already seen, on
    a machine whose clock was ahead), and goes on with the monotonic clock: a correction of the machine's time while
    the actor runs ends no lease.
    """

    def __init__(self, floor: int = 0) -> None:
        self._start = max(time.time_ns() // 1_000_000, floor)
        self._began = time.monotonic_ns()

    def __call__(self) -> int:
        return self._start + (time.monotonic_ns() - self._began) // 1_000_000

"""How times are taken: one call at a time, many of them, the median; alternatives take turns in one run."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from statistics import median
from time import perf_counter_ns
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def gc_frozen() -> Iterator[None]:
    """What exists now is out of the collector's sight; what is made inside is collected as usual."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class Stopwatch:
    """Times of single calls, kept apart by any hashable key."""

    def __init__(self) -> None:
        self._taken: dict[object, list[int]] = {}

    def time(self, key: object, call: Callable[[T], object], items: Iterable[T]) -> None:
        """Call once per item.  The clock's own cost, some 0.1 µs, is not taken off."""
        taken = self._taken.setdefault(key, [])
        for item in items:
            start = perf_counter_ns()
            call(item)
            taken.append(perf_counter_ns() - start)

    def median_us(self, key: object) -> float:
        """The median of all calls under this key, in microseconds."""
        return median(self._taken[key]) / 1000

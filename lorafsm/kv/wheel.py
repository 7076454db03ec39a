"""A timing wheel: which items are due, with `now` as data.

An item lies in the slot of the deadline that it had when it was put there. Moving a deadline later costs nothing: the
wheel finds the later deadline when the old slot comes up. A jump of `now` visits each slot once at most.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Wheel(Generic[T]):
    """`slots` slots of `width` ms each.  `deadline` reads an item's deadline in ms; None: it has none."""

    def __init__(self, deadline: Callable[[T], int | None], width: int, slots: int = 256) -> None:
        self._deadline = deadline
        self._width = width
        self._slots: list[dict[T, None]] = [{} for _ in range(slots)]
        self._at: dict[T, int] = {}
        self._turned = 0  # slots up to this number (not modulo) have been looked at

    def __len__(self) -> int:
        return len(self._at)

    def put(self, item: T) -> None:
        """Watch the item; one that is watched already stays where it is."""
        deadline = self._deadline(item)
        if item in self._at or deadline is None:
            return
        slot = max(deadline // self._width, self._turned) % len(self._slots)
        self._slots[slot][item] = None
        self._at[item] = slot

    def drop(self, item: T) -> None:
        """Watch the item no more."""
        slot = self._at.pop(item, None)
        if slot is not None:
            del self._slots[slot][item]

    def due(self, now: int) -> list[T]:
        """Take out and return every item whose deadline is at or before `now` (ms), in order of deadlines."""
        target = now // self._width
        found: list[T] = []
        for number in range(self._turned, min(target, self._turned + len(self._slots) - 1) + 1):
            slot = number % len(self._slots)
            waiting, self._slots[slot] = self._slots[slot], {}
            for item in waiting:
                del self._at[item]
                deadline = self._deadline(item)
                if deadline is not None and deadline <= now:
                    found.append(item)
                else:
                    self._later(item, target)
        self._turned = max(self._turned, target)
        return sorted(found, key=lambda item: self._deadline(item) or 0)

    def _later(self, item: T, target: int) -> None:
        deadline = self._deadline(item)
        if deadline is None:
            return
        slot = max(deadline // self._width, target) % len(self._slots)
        self._slots[slot][item] = None
        self._at[item] = slot

"""A timing wheel: which items are due, with `now` as data.

An item lies in the slot of the deadline that it had when it was put there, and knows that slot, so it leaves in O(1).
Moving a deadline later costs nothing: the wheel finds the later deadline when the old slot comes up. A jump of `now`
visits each slot once at most.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar


class Timed(Protocol):
    """What a wheel watches.  Both are the wheel's to change, but for a deadline that moves later."""

    deadline: int | None  # ms; None: none
    slot: dict[Timed, None] | None  # None: not watched


T = TypeVar("T", bound=Timed)


class Wheel(Generic[T]):
    """`slots` slots of `width` ms each."""

    def __init__(self, width: int, slots: int = 256) -> None:
        self._width = width
        self._slots: list[dict[T, None]] = [{} for _ in range(slots)]
        self._turned = 0  # slots up to this number (not modulo) have been looked at

    def put(self, item: T, deadline: int) -> None:
        """Watch an item that is not watched."""
        item.deadline = deadline
        self._lay(item, deadline, self._turned)

    def due(self, now: int) -> list[T]:
        """Take out and return every item whose deadline is at or before `now` (ms), in order of deadlines."""
        target = now // self._width
        found: list[tuple[int, T]] = []
        for number in range(self._turned, min(target, self._turned + len(self._slots) - 1) + 1):
            slot = number % len(self._slots)
            waiting, self._slots[slot] = self._slots[slot], {}
            for item in waiting:
                item.slot = None
                deadline = item.deadline
                if deadline is not None and deadline <= now:
                    found.append((deadline, item))
                elif deadline is not None:
                    self._lay(item, deadline, target)
        self._turned = max(self._turned, target)
        return [item for _, item in sorted(found, key=lambda pair: pair[0])]

    def _lay(self, item: T, deadline: int, earliest: int) -> None:
        slot = self._slots[max(deadline // self._width, earliest) % len(self._slots)]
        slot[item] = None
        item.slot = slot  # type: ignore[assignment]  # it only ever takes itself out of it

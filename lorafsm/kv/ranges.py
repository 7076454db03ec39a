"""A set of integers, kept as sorted ranges without overlap: as many entries as the set has gaps."""

from __future__ import annotations

from bisect import bisect_right


class Ranges:
    """Inclusive ranges that never touch: neighbours are merged."""

    __slots__ = ("_highs", "_lows")

    def __init__(self) -> None:
        self._lows: list[int] = []
        self._highs: list[int] = []

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._lows, number) - 1
        return at >= 0 and number <= self._highs[at]

    def __len__(self) -> int:
        """The number of ranges."""
        return len(self._lows)

    def add(self, number: int) -> bool:
        """Put one number in; whether it was not there."""
        if self._highs and number == self._highs[-1] + 1:  # in order, as most come
            self._highs[-1] = number
            return True
        at = bisect_right(self._lows, number)
        if at and number <= self._highs[at - 1]:
            return False
        joins_left = at > 0 and self._highs[at - 1] == number - 1
        joins_right = at < len(self._lows) and self._lows[at] == number + 1
        if joins_left and joins_right:
            self._highs[at - 1] = self._highs.pop(at)
            del self._lows[at]
        elif joins_left:
            self._highs[at - 1] = number
        elif joins_right:
            self._lows[at] = number
        else:
            self._lows.insert(at, number)
            self._highs.insert(at, number)
        return True

"""Which of one owner's sessions hold a version, oldest first: append, remove and oldest without a scan.

Entries lie in blocks of at most 8 in the order of binding; one integer marks, bit by bit, the blocks that are
not empty.  Each operation touches one block, whatever the number of sessions (protocol section 1).
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TypeAlias

from attrs import frozen
from immutables import Map

BLOCK_BITS = 3  # small blocks: a block that changes is copied, and every entry of it touched

Holder: TypeAlias = tuple[int, int, int]
"""(position, sequence of the session, time of binding in ms)."""


@frozen
class Holders:
    """Sessions of one owner that hold a ref on one version."""

    count: int = 0
    appended: int = 0  # how many were ever appended: the next position
    blocks: Map[int, tuple[Holder, ...]] = Map()
    occupied: int = 0  # bit b is set when block b is not empty

    def append(self, sequence: int, now: int) -> Holders:
        """Add the newest holder; its position is `self.appended`."""
        position = self.appended
        block = position >> BLOCK_BITS
        entries = (*self.blocks.get(block, ()), (position, sequence, now))
        return Holders(self.count + 1, position + 1, self.blocks.set(block, entries), self.occupied | (1 << block))

    def remove(self, position: int) -> Holders:
        """Drop the holder at `position`, which must be present."""
        block = position >> BLOCK_BITS
        entries = self.blocks[block]
        place = bisect_left(entries, (position,))  # sorted by position; slices do not look into the other entries
        entries = entries[:place] + entries[place + 1 :]
        if entries:
            return Holders(self.count - 1, self.appended, self.blocks.set(block, entries), self.occupied)
        return Holders(self.count - 1, self.appended, self.blocks.delete(block), self.occupied ^ (1 << block))

    def oldest(self) -> Holder | None:
        """The holder that bound first among those present, or None."""
        if not self.occupied:
            return None
        block = (self.occupied & -self.occupied).bit_length() - 1
        return self.blocks[block][0]

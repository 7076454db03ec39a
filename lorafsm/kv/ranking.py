"""Candidates for eviction in their order: an indexed binary heap.

The smallest key is the next victim. A candidate is added, moved and removed in O(log n) and there are no stale
entries, so a locked node really is delisted and memory is that of the candidates. Keys are tuples that are unique
within one ranking.
"""

from __future__ import annotations

from typing import Generic, TypeAlias, TypeVar

Key: TypeAlias = tuple[int, ...]
T = TypeVar("T")


class Entry(Generic[T]):
    """A candidate's place in its ranking."""

    __slots__ = ("at", "item", "key")

    def __init__(self, key: Key, item: T, at: int) -> None:
        self.key = key
        self.item = item
        self.at = at


class Ranking(Generic[T]):
    """An indexed heap of items; `first()` is the next victim."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[Entry[T]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def entries(self) -> tuple[Entry[T], ...]:
        """All candidates, in no order: for checks."""
        return tuple(self._heap)

    def first(self) -> T | None:
        """The item with the smallest key, or None."""
        return self._heap[0].item if self._heap else None

    def add(self, key: Key, item: T) -> Entry[T]:
        """A new candidate."""
        entry = Entry(key, item, len(self._heap))
        self._heap.append(entry)
        self._up(entry)
        return entry

    def move(self, entry: Entry[T], key: Key) -> None:
        """Give a candidate another key."""
        old, entry.key = entry.key, key
        if key < old:
            self._up(entry)
        elif key > old:
            self._down(entry)

    def remove(self, entry: Entry[T]) -> None:
        """Take a candidate off the list."""
        last = self._heap.pop()
        if last is entry:
            return
        last.at = entry.at
        self._heap[entry.at] = last
        if last.key < entry.key:
            self._up(last)
        else:
            self._down(last)

    def _up(self, entry: Entry[T]) -> None:
        heap, at, key = self._heap, entry.at, entry.key
        while at:
            above = (at - 1) >> 1
            parent = heap[above]
            if parent.key <= key:
                break
            heap[at] = parent
            parent.at = at
            at = above
        heap[at] = entry
        entry.at = at

    def _down(self, entry: Entry[T]) -> None:
        heap, at, key = self._heap, entry.at, entry.key
        size = len(heap)
        below = 2 * at + 1
        while below < size:
            child = heap[below]
            if below + 1 < size and heap[below + 1].key < child.key:
                below += 1
                child = heap[below]
            if key <= child.key:
                break
            heap[at] = child
            child.at = at
            at = below
            below = 2 * at + 1
        heap[at] = entry
        entry.at = at

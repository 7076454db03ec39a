"""Candidates for eviction in their order: sorted lists, one a class, and an indexed heap for what comes out of order.

The smallest key is the next victim. What is accessed gets the largest key of its class: it goes to the end of its
class's list in O(1). What comes with an older key (a parent that became a leaf, a session that was closed) goes to
the heap in O(log n), so its place is exact. There are no stale entries: a locked node really is delisted, and memory
is that of the candidates. Keys are tuples that are unique within one ranking; the first item is the class.
"""

from __future__ import annotations

from typing import Any, Generic, TypeAlias, TypeVar

Key: TypeAlias = tuple[int, ...]
T = TypeVar("T")

LISTED, SENTINEL = -1, -2


class Entry(Generic[T]):
    """A candidate's place: `at` in the heap, or in a list between its neighbours."""

    __slots__ = ("after", "at", "before", "item", "key")

    def __init__(self, key: Key, item: T) -> None:
        self.key = key
        self.item = item
        self.at = LISTED
        self.before: Entry[T] = self
        self.after: Entry[T] = self


class Ranking(Generic[T]):
    """`first()` is the next victim.  With `classes`, keys begin with a number below it; 0: there is only the heap."""

    __slots__ = ("_heap", "_lists", "_size")

    def __init__(self, classes: int = 0) -> None:
        self._heap: list[Entry[T]] = []
        self._size = 0
        nothing: Any = None
        self._lists: tuple[Entry[T], ...] = tuple(Entry((), nothing) for _ in range(classes))
        for sentinel in self._lists:
            sentinel.at = SENTINEL

    def __len__(self) -> int:
        return self._size

    def entries(self) -> list[Entry[T]]:
        """All candidates, in no order: for checks."""
        return [*self._heap, *(entry for sentinel in self._lists for entry in _listed(sentinel))]

    def is_ordered(self) -> bool:
        """Whether heap and lists are what they should be: for checks."""
        heap = all(
            entry.at == at and (not at or self._heap[(at - 1) >> 1].key < entry.key)
            for at, entry in enumerate(self._heap)
        )
        lists = all(
            entry.before.at == SENTINEL or entry.before.key < entry.key
            for sentinel in self._lists
            for entry in _listed(sentinel)
        )
        return heap and lists and self._size == len(self.entries())

    def first(self) -> T | None:
        """The item with the smallest key, or None."""
        for sentinel in self._lists:
            entry = sentinel.after
            if entry is not sentinel:  # of the lowest class: no list holds a smaller key
                if self._heap and self._heap[0].key < entry.key:
                    entry = self._heap[0]
                return entry.item
        return self._heap[0].item if self._heap else None

    def add(self, key: Key, item: T) -> Entry[T]:
        """A new candidate."""
        entry = Entry(key, item)
        self._size += 1
        self._place(entry)
        return entry

    def move(self, entry: Entry[T], key: Key) -> None:
        """Give a candidate another key."""
        if key == entry.key:
            return
        if entry.at == LISTED:  # `_take`, without a call: the hot path
            before, after = entry.before, entry.after
            before.after, after.before = after, before
        else:
            self._take(entry)
        entry.key = key
        if self._lists:  # `_place`, without a call
            sentinel = self._lists[key[0]]
            last = sentinel.before
            if last is sentinel or last.key < key:
                entry.at = LISTED
                entry.before, entry.after = last, sentinel
                last.after = sentinel.before = entry
                return
        entry.at = len(self._heap)
        self._heap.append(entry)
        self._rise(entry)

    def remove(self, entry: Entry[T]) -> None:
        """Take a candidate off."""
        self._size -= 1
        self._take(entry)

    def _place(self, entry: Entry[T]) -> None:
        if self._lists:
            sentinel = self._lists[entry.key[0]]
            last = sentinel.before
            if last is sentinel or last.key < entry.key:
                entry.at = LISTED
                entry.before, entry.after = last, sentinel
                last.after = sentinel.before = entry
                return
        entry.at = len(self._heap)
        self._heap.append(entry)
        self._rise(entry)

    def _take(self, entry: Entry[T]) -> None:
        if entry.at == LISTED:
            before, after = entry.before, entry.after
            before.after, after.before = after, before
            return
        last = self._heap.pop()
        if last is not entry:
            last.at = self._sink(entry.at)
            self._rise(last)

    def _sink(self, at: int) -> int:
        """Let a hole sink to the bottom, where the last entry likely belongs; where it came to rest."""
        heap = self._heap
        size = len(heap)
        right = 2 * at + 2
        while right < size:
            child, left = heap[right], heap[right - 1]
            if left.key < child.key:
                child = left
                right -= 1
            heap[at] = child
            child.at = at
            at = right
            right = 2 * at + 2
        if right == size:
            heap[at] = heap[size - 1]
            heap[at].at = at
            at = size - 1
        return at

    def _rise(self, entry: Entry[T]) -> None:
        heap, at, key = self._heap, entry.at, entry.key
        while at:
            above = (at - 1) >> 1
            parent = heap[above]
            if parent.key < key:
                break
            heap[at] = parent
            parent.at = at
            at = above
        heap[at] = entry
        entry.at = at


def _listed(sentinel: Entry[T]) -> list[Entry[T]]:
    found = []
    entry = sentinel.after
    while entry is not sentinel:
        found.append(entry)
        entry = entry.after
    return found

"""Times of single operations on ours and on the original's cores, in one process that has the CPU stand-ins.

`python -m tests.benchmarks.kv_cores STARS CHAINS REPEATS` prints JSON: core -> shape -> size -> operation -> µs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any, Protocol

from lorafsm.identity import SessionKey
from lorafsm.kv import CacheConfig, SessionCache
from tests.benchmarks.timing import Stopwatch, gc_frozen

PREFIX = 8  # tokens that all leaves of a star share
LEAF = 4
OPERATIONS = ("insert", "match", "register", "close", "evict_one")


class Core(Protocol):
    """What is measured."""

    sessions: bool

    def insert(self, tokens: tuple[int, ...]) -> Any:
        """Store; the handle of the node at the end."""

    def match(self, tokens: tuple[int, ...]) -> Any:
        """Look up."""

    def open(self, session: int) -> Any:
        """What register needs."""

    def register(self, session: int, opened: Any, leaf: Any) -> None:
        """The session refers to the leaf."""

    def close(self, session: int, opened: Any) -> None:
        """It refers to nothing more."""

    def evict_one(self) -> None:
        """Free at least one token."""

    def chain(self, tokens: tuple[int, ...]) -> None:
        """Store these tokens as a node each, one under the other."""


class Ours:
    """The cache of this project."""

    sessions = True

    def __init__(self, tokens: int) -> None:
        self.cache = SessionCache(CacheConfig(ttl=60_000))

    def insert(self, tokens: tuple[int, ...]) -> Any:
        return self.cache.insert(tokens).node

    def match(self, tokens: tuple[int, ...]) -> Any:
        return self.cache.match(tokens)

    def open(self, session: int) -> SessionKey:
        key = SessionKey("e1", "o1", session)
        self.cache.open(key)
        return key

    def register(self, session: int, opened: SessionKey, leaf: Any) -> None:
        self.cache.register(opened, leaf)

    def close(self, session: int, opened: SessionKey) -> None:
        self.cache.close(opened)

    def evict_one(self) -> None:
        self.cache.evict(1)

    def chain(self, tokens: tuple[int, ...]) -> None:
        tree = self.cache.tree
        cut_in_halves(self.insert(tokens), len(tokens), lambda node, length: tree.split(node, length, touch=False))


class Theirs:
    """UnifiedRadixCache with its Python or its native core."""

    def __init__(self, tokens: int, backend: str) -> None:
        from tests.kv.original import EvictParams, Original

        self.sessions = backend == "python"  # the native core has no sessions
        self.original = Original(tokens + 1000, sessions=self.sessions, backend=backend, watched=False)
        self._evict_one = EvictParams(num_tokens=1)

    def insert(self, tokens: tuple[int, ...]) -> Any:
        original = self.original
        matched = original.match(tokens).device_prefix_len
        slots = original.allocator.alloc(len(tokens) - matched)
        value = original.padded(slots, matched)
        return original.insert(tokens, value, matched).last_device_node

    def match(self, tokens: tuple[int, ...]) -> Any:
        return self.original.match(tokens)

    def open(self, session: int) -> Any:
        return self.original.request(str(session), self.original.open(str(session)))

    def register(self, session: int, opened: Any, leaf: Any) -> None:
        self.original.cache.session_refs.register_session_ref(opened, leaf)

    def close(self, session: int, opened: Any) -> None:
        self.original.cache.release_radix_session(opened.session_id)

    def evict_one(self) -> None:
        self.original.cache.evict(self._evict_one)

    def chain(self, tokens: tuple[int, ...]) -> None:
        end = self.insert(tokens)
        core = self.original.cache.tree_core
        if self.sessions:
            cut_in_halves(
                core.node_by_id(end), len(tokens), lambda node, length: core._split_node(node.key, node, length)[0]
            )
        else:  # the native core splits where a match ends, and only there
            for length in range(len(tokens) - 1, 0, -1):
                self.match(tokens[:length])


def cut_in_halves(node: Any, length: int, split: Callable[[Any, int], Any]) -> None:
    """Cut a node into nodes of one token, without a walk from the root to each; `split` returns the new parent."""
    todo = [(node, length)]
    while todo:
        node, length = todo.pop()
        if length > 1:
            todo += [(split(node, length // 2), length // 2), (node, length - length // 2)]


class Bench:
    """One core, filled with a star (all leaves under one prefix), closed (a star whose sessions
    were closed in disorder) or a chain (each node under the one before)."""

    def __init__(self, core: Core, shape: str, size: int) -> None:
        self.core, self.shape, self.size = core, shape, size
        self._random = Random(size)
        self._fresh = count(1_000_000)
        self._session = count()
        self.prefix = tuple(range(1, PREFIX + 1))
        self.leaves: list[tuple[int, ...]] = []
        if shape != "chain":
            ends = []
            for _ in range(size):
                self.leaves.append(self._new())
                ends.append(core.insert(self.leaves[-1]))
            if shape == "closed" and core.sessions:
                self._close_in_disorder(ends)
        else:
            whole = tuple(range(1, size + 1))
            core.chain(whole)
            self.prefix = whole
            self.leaves = [whole]

    def _close_in_disorder(self, ends: list[Any]) -> None:
        """Each leaf had a session; they closed in another order than that of the last use."""
        opened = [next(self._session) for _ in ends]
        keys = {number: self.core.open(number) for number in opened}
        for number, end in zip(opened, ends, strict=True):
            self.core.register(number, keys[number], end)
        self._random.shuffle(opened)
        for number in opened:
            self.core.close(number, keys[number])

    def _new(self) -> tuple[int, ...]:
        return self.prefix + tuple(next(self._fresh) for _ in range(LEAF))

    def turn(self, watch: Stopwatch, name: str, repeats: int) -> None:
        """Each operation so many times; the size stays."""
        core, key = self.core, (name, self.shape, self.size)
        new = [self._new() for _ in range(repeats)]
        ends: list[Any] = []
        watch.time((*key, "insert"), lambda tokens: ends.append(core.insert(tokens)), new)
        watch.time((*key, "match"), core.match, self._random.choices(self.leaves, k=repeats))
        if core.sessions:
            numbers = [next(self._session) for _ in range(repeats)]
            opened = {number: core.open(number) for number in numbers}
            pairs = list(zip(numbers, ends, strict=True))
            watch.time((*key, "register"), lambda pair: core.register(pair[0], opened[pair[0]], pair[1]), pairs)
            watch.time((*key, "close"), lambda number: core.close(number, opened[number]), numbers)
        watch.time((*key, "evict_one"), lambda _: core.evict_one(), range(repeats))


def _native_can(shape: str, size: int) -> bool:
    """It has no sessions that could close, and to make a chain of 10^5 nodes by matches takes it an hour."""
    return shape == "star" or (shape == "chain" and size <= 10_000)


def _their_repeats(shape: str, size: int, repeats: int) -> int:
    """An insert at the end of a chain of 10^5 nodes takes the Python core many seconds."""
    return 3 if shape == "chain" and size > 10_000 else max(3, repeats // 10)


def measure(sizes: list[int], chains: list[int], repeats: int, *, only_ours: bool = False) -> dict[str, Any]:
    """Medians in µs."""
    makers: dict[str, Callable[[int], Core]] = {
        "ours": Ours,
        "python": lambda tokens: Theirs(tokens, "python"),
        "native": lambda tokens: Theirs(tokens, "rust"),
    }
    if only_ours:
        del makers["python"], makers["native"]
    found: dict[str, Any] = {}
    for shape, shape_sizes in (("star", sizes), ("closed", sizes), ("chain", chains)):
        for size in shape_sizes:
            room = size * LEAF + PREFIX + repeats * LEAF
            benches = {
                name: Bench(make(room), shape, size)
                for name, make in makers.items()
                if name != "native" or _native_can(shape, size)
            }
            watch = Stopwatch()
            with gc_frozen():
                for name, bench in benches.items():
                    bench.turn(watch, name, repeats if name != "python" else _their_repeats(shape, size, repeats))
            for name, bench in benches.items():
                for operation in OPERATIONS:
                    if bench.core.sessions or operation not in ("register", "close"):
                        times = found.setdefault(name, {}).setdefault(shape, {}).setdefault(str(size), {})
                        times[operation] = watch.median_us((name, shape, size, operation))
    return found


if __name__ == "__main__":
    asked = [[int(number) for number in text.split(",")] for text in sys.argv[1:4]]
    print(json.dumps(measure(asked[0], asked[1], asked[2][0])))

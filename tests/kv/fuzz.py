"""Seeded random lives of a cache with every component and both tiers; all invariants after each operation."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from lorafsm.identity import SessionKey, VersionKey
from lorafsm.kv import CacheConfig, HostTier, HostWrite, Inserted, Lock, Node, Policy, SessionCache
from lorafsm.kv.invariants import check
from lorafsm.kv.node import FULL, subtree
from lorafsm.lifecycle import VersionState as V

VERSIONS = (None, VersionKey("e1", 1), VersionKey("e1", 2))
STATES = (V.PUBLISHED, V.RETIRED, V.RETIRED, V.RECLAIMING, V.ABORTED)


def config_of(random: Random) -> CacheConfig:
    """Any mixture of what can be configured, small."""
    window, states = random.choice([0, 0, 3, 4]), random.random() < 0.4
    host = None
    if random.random() < 0.5:
        host = HostTier(
            capacities=tuple(random.choice([0, 6, 30]) for _ in range(1 + bool(window) + states)),
            write=random.choice(list(HostWrite)),
            threshold=random.choice([1, 2]),
        )
    return CacheConfig(
        page=random.choice([1, 1, 2]),
        window=window,
        states=states,
        host=host,
        ttl=random.choice([0, 50, 50]),
        branches=random.choice([1, 2, 8]),
        policy=random.choice(list(Policy)),
        split_touches_suffix=random.random() < 0.3,
    )


class Life:
    """One cache and the operations that befall it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.cache = SessionCache(config_of(self.random))
        self.now = 0
        self.locks: list[Lock] = []
        self.ends: list[tuple[SessionKey, Node]] = []
        self.done: list[str] = []
        self._version = {}
        self._acts: list[tuple[Callable[[], None], int]] = [
            (self.request, 35),
            (self.match, 10),
            (self.lock, 8),
            (self.unlock, 8),
            (self.evict, 16),
            (self.evict_host, 5),
            (self.close, 6),
            (self.late_register, 4),
            (self.tick, 4),
            (self.version, 3),
            (self.flush, 1),
        ]

    def run(self, steps: int) -> list[str]:
        """The first violated invariant, with what was done last; empty if there is none."""
        acts, weights = zip(*self._acts, strict=True)
        for _ in range(steps):
            act = self.random.choices(acts, weights)[0]
            self.done.append(act.__name__)
            act()
            if faults := check(self.cache):
                return [*faults, f"after {len(self.done)} operations: {self.done[-4:]}, {self.cache.config}"]
        return []

    def request(self) -> None:
        session, tokens = self._session(), self._tokens()
        version = self._version.setdefault(session, self.random.choice(VERSIONS))
        self.cache.open(session, version, self.now)
        match = self.cache.match(tokens, version)
        lock = self.cache.lock(match.node)
        if match.length > match.device_length:
            self.cache.load(match)
        window_from = max(match.length, self.random.choice([0, len(tokens) - 4]))
        stored = self.cache.insert(tokens, version, window_from=window_from, state=self.random.random() < 0.7)
        self.cache.unlock(lock)
        if isinstance(stored, Inserted):
            self.ends.append((session, stored.node))
            self.cache.register(session, stored.node, self.now, aborted=self.random.random() < 0.1)

    def match(self) -> None:
        self.cache.match(self._tokens(), self.random.choice(VERSIONS))

    def lock(self) -> None:
        there = [node for _, node in self.ends if node.parent is not None]
        if there:
            self.locks.append(self.cache.lock(self.random.choice(there)))

    def unlock(self) -> None:
        if self.locks:
            self.cache.unlock(self.locks.pop(self.random.randrange(len(self.locks))))

    def evict(self) -> None:
        component = self.random.randrange(len(self.cache.components))
        leaves = [n for s in self.cache.spaces.values() for n in subtree(s.root)[1:] if n.is_device_leaf()]
        used = self.cache.tree.used[component]
        evicted = self.cache.evict(self.random.randint(1, 5), component)
        assert evicted.freed == used - self.cache.tree.used[component]
        if component == FULL:
            assert bool(evicted.freed) == bool(leaves), "evict(1) frees, if any leaf is not locked"

    def evict_host(self) -> None:
        self.cache.evict_host(self.random.randint(1, 5), self.random.randrange(len(self.cache.components)))

    def close(self) -> None:
        self.cache.close(self._session())

    def late_register(self) -> None:
        if self.ends:
            self.cache.register(*self.random.choice(self.ends), self.now)

    def tick(self) -> None:
        self.now += self.random.randint(0, 60)
        self.cache.tick(self.now)

    def version(self) -> None:
        state = V.RECLAIMED if self.random.random() < 0.05 else self.random.choice(STATES)
        self.cache.set_version(self.random.choice(VERSIONS[1:]), state, self.random.randrange(2))

    def flush(self) -> None:
        self.cache.flush()

    def _session(self) -> SessionKey:
        return SessionKey("e1", f"o{self.random.randrange(2)}", self.random.randrange(12))

    def _tokens(self) -> tuple[int, ...]:
        return tuple(2 if self.random.random() < 0.15 else 1 for _ in range(self.random.randint(0, 14)))

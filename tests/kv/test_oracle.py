"""Hypothesis drives the cache and the naive one side by side; after each step all invariants, and all that is seen."""

from __future__ import annotations

import os

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lorafsm.identity import SessionKey, VersionKey
from lorafsm.kv import CacheConfig, Inserted, Policy, SessionCache
from lorafsm.kv.invariants import check
from lorafsm.kv.node import FULL, subtree
from lorafsm.lifecycle import VersionState
from lorafsm.outcomes import Refusal
from tests.kv.naive import Naive

VERSIONS = (None, VersionKey("e1", 1), VersionKey("e1", 2))
TOKENS = st.lists(st.sampled_from([1, 1, 1, 2]), max_size=14).map(tuple)
EXAMPLES = int(os.environ.get("KV_ORACLE_EXAMPLES", "300"))
SESSIONS = st.builds(SessionKey, st.just("e1"), st.sampled_from(["o1", "o2"]), st.integers(0, 5))


class SideBySide(RuleBasedStateMachine):
    """Two caches, one of them too simple to be wrong."""

    @initialize(
        page=st.sampled_from([1, 1, 2]),
        policy=st.sampled_from(list(Policy)),
        ttl=st.sampled_from([0, 100]),
        branches=st.sampled_from([1, 2, 8]),
        sessions=st.sampled_from([True, True, True, False]),
        touches=st.booleans(),
    )
    def start(self, page, policy, ttl, branches, sessions, touches):
        same = {
            "page": page,
            "policy": policy,
            "ttl": ttl,
            "branches": branches,
            "sessions": sessions,
            "split_touches_suffix": touches,
        }
        self.ours, self.naive = SessionCache(CacheConfig(**same)), Naive(**same)
        self.now = 0
        self.locks = []
        self.ended = []  # (session, node, version, path) of requests

    @rule(session=SESSIONS, version=st.sampled_from(VERSIONS), tokens=TOKENS, priority=st.integers(0, 2))
    def request(self, session, version, tokens, priority):
        opened = self.ours.open(session, version, self.now)
        assert opened.ok == self.naive.open(session, version, self.now), opened
        assert self.ours.match(tokens, version).length == self.naive.match(version, tokens)
        stored = self.ours.insert(tokens, version, priority=priority)
        path = self.naive.insert(version, tokens, priority)
        assert isinstance(stored, Inserted) == (path is not None)
        if isinstance(stored, Inserted):
            self._register(session, stored.node, version, path)
            self.ended.append((session, stored.node, version, path))

    @precondition(lambda self: self.ended)
    @rule(data=st.data(), session=SESSIONS)
    def late_register(self, data, session):
        _, node, version, path = data.draw(st.sampled_from(self.ended))
        self._register(session, node, version, path)

    def _register(self, session, node, version, path):
        said = self.ours.register(session, node, self.now)
        # The node that was stored may be gone while another with the same path is there: then the naive one
        # cannot know better, so ask it only about nodes that are still in place.
        if node.parent is None:
            assert isinstance(said, Refusal)
            return
        assert said.ok == self.naive.register(session, version, path, self.now), said

    @rule(version=st.sampled_from(VERSIONS), tokens=TOKENS)
    def match(self, version, tokens):
        assert self.ours.match(tokens, version).length == self.naive.match(version, tokens)

    @rule(version=st.sampled_from(VERSIONS), tokens=TOKENS)
    def lock(self, version, tokens):
        match = self.ours.match(tokens, version)
        self.naive.match(version, tokens)
        if match.length:
            name = (version, tuple(tokens[: match.length]))
            self.locks.append((self.ours.lock(match.node), name))
            self.naive.locks.append(name)

    @precondition(lambda self: self.locks)
    @rule(data=st.data())
    def unlock(self, data):
        lock, name = self.locks.pop(data.draw(st.integers(0, len(self.locks) - 1)))
        self.ours.unlock(lock)
        self.naive.unlock(name)

    @rule(slots=st.integers(1, 8))
    def evict(self, slots):
        candidates = self.naive.evictable()
        refs = {run: sum(self.naive.refs(run)) for run in candidates}
        evicted = self.ours.evict(slots)
        if candidates and not self.naive.idle and not self.naive.dead:
            first = min(candidates, key=self.naive.key)
            assert not refs[first] or all(refs.values()), "a referenced leaf goes while an unreferenced one is there"
        assert [(v.version, v.start, v.end) for v in evicted.victims] == self.naive.evict(slots)
        assert evicted.freed >= 1 if candidates else evicted.freed == 0

    @rule(session=SESSIONS)
    def close(self, session):
        before = self._values()
        self.ours.close(session)
        self.naive.close(session)
        assert self._values() == before, "closing changed a value, a lock, a stamp or the tree's shape"

    @rule(later=st.integers(0, 120))
    def tick(self, later):
        self.now += later
        self.ours.tick(self.now)
        self.naive.tick(self.now)

    @rule()
    def flush(self):
        self.ours.flush()
        for version in VERSIONS:
            self.naive.drop(version)

    @rule(
        version=st.sampled_from(VERSIONS[1:]),
        state=st.sampled_from([*VersionState, VersionState.RETIRED]),
        refs=st.integers(0, 1),
    )
    def version(self, version, state, refs):
        self.ours.set_version(version, state, refs)
        if version in self.naive.dead:
            return
        idle = state is VersionState.RECLAIMING or (state is VersionState.RETIRED and not refs)
        (self.naive.idle.add if idle else self.naive.idle.discard)(version)
        if state is VersionState.RECLAIMED:
            self.naive.dead.add(version)
        if state in (VersionState.RECLAIMED, VersionState.ABORTED, VersionState.FAILED_CLEAN):
            self.naive.drop(version)

    def _values(self):
        return [
            (n.space.version, n.start, n.end, n.full.device, n.full.lock, n.full.stamp, n.hits)
            for space in self.ours.spaces.values()
            for n in subtree(space.root)
        ] + [tuple(self.ours.tree.used), tuple(self.ours.tree.protected)]

    @invariant()
    def nothing_is_violated(self):
        if hasattr(self, "ours"):
            assert check(self.ours) == []

    @invariant()
    def both_show_the_same(self):
        if not hasattr(self, "ours"):
            return
        ours = {}
        for version, space in self.ours.spaces.items():
            paths = {space.root: ()}
            for node in subtree(space.root)[1:]:
                paths[node] = paths[node.parent] + node.key
                ours[version, paths[node], node.start] = (node.full.active, node.full.expired, node.locked)
        naive = {(r.version, r.path, r.start): (*self.naive.refs(r), self.naive.is_locked(r)) for r in self.naive.runs}
        assert ours == naive
        assert set(self.ours.sessions.live) == set(self.naive.talks)
        assert self.ours.tree.used[FULL] == sum(len(r.path) - r.start for r in self.naive.runs)


SideBySide.TestCase.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestSideBySide = SideBySide.TestCase

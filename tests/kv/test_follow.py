"""One concept of session for the binding and the cache: whatever the registry says, the cache knows."""

from __future__ import annotations

from typing import Any

from lorafsm.kv import CacheConfig, Inserted, SessionCache
from lorafsm.kv.follow import follow
from lorafsm.kv.invariants import check
from lorafsm.kv.node import FULL
from lorafsm.lifecycle import SessionState
from lorafsm.outcomes import Code
from lorafsm.registry import step
from tests.core.story import World


class Followed(World):
    """A registry and a cache that hears of every step."""

    def __init__(self, **config: Any) -> None:
        self.cache = SessionCache(CacheConfig())
        super().__init__(**config)

    def do(self, event: Any) -> Code:
        before = self.r
        code = super().do(event)
        follow(self.cache, before, event, step(before, event))
        assert check(self.cache) == []
        bound = {
            (owner.owner, sequence)
            for _, owner in self.r.owners.items()
            if owner.state == "LIVE"
            for sequence, session in owner.sessions.items()
            if session.binding is not None and session.state is not SessionState.CLOSED
        }
        assert {(key.owner, key.sequence) for key in self.cache.sessions.live} == bound
        return code

    def generate(self, name: str, v: str, *tokens: int) -> Code:
        """A request of the session ends."""
        stored = self.cache.insert(tokens, self.key(v))
        if not isinstance(stored, Inserted):
            return stored.code
        return self.cache.register(self.session_key(name), stored.node, self.now).code


def test_a_session_is_one_thing_from_bind_to_close():
    w = Followed()
    w.publish("A")
    assert w.bind_first("s") == "A"
    assert w.generate("s", "A", 1, 2, 3) == Code.OK
    assert w.close_and_release("s") == Code.OK
    assert w.generate("s", "A", 1, 2, 3, 4) == Code.SESSION_CLOSED
    assert w.cache.open(w.session_key("s"), w.key("A")).code == Code.SESSION_CLOSED
    assert w.cache.tree.used[FULL] == 4


def test_one_close_releases_the_version_ref_and_the_cache_refs_of_one_key():
    w = Followed()
    w.publish("A")
    w.bind_first("s")
    w.bind_first("t")
    w.generate("s", "A", 1, 2, 3)
    w.generate("t", "A", 1, 2, 3)
    [node] = w.cache.sessions.live[w.session_key("s")].frontiers[FULL]
    assert (w.r.versions[w.key("A")].session_refs, node.full.active) == (2, 2)
    w.close_and_release("s")
    assert (w.r.versions[w.key("A")].session_refs, node.full.active) == (1, 1)
    w.close_and_release("s")  # a repeat releases nothing more, on either side
    assert (w.r.versions[w.key("A")].session_refs, node.full.active) == (1, 1)
    w.close_and_release("t")
    assert (w.r.versions[w.key("A")].session_refs, node.full.active) == (0, 0)


def test_kv_follows_its_version_to_the_end():
    w = Followed()
    w.publish("A")
    w.bind_first("s")
    w.generate("s", "A", 1, 2, 3)
    w.publish("B")
    assert not w.cache.spaces[w.key("A")].idle, "a session still holds A"
    w.close_and_release("s")
    assert w.cache.spaces[w.key("A")].idle
    w.reclaim("A")
    assert w.cache.is_dead(w.key("A"))
    assert w.cache.tree.used[FULL] == 0


def test_an_owner_takes_its_sessions_along():
    w = Followed()
    w.publish("A")
    w.bind_first("s")
    w.bind_first("t")
    w.generate("s", "A", 1)
    w.owner_gone("o1")
    assert w.cache.sessions.live == {}
    assert w.generate("t", "A", 1, 2) == Code.SESSION_CLOSED


def test_a_version_that_lags_too_far_behind_is_next_to_go_though_its_sessions_live():
    w = Followed(max_version_lag=1)
    w.publish("A")
    w.bind_first("s")
    w.generate("s", "A", 1, 2, 3)
    w.publish("B")
    assert w.cache.spaces[w.key("A")].idle, "policy took it from its sessions"
    assert w.cache.evict(1).victims[0].version == w.key("A")

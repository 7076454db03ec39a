"""Sessions of the cache (seed 004): who may refer, from when, until when."""

from __future__ import annotations

import pytest

from lorafsm.identity import SessionKey
from lorafsm.kv import SessionCache
from lorafsm.outcomes import Code
from tests.kv.story import Story, key, tokens


def test_closing_lets_go_of_the_refs_and_keeps_the_kv():
    s = Story()
    s.run("s1", "abcd")
    assert s.refs("abcd") == (1, 0)
    assert s.close("s1") == Code.OK
    assert s.refs("abcd") == (0, 0)
    assert s.hit("abcd") == 4


def test_closing_twice_is_nothing_more():
    s = Story()
    s.run("s1", "abcd")
    assert s.close("s1") == Code.OK
    assert s.close("s1") == Code.ALREADY_CLOSED


def test_a_request_that_finishes_after_the_close_leaves_no_ref():
    s = Story()
    s.run("s1", "ab")
    stored = s.cache.insert(tokens("abcd"))
    s.close("s1")
    assert s.cache.register(key("s1"), stored.node).code == Code.SESSION_CLOSED
    assert s.refs("abcd") == (0, 0)


def test_a_request_that_arrives_after_the_close_cannot_reopen_the_session():
    """In the original it can: `ensure` opens whatever has no generation."""
    s = Story()
    s.run("s1", "ab")
    s.close("s1")
    assert s.cache.ensure(key("s1")).code == Code.SESSION_CLOSED
    assert s.run("s1", "abcd") == Code.SESSION_CLOSED


def test_a_close_before_the_first_request_counts():
    s = Story()
    assert s.close("s1") == Code.OK
    assert s.run("s1", "ab") == Code.SESSION_CLOSED


def test_a_reopened_label_is_a_new_sequence_and_the_old_one_stays_closed():
    s = Story()
    s.run("s1", "abcd")
    s.close("s1")
    assert s.run("s2", "abcd") == Code.OK
    assert s.run("s1", "abcdef") == Code.SESSION_CLOSED
    assert s.refs("abcd") == (1, 0)


def test_closed_marks_and_generations_survive_a_flush():
    """The original's generation counter restarts, and a stale request is taken for a new one."""
    s = Story()
    s.run("s1", "abcd")
    s.run("s2", "abcd")
    s.close("s1")
    s.cache.flush()
    s.check()
    assert s.hit("abcd") == 0
    assert s.run("s1", "abcd") == Code.SESSION_CLOSED
    assert s.run("s2", "abcd") == Code.OK


def test_closed_sessions_are_remembered_for_ever_and_cost_nothing():
    """The original forgets the 8193rd."""
    cache = SessionCache()
    for number in range(20_000):
        cache.open(SessionKey("e1", "o1", number))
        cache.close(SessionKey("e1", "o1", number))
    assert cache.open(SessionKey("e1", "o1", 0)).code == Code.SESSION_CLOSED
    assert cache.sessions.size == 1


def test_a_session_needs_no_open():
    s = Story()
    assert s.run("s1", "ab") == Code.OK
    assert s.refs("ab") == (1, 0)


@pytest.mark.parametrize("how", [{"aborted": True}, {"streaming": True}])
def test_aborted_and_streaming_requests_leave_no_ref(how):
    s = Story()
    assert s.run("s1", "abcd", **how) == Code.OK
    assert s.refs("abcd") == (0, 0)


def test_an_unknown_session_cannot_register():
    s = Story()
    stored = s.cache.insert(tokens("ab"))
    assert s.cache.register(key("s7"), stored.node).code == Code.NO_BINDING


def test_what_is_gone_cannot_be_registered():
    s = Story()
    s.cache.open(key("s1"))
    stored = s.cache.insert(tokens("ab"))
    assert s.evict() == ["ab"]
    refusal = s.cache.register(key("s1"), stored.node)
    assert (refusal.code, refusal.field) == (Code.NOT_RESIDENT, "node")


def test_an_empty_request_registers_nothing():
    s = Story()
    s.cache.open(key("s1"))
    stored = s.cache.insert(())
    assert s.cache.register(key("s1"), stored.node).code == Code.NOT_RESIDENT


def test_the_end_of_an_owner_ends_its_sessions_and_only_them():
    s = Story()
    s.run("s1", "ab")
    other = SessionKey("e1", "o2", 1)
    s.cache.open(other)
    s.cache.register(other, s.node("ab"))
    assert s.refs("ab") == (2, 0)
    assert s.cache.end_owner("e1", "o1") == 1
    s.check()
    assert s.refs("ab") == (1, 0)
    assert s.run("s9", "ab") == Code.SESSION_EXPIRED


@pytest.mark.parametrize(
    ("session", "field"),
    [(SessionKey("", "o1", 1), "session"), (SessionKey("e1", "o1", -1), "session"), ("s1", "session")],
)
def test_malformed_input_is_refused_by_name(session, field):
    refusal = SessionCache().open(session)
    assert (refusal.code, refusal.field) == (Code.BAD_INPUT, field)


# TTL


def test_a_session_that_nobody_closes_expires_and_its_kv_goes_before_active_kv():
    s = Story(ttl=1000)
    s.run("s1", "leaked")
    s.wait(900)
    s.run("s2", "active")
    s.hit("leaked")  # the most recent, but by nobody's session
    assert s.wait(200) == [1]
    assert s.refs("leaked") == (0, 1)
    assert s.evict() == ["leaked"]


def test_unreferenced_goes_before_expired():
    s = Story(ttl=1000)
    s.run("s1", "leaked")
    s.wait(1000)
    s.run(None, "noise")
    assert s.evict() == ["noise"]


def test_an_expired_session_that_comes_back_is_active_again():
    s = Story(ttl=1000)
    s.run("s1", "ab")
    assert s.wait(1000) == [1]
    assert s.run("s1", "abcd") == Code.OK
    assert s.refs("ab") == (1, 0)
    assert s.refs("abcd") == (1, 0)


def test_use_renews_the_ttl():
    s = Story(ttl=1000)
    s.run("s1", "ab")
    for _ in range(5):
        assert s.wait(999) == []
        s.run("s1", "ab")
    assert s.wait(1000) == [1]


def test_time_may_jump_by_any_length():
    s = Story(ttl=1000)
    s.run("s1", "ab")
    assert s.wait(10**12) == [1]
    s.run("s2", "ab")
    assert s.wait(999) == []
    assert s.wait(1) == [2]


def test_an_expired_session_without_kv_is_forgotten_not_closed():
    s = Story(ttl=1000)
    s.run("s1", "ab")
    s.wait(1000)
    assert s.evict() == ["ab"]
    assert s.cache.sessions.size == 0
    assert s.run("s1", "ab") == Code.OK


def test_memory_is_that_of_live_sessions_and_live_nodes():
    """5,000 sessions that nobody closes leave nothing: in the original, 5,000 generations and refs."""
    s = Story(ttl=1000)
    s.run(None, "prompt")
    for number in range(5000):
        s.cache.open(key(f"s{number}"), None, number)
        stored = s.cache.insert((*tokens("prompt"), 1000 + number))
        s.cache.register(key(f"s{number}"), stored.node, number)
        s.cache.tick(number)
        while s.cache.tree.used[0] > 50:
            s.cache.evict(1)
    assert s.refs("prompt")[0] <= 1001  # what fell back within one TTL, at most
    s.wait(10_000)
    s.cache.evict(44)
    s.check()
    assert s.refs("prompt") == (0, 0)
    assert s.cache.sessions.size == 0

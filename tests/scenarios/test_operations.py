"""Scenarios G: operations.  Each test is named by the scenario's number and title."""

from __future__ import annotations

from lorafsm.status import status
from tests.core.story import World, digest_of


def test_S66_rollback_to_a_resident_version():
    w = World(capacity=2).boot("A")
    w.bind_first("S_a")
    w.publish("B")
    w.bind_first("S_b")
    numbers = w.r.next_number
    assert w.rollback("A", rev=2, op="op1") == "OK"
    receipt = w.said
    assert (w.version("A"), w.version("B"), w.default, w.revision) == ("PUBLISHED", "RETIRED", "A", 3)
    assert w.r.next_number == numbers  # no attempt, no repair: nothing is transferred
    assert (w.may_dispatch("S_b"), w.may_dispatch("S_a"), w.bind_first("S_new")) == ("B", "A", "A")
    assert w.rollback("A", rev=2, op="op1") == "OK"
    assert (w.said, w.revision) == (receipt, 3)
    assert w.rollback("A", rev=1, op="op2") == "REVISION_CONFLICT"
    assert (w.said.default, w.said.revision) == (w.key("A"), 3)
    assert w.rollback("B", rev=1, op="op3") == "REVISION_CONFLICT"
    assert (w.default, w.revision) == ("A", 3)


def test_S70_who_holds_A():
    w = World(capacity=2).boot("A")
    w.publish("B")
    w.bind_first("s")
    w.claim_reclaim("A", "r1")
    w.unloaded("E1", "r1")
    w.wait(4_000)
    seen = status(w.r, w.now)
    assert (seen.default, seen.revision, seen.slots_used) == (w.key("B"), 2, 2)
    old, new = seen.versions
    assert (old.state, old.digest, old.age, old.session_refs) == ("RECLAIMING", digest_of("A"), 4_000, 0)
    assert (new.state, new.session_refs, new.oldest, new.oldest_age) == ("PUBLISHED", 1, w.session_key("s"), 4_000)
    assert [(e.engine, e.incarnation, e.state) for e in seen.engines] == [("E0", 1, "UP"), ("E1", 1, "UP")]
    (reclaim,) = seen.reclaims
    assert (reclaim.reclaim_id, reclaim.age) == ("r1", 4_000)
    assert [(u.engine, u.state) for u in reclaim.unloads] == [("E0", "ORDERED"), ("E1", "UNLOADED")]
    assert seen.next_reserve.code == "CAPACITY_ERROR"
    assert "E0" in seen.holders[0].waits_for

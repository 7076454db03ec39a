"""Scenarios B: sessions.  Each test is named by the scenario's number and title."""

from __future__ import annotations

from lorafsm.dispatch import records as guard
from lorafsm.dispatch.records import new_guard
from lorafsm.dispatch.step import dispatch_step, may_dispatch
from tests.core.story import World


def test_S23_old_mid_new():
    w = World().boot("A")
    assert w.bind_first("S_old") == "A"
    w.begin("B")
    assert w.ready("E0") == "OK"
    assert w.bind_first("S_mid") == "A"
    assert w.ready("E1") == "OK"
    assert w.commit("B") == "OK"
    assert w.bind_first("S_new") == "B"
    for _turn in range(3):
        assert [w.may_dispatch(s) for s in ("S_old", "S_mid", "S_new")] == ["A", "A", "B"]
        assert [w.bind_first(s) for s in ("S_old", "S_mid", "S_new")] == ["A", "A", "B"]
    assert (w.refs("A"), w.refs("B")) == (2, 1)


def test_S24_bind_reply_lost():
    w = World().boot("A")
    assert w.bind_first("s") == "A"  # the reply is lost
    w.publish("B")
    assert w.bind_first("s") == "A"
    assert (w.refs("A"), w.refs("B"), w.session("s")) == (1, 0, "BOUND")


def test_S25_cancelled_waiter_the_registrys_part():
    w = World().boot("A")
    assert w.bind_first("s") == "A"  # the shared task of two waiters, whose bind landed after both were cancelled
    assert w.bind_first("s") == "A"  # a later turn
    assert w.refs("A") == 1
    assert w.close_and_release("s") == "OK"
    assert (w.refs("A"), w.session("s")) == (0, "CLOSED")


def test_S26_request_without_a_version():
    w = World().boot("A")
    assert w.may_dispatch("never seen") == "NO_BINDING"
    w.open("s")
    assert w.may_dispatch("s") == "NO_BINDING"
    assert w.refs("A") == 0
    w.bind_first("s")
    assert w.may_dispatch("s") == "A"


def test_S28_close_before_bind():
    w = World().boot("A")
    assert w.close_and_release("s") == "OK"
    assert w.session("s") == "CLOSED"
    assert w.bind_first("s") == "SESSION_CLOSED"
    assert w.open("s") == "SESSION_CLOSED"
    assert (w.refs("A"), w.session("s"), w.may_dispatch("s")) == (0, "CLOSED", "SESSION_CLOSED")


def test_S29_double_close():
    w = World().boot("A")
    w.bind_first("s")
    w.bind_first("t")
    assert w.close_and_release("s") == "OK"
    assert (w.said.released, w.refs("A")) == (w.key("A"), 1)
    for _caller in range(2):
        assert w.close_and_release("s") == "ALREADY_CLOSED"
        assert (w.said.released, w.refs("A"), w.session("s")) == (None, 1, "CLOSED")


def test_S30_close_during_a_turn():
    w = World().boot("A")
    w.bind_first("s")
    w.publish("B")
    assert w.may_dispatch("s") == "A"  # a turn is in flight
    assert w.begin_close("s") == "OK"
    assert (w.may_dispatch("s"), w.refs("A")) == ("SESSION_CLOSED", 1)
    assert w.claim_reclaim("A") == "SESSION_REFS_HELD"
    assert w.close_and_release("s") == "OK"  # the turn ended
    assert (w.refs("A"), w.session("s")) == (0, "CLOSED")
    assert w.claim_reclaim("A") == "OK"


def test_S31_client_vanished():
    w = World(owner_lease=1_000).boot("A")
    w.bind_first("s")
    w.publish("B")
    w.wait(1_001)
    assert w.owner_expired() == "OK"
    assert w.alarms() == {"OWNER_EXPIRED"}
    assert (w.session("s"), w.refs("A"), w.may_dispatch("s")) == ("EXPIRED", 0, "SESSION_EXPIRED")
    assert w.heartbeat() == "SESSION_EXPIRED"
    assert w.bind_first("s") == "SESSION_EXPIRED"
    assert w.open("s") == "SESSION_EXPIRED"
    assert w.close_and_release("s") == "ALREADY_CLOSED"
    assert w.owner_expired() == "OK"
    assert (w.refs("A"), w.refs("B"), w.session("s")) == (0, 0, "EXPIRED")
    assert w.claim_reclaim("A") == "OK"


def test_S32_one_long_session_blocks_every_publication():
    w = World(capacity=2).boot("A")
    w.bind_first("s")
    w.publish("B")
    w.wait(3_600_000)
    registry = w.r
    for _attempt in range(60):
        assert w.reserve("C") == "CAPACITY_ERROR"
        blocker = w.said.blockers[0]
        assert (blocker.key, blocker.session_refs, blocker.oldest) == (w.key("A"), 1, w.session_key("s"))
        assert blocker.oldest_age == 3_600_000
    assert w.r is registry
    assert w.may_dispatch("s") == "A"  # the policy is off: nothing is forced


def test_S32_with_max_version_lag():
    w = World(capacity=2, max_version_lag=1).boot("A")
    assert w.bind_first("s") == "A"
    w.publish("B")
    assert w.may_dispatch("s") == "VERSION_RETIRED_BY_POLICY"
    assert (w.refs("A"), w.version("A")) == (0, "RETIRED")
    assert w.close_and_release("s") == "OK"
    assert w.refs("A") == 0  # its ref was released once
    w.reclaim("A")
    w.publish("C")
    assert w.default == "C"


def test_S34_fixed_retention_window_is_not_enough():
    w = World(capacity=4, engine_slots=5).boot("v1")
    assert w.bind_first("s") == "v1"
    w.publish("v2")
    w.publish("v3")
    w.publish("v4")
    w.reclaim("v2")
    w.publish("v5")
    assert w.claim_reclaim("v1") == "SESSION_REFS_HELD"
    assert (w.version("v1"), w.may_dispatch("s")) == ("RETIRED", "v1")
    assert w.routable("v1") == {"E0", "E1"}
    assert w.used == 4
    assert w.reserve("v6") == "CAPACITY_ERROR"
    assert (w.may_dispatch("s"), w.routable("v1")) == ("v1", {"E0", "E1"})


def test_S35_unknown_admission():
    w = World().boot("A")
    w.bind_first("s")
    s, binding = w.session_key("s"), w.said
    g = new_guard(w.r.epoch, "o1", margin=0)
    for event in (
        guard.LeaseRenewed(sent=0, lease=30_000),
        guard.Opened(session=s),
        guard.Bound(session=s, binding=binding),
        guard.StartAttempt(session=s, rid="r1", attempt=1, now=1),
        guard.AdmissionUnknown(session=s, rid="r1"),  # generate(A) timed out
    ):
        done = dispatch_step(g, event)
        assert done.outcome.ok
        g = done.guard
    assert may_dispatch(g, s, 2).code == "RETRY_UNSAFE"
    again = guard.StartAttempt(session=s, rid="r2", attempt=2, now=2)
    assert dispatch_step(g, again).outcome.code == "RETRY_UNSAFE"
    running = dispatch_step(g, guard.Settled(session=s, rid="r1", verdict=guard.Verdict.RUNNING)).guard
    assert not dispatch_step(running, again).outcome.ok  # one backend attempt at a time
    for verdict in (guard.Verdict.ABSENT, guard.Verdict.TERMINAL):
        settled = dispatch_step(g, guard.Settled(session=s, rid="r1", verdict=verdict)).guard
        assert dispatch_step(settled, again).outcome == binding

"""Scenarios A: publication.  Each test is named by the scenario's number and title."""

from __future__ import annotations

import pytest

from lorafsm import publisher, reclaimer
from lorafsm.orders import Begin, Cleanup, End
from tests.core.story import World, digest_of


def orders(w: World, v: str = "B") -> list[str]:
    """What the publisher with v's token would order now, by kind."""
    return [type(order).__name__ for order in publisher.next_orders(w.r, w.tokens[v], w.now)]


def test_S01_same_name_different_bytes():
    w = World().boot("A")
    w.bind_first("s")
    for state in ("PUBLISHED", "RETIRED", "RECLAIMED"):
        if state == "RETIRED":
            w.publish("B")
        if state == "RECLAIMED":
            w.close_and_release("s")
            w.reclaim("A")
        assert w.version("A") == state
        registry, used, refs, default = w.r, w.used, w.refs("A"), w.default
        assert w.reserve("A", bytes_of="dX") == "VERSION_CONFLICT"
        assert (w.version("A"), w.used, w.refs("A"), w.default) == (state, used, refs, default)
        assert w.r is registry


def test_S02_one_engine_ready_is_not_a_publication():
    w = World().boot("A")
    w.begin("B")
    assert w.ready("E0") == "OK"
    assert (w.target("B", "E0"), w.target("B", "E1"), w.version("B")) == ("READY", "PREPARED", "LOADING")
    assert w.bind_first("S_mid") == "A"
    assert w.commit("B") == "NOT_READY"
    assert w.said.engines == ("E1",)
    assert (w.default, w.revision, w.version("A"), w.version("B")) == ("A", 1, "PUBLISHED", "LOADING")


def test_S03_one_engine_rejects_the_candidate():
    w = World(capacity=2).boot("A")
    w.begin("B")
    assert w.ready("E0") == "OK"
    assert w.failed("E1", reason="LOAD_FAILED") == "OK"
    assert (w.target("B", "E0"), w.target("B", "E1")) == ("READY", "FAILED")
    assert w.bind_first("s") == "A"
    assert w.abort("B", reason="E1 LOAD_FAILED") == "OK"
    assert (w.version("B"), w.used) == ("ABORTED", 2)
    assert w.cleaned("E0") == "OK"
    assert (w.version("B"), w.used, w.target("B", "E0")) == ("ABORTED", 2, "CLEANED")
    assert w.reserve("C") == "CAPACITY_ERROR"
    assert w.cleaned("E1") == "OK"
    assert (w.version("B"), w.used, w.default, w.revision) == ("FAILED_CLEAN", 1, "A", 1)
    assert w.refs("B") == 0
    assert w.reserve("C") == "OK"


@pytest.mark.parametrize(
    ("claims", "code"),
    [
        ({"digest": digest_of("empty")}, "READY_MISMATCH"),
        ({"digest": ""}, "BAD_INPUT"),
        ({"digest": None}, "BAD_INPUT"),
    ],
)
def test_S04_success_without_weights(claims: dict, code: str):
    w = World().boot("A")
    w.begin("B")
    w.ready("E0")
    assert w.ready("E1", **claims) == code
    assert (w.version("B"), w.target("B", "E1")) == ("LOADING", "PREPARED")
    assert w.commit("B") == "NOT_READY"
    # A name in an inventory is no READY either.
    assert w.engine_up("E1", holds=[w.resident("A"), w.resident("B")]) == "OK"
    assert w.target("B", "E1") == "PREPARED"
    assert w.commit("B") == "NOT_READY"


def test_S05_commit_reply_lost_a_it_was_applied():
    w = World().boot("A")
    w.make_ready("B")
    assert w.commit("B", rev=1) == "OK"
    receipt = w.said
    assert w.commit("B", rev=1) == "OK"  # the reply was lost; the same commit again
    assert (w.said, w.said.revision, w.revision) == (receipt, 2, 2)
    assert w.abort("B") == "ALREADY_COMMITTED"
    assert w.cleaned("E0", n=2) == "STALE_ATTEMPT"
    assert (w.version("B"), w.default) == ("PUBLISHED", "B")


def test_S05_commit_reply_lost_b_the_request_was_lost():
    w = World().boot("A")
    w.make_ready("B")
    assert w.cleaned("E0") == "NOT_ABORTED"  # no cleanup before the answer
    # While the attempt is undecided it is open: protocol rule 1 says PUBLICATION_IN_PROGRESS.
    assert w.reserve("C") == "PUBLICATION_IN_PROGRESS"
    assert "Cleanup" not in orders(w)
    assert w.commit("B", rev=1) == "OK"
    assert (w.said.revision, w.revision, w.version("B")) == (2, 2, "PUBLISHED")


@pytest.mark.parametrize("all_ready", [True, False])
def test_S05_the_publisher_dies_and_its_successor_finishes(all_ready: bool):
    w = World(driver_lease=1_000).boot("A")
    w.begin("B")
    w.ready("E0")
    if all_ready:
        w.ready("E1")
    w.wait(1_000)
    assert w.takeover("B", token="successor") == "OK"
    assert w.said.all_ready is all_ready
    assert (w.commit("B") if all_ready else w.abort("B", reason="its driver died")) == "OK"
    assert w.version("B") == ("PUBLISHED" if all_ready else "ABORTED")


def test_S06_old_commit_replayed_after_retirement():
    w = World().boot("A")
    receipt = next(outcome for event, outcome in w.log if event.name == "commit")
    w.publish("B")
    for state in ("RETIRED", "RECLAIMING", "RECLAIMED"):
        if state == "RECLAIMING":
            w.claim_reclaim("A", "r1")
        if state == "RECLAIMED":
            w.unloaded("E0", "r1")
            w.unloaded("E1", "r1")
        assert w.version("A") == state
        assert w.commit("A", rev=0) == "OK"
        assert w.said == receipt
        assert (w.default, w.revision, w.version("A")) == ("B", 2, state)


def test_S08_load_call_times_out_engine_did_load():
    w = World().boot("A")
    w.reserve("B")
    w.store("B")
    assert w.prepared("E0") == "OK"
    assert w.unknown("E1") == "OK"
    assert (w.target("B", "E1"), w.version("B"), w.used) == ("UNKNOWN", "LOADING", 2)
    number = w.r.unresolved
    asked = [order for order in publisher.next_orders(w.r, w.tokens["B"], w.now) if order.engine == "E1"]
    assert asked
    assert {order.number for order in asked} == {number}  # the same attempt, whatever is asked again
    assert w.ready("E0") == "OK"
    assert w.ready("E1") == "OK"  # what the query returned
    assert (w.target("B", "E1"), w.number("B")) == ("READY", number)
    registry = w.r
    assert w.ready("E1") == "OK"  # the late reply of the first call
    assert w.r is registry
    assert w.commit("B") == "OK"


def test_S10_late_ready_of_an_old_attempt():
    w = World().boot("A")
    w.fail("B")
    old = w.number("B")
    assert w.reserve("B", buckets=1) == "OK"
    assert (w.number("B"), w.version("B")) == (old + 1, "LOADING")
    registry = w.r
    assert w.ready("E0", n=old) == "STALE_ATTEMPT"
    assert w.bucket_done("E0", 0, n=old) == "STALE_ATTEMPT"
    assert w.prepared("E0", n=old) == "STALE_ATTEMPT"
    assert w.r is registry
    assert (w.target("B", "E0"), w.target("B", "E1")) == ("RESERVED", "RESERVED")


def test_S11_engine_restarts_between_prepared_and_ready():
    w = World(engines=[])
    w.join("E0", inc=3)
    w.join("E1", inc=7)
    w.boot("A")
    w.begin("B")
    assert w.target("B", "E1") == "PREPARED"
    assert w.engine_up("E1", inc=8) == "OK"
    assert w.target("B", "E1") == "CLEANED"  # incarnation 7 is dead, and took its share with it
    assert w.ready("E1", inc=8) == "ENGINE_RESTARTED"
    assert w.ready("E1", inc=7) == "ENGINE_RESTARTED"
    assert w.ready("E0") == "OK"
    assert w.commit("B") == "MEMBERSHIP_CHANGED"
    assert w.abort("B") == "OK"
    assert w.version("B") == "ABORTED"  # E0 still needs cleaned()
    assert w.cleaned("E0") == "OK"
    assert w.version("B") == "FAILED_CLEAN"


def test_S12_engine_restarts_between_ready_and_commit():
    w = World(engines=[])
    w.join("E0", inc=3)
    w.join("E1", inc=7)
    w.boot("A")
    w.make_ready("B")
    assert w.engine_up("E1", inc=8) == "OK"
    # Protocol rule 3 names a dead incarnation MEMBERSHIP_CHANGED.
    assert w.commit("B") == "MEMBERSHIP_CHANGED"
    assert w.said.engines == ("E1",)
    assert (w.default, w.revision, w.version("B")) == ("A", 1, "LOADING")


def test_S12_engine_restarts_one_step_after_commit():
    w = World(engines=[])
    w.join("E0", inc=3)
    w.join("E1", inc=7)
    w.boot("A")
    w.publish("B")
    assert w.engine_up("E1", inc=8) == "OK"
    assert (w.default, w.revision, w.version("B")) == ("B", 2, "PUBLISHED")
    assert (w.routable("B"), w.engine("E1")) == ({"E0"}, "REPAIRING")
    w.repair("B", "E1")
    assert (w.routable("B"), w.engine("E1")) == ({"E0", "E1"}, "UP")


def test_S13_two_publishers():
    w = World(capacity=3, engine_slots=4).boot("A")
    assert w.reserve("B", token="t1") == "OK"
    assert w.reserve("C", token="t2") == "PUBLICATION_IN_PROGRESS"
    assert (w.version("C"), w.used) == (None, 2)
    assert w.reserve("B", token="t2") == "OK"
    assert (w.said.state, w.said.digest) == ("LOADING", digest_of("B"))
    for token in ("t2", w.tokens["A"]):
        assert w.commit("B", token=token) == "BAD_TOKEN"
        assert w.abort("B", token=token) == "BAD_TOKEN"
    assert publisher.next_orders(w.r, "t2", w.now) == ()
    assert (w.version("B"), w.r.attempts[w.number("B")].token) == ("LOADING", "t1")


def test_S15_duplicate_bucket():
    w = World().boot("A")
    w.reserve("B", buckets=6)
    w.prepared("E0")
    w.prepared("E1")
    for k in range(4):
        assert w.authorize(k) == "OK"
        assert w.bucket_done("E0", k) == "OK"
        if k < 3:
            assert w.bucket_done("E1", k) == "OK"
    registry = w.r
    assert w.bucket_done("E0", 3) == "OK"  # the duplicate: the stored result
    assert w.authorize(3) == "ALREADY_AUTHORIZED"  # no second collective
    assert w.bucket_done("E0", 5) == "OUT_OF_ORDER"
    assert w.bucket_done("E1", 3, seq=0) == "STALE_SEQ"
    assert w.r is registry
    assert w.bucket_done("E1", 3) == "OK"
    assert w.authorize(5) == "OUT_OF_ORDER"
    assert w.authorize(4) == "OK"
    assert w.attempt("B").authorized == 5


def test_S18_silent_engine():
    w = World().boot("A")
    w.begin("B")
    w.ready("E0")
    assert w.unknown("E1") == "OK"  # the phase deadline passed
    assert w.alarms() == {"TARGET_UNKNOWN"}
    assert "PREPARED" in next(effect.text for effect in w.effects if hasattr(effect, "text"))
    assert (w.target("B", "E1"), w.target("B", "E0"), w.version("B")) == ("UNKNOWN", "READY", "LOADING")
    assert (w.routable("A"), w.bind_first("s"), w.default) == ({"E0", "E1"}, "A", "A")
    assert not [o for o in publisher.next_orders(w.r, w.tokens["B"], w.now) if isinstance(o, Cleanup)]


def test_S19_no_remove_then_add_gap():
    w = World().boot("A")
    w.bind_first("s")
    everywhere = {"E0", "E1"}
    assert w.reserve("B") == "OK"
    assert w.routable("A") == everywhere
    for e in ("E0", "E1"):
        assert w.prepared(e) == "OK"
        assert (w.routable("A"), w.may_dispatch("s")) == (everywhere, "A")
    assert w.failed("E0", reason="load failure") == "OK"
    assert (w.routable("A"), w.may_dispatch("s")) == (everywhere, "A")
    assert w.ready("E1") == "OK"
    assert (w.routable("A"), w.routable("B")) == (everywhere, set())
    assert w.abort("B") == "OK"
    for e in ("E0", "E1"):
        assert w.cleaned(e) == "OK"
        assert (w.routable("A"), w.may_dispatch("s"), w.default) == (everywhere, "A", "A")


def test_S20_publication_must_not_abort_in_flight_work():
    w = World().boot("A")
    for n in range(32):
        w.bind_first(f"r{n}")
    seen: list[type] = []

    def look() -> None:
        seen.extend(type(o) for o in publisher.next_orders(w.r, w.tokens["B"], w.now))
        seen.extend(type(o) for o in reclaimer.next_orders(w.r, w.now))

    w.reserve("B")
    look()
    w.store("B")
    for e in ("E0", "E1"):
        w.prepared(e)
        look()
    for e in ("E0", "E1"):
        w.ready(e)
        look()
    assert w.commit("B") == "OK"
    look()
    # Begin, End and the commit itself: no order exists that pauses, flushes or aborts an engine's requests.
    assert {Begin, End} <= set(seen)
    assert {order.__name__ for order in seen} <= {"Begin", "End", "AskStatus", "Commit"}
    assert w.refs("A") == 32
    assert {w.may_dispatch(f"r{n}") for n in range(32)} == {"A"}

"""Repair: a needed version is loaded again and proved on a member that lacks it (protocol rule 15)."""

from __future__ import annotations

import pytest

from lorafsm.outcomes import RepairOrdered
from tests.core.every_event import Situation, Subject, assert_cell, cells
from tests.core.story import World, digest_of


def ordered() -> tuple[World, int]:
    """E1 restarted and a repair of A on it is ordered."""
    w = World().boot("A")
    w.restart("E1")
    assert w.order_repair("A", "E1") == "OK"
    return w, w.said.number


def situation(state: str) -> Situation:
    w, number = ordered()
    if state == "READY":
        w.repair_ready("E1", number)
    elif state == "FAILED":
        w.repair_failed("E1", number)
    elif state == "WITHDRAWN":
        w.restart("E1")
    assert w.repair_state(number) == state
    incarnation = w.r.repairs[number].incarnation
    about = Subject(w, "A", engine="E1", repair=number, incarnation=incarnation)
    if state == "WITHDRAWN":
        about = Subject(
            w, "A", engine="E1", repair=number, incarnation=incarnation, changes={"engine_up": {"incarnation": 9}}
        )
    return about, lambda: w.repair_state(number)


REPAIR = {
    "ORDERED": r"""
        OK: reserve artifact_stored commit owner_up heartbeat owner_gone recovered open bind_first begin_close \
            close_and_release engine_join engine_lost order_repair
        STALE_ATTEMPT: prepared authorize_bucket bucket_done ready target_failed target_unknown cleaned takeover
        ALREADY_COMMITTED: abort
        NOT_RETIRED: rollback claim_reclaim
        OWNER_ALIVE: owner_expired
        UNKNOWN_RECLAIM: confirm_reclaim reclaim_unknown
        OK -> WITHDRAWN: engine_up engine_dead quarantine
        NOT_DEAD: engine_remove
        OK -> READY: repair_ready
        OK -> FAILED: repair_failed
    """,
    "READY": r"""
        OK: reserve artifact_stored commit owner_up heartbeat owner_gone recovered open bind_first begin_close \
            close_and_release engine_join engine_up engine_lost engine_dead quarantine repair_ready
        STALE_ATTEMPT: prepared authorize_bucket bucket_done ready target_failed target_unknown cleaned takeover
        ALREADY_COMMITTED: abort
        NOT_RETIRED: rollback claim_reclaim
        OWNER_ALIVE: owner_expired
        UNKNOWN_RECLAIM: confirm_reclaim reclaim_unknown
        NOT_DEAD: engine_remove
        NOT_NEEDED: order_repair
        STALE_REPAIR: repair_failed
    """,
    "FAILED": r"""
        OK: reserve artifact_stored commit owner_up heartbeat owner_gone recovered open bind_first begin_close \
            close_and_release engine_join engine_up engine_lost engine_dead quarantine repair_failed
        STALE_ATTEMPT: prepared authorize_bucket bucket_done ready target_failed target_unknown cleaned takeover
        ALREADY_COMMITTED: abort
        NOT_RETIRED: rollback claim_reclaim
        OWNER_ALIVE: owner_expired
        UNKNOWN_RECLAIM: confirm_reclaim reclaim_unknown
        NOT_DEAD: engine_remove
        BACKING_OFF: order_repair
        STALE_REPAIR: repair_ready
    """,
    "WITHDRAWN": r"""
        OK: reserve artifact_stored commit owner_up heartbeat owner_gone recovered open bind_first begin_close \
            close_and_release engine_up order_repair
        STALE_ATTEMPT: prepared authorize_bucket bucket_done ready target_failed target_unknown cleaned takeover
        ALREADY_COMMITTED: abort
        NOT_RETIRED: rollback claim_reclaim
        OWNER_ALIVE: owner_expired
        UNKNOWN_RECLAIM: confirm_reclaim reclaim_unknown
        ALREADY_MEMBER: engine_join
        STALE_INCARNATION: engine_lost engine_dead quarantine
        NOT_DEAD: engine_remove
        STALE_REPAIR: repair_ready repair_failed
    """,
}


@pytest.mark.parametrize(("state", "kind", "code", "after"), cells(REPAIR))
def test_every_event_in_every_state_of_a_repair(state: str, kind: str, code: str, after: str | None):
    assert_cell(*situation(state), kind, code, after)


def test_a_repair_has_its_own_number_and_holds_no_slot():
    w, number = ordered()
    assert w.said == RepairOrdered(number, w.key("A"), "E1", 2)
    assert (number, w.r.next_number, w.used, w.engine("E1")) == (2, 3, 1, "REPAIRING")
    registry = w.r
    assert w.order_repair("A", "E1") == "OK"  # asked again, it is the same
    assert w.said.number == number
    assert w.r is registry
    assert w.repair_ready("E1", number) == "OK"
    assert (w.repair_state(number), w.engine("E1"), w.routable("A")) == ("READY", "UP", {"E0", "E1"})
    assert w.repair_ready("E1", number) == "OK"


def test_only_what_is_needed_and_missing_is_repaired():
    w = World().boot("A")
    assert w.order_repair("B", "E1") == "UNKNOWN_VERSION"
    assert w.order_repair("A", "E9") == "UNKNOWN_ENGINE"
    assert w.order_repair("A", "E1") == "NOT_NEEDED"
    w.publish("B")
    w.restart("E1")
    assert w.order_repair("A", "E1") == "NOT_NEEDED"  # RETIRED, and nobody holds it
    assert w.order_repair("B", "E1") == "OK"
    number = w.said.number
    w.engine_lost("E1")
    w.repair_failed("E1", number)
    assert w.order_repair("B", "E1") == "TARGET_UNAVAILABLE"


def test_a_retired_version_is_repaired_while_sessions_hold_it():
    w = World().boot("A")
    w.bind_first("s")
    w.publish("B")
    w.restart("E1")
    w.repair("B", "E1")
    assert w.engine("E1") == "REPAIRING"
    w.repair("A", "E1")
    assert w.engine("E1") == "UP"


def test_an_engine_that_lacks_nothing_any_more_is_up():
    w = World().boot("A")
    w.bind_first("s")
    w.publish("B")
    w.restart("E1")
    w.repair("B", "E1")
    assert w.engine("E1") == "REPAIRING"  # A has a session
    w.close_and_release("s")
    assert w.engine("E1") == "UP"


@pytest.mark.parametrize(
    "claims",
    [{"digest": digest_of("")}, {"probe_ok": False}, {"base_fingerprint": "x"}, {"key": World().key("B")}],
)
def test_a_repair_needs_the_same_proof_as_a_publication(claims: dict):
    w, number = ordered()
    assert w.repair_ready("E1", number, **claims) == "READY_MISMATCH"
    assert (w.repair_state(number), w.routable("A")) == ("ORDERED", {"E0"})


def test_an_answer_counts_under_its_number_engine_and_incarnation():
    w, number = ordered()
    for tell in (w.repair_ready, w.repair_failed):
        assert tell("E1", 99) == "STALE_REPAIR"
        assert tell("E1", 1) == "STALE_REPAIR"  # the number of a publication
        assert tell("E0", number) == "STALE_REPAIR"
        assert tell("E1", number, inc=1) == "ENGINE_RESTARTED"
        assert tell("E1", number, inc=3) == "ENGINE_RESTARTED"
    assert w.repair_state(number) == "ORDERED"


def test_a_repair_is_no_attempt_and_an_attempt_no_repair():
    w, number = ordered()
    assert w.ready("E1", n=number) == "STALE_ATTEMPT"
    assert w.cleaned("E1", n=number) == "STALE_ATTEMPT"


def test_a_repairs_ready_that_a_later_inventory_contradicts_is_stale():
    w, number = ordered()
    w.engine_up("E1", seq=90)
    assert w.repair_ready("E1", number, seq=80) == "STALE_SEQ"
    assert w.routable("A") == {"E0"}
    assert w.repair_ready("E1", number, seq=91) == "OK"


def test_a_failed_repair_backs_off_twice_as_long_each_time_and_the_third_quarantines():
    w, number = ordered()
    assert w.repair_failed("E1", number) == "OK"
    assert (w.repair_state(number), w.alarms()) == ("FAILED", {"REPAIR_FAILED"})
    assert w.repair_failed("E1", number) == "OK"  # a duplicate counts once
    w.wait(999)
    assert w.order_repair("A", "E1") == "BACKING_OFF"
    w.wait(1)
    assert w.order_repair("A", "E1") == "OK"
    w.repair_failed("E1", w.said.number)
    w.wait(1_999)
    assert w.order_repair("A", "E1") == "BACKING_OFF"
    w.wait(1)
    assert w.order_repair("A", "E1") == "OK"
    w.repair_failed("E1", w.said.number)
    assert (w.engine("E1"), w.used, w.routable("A")) == ("QUARANTINED", 1, {"E0"})
    w.restart("E1")
    assert w.order_repair("A", "E1") == "OK"


def test_a_failure_to_load_what_nobody_needs_says_nothing_about_the_engine():
    w = World(repair_limit=1).boot("A")
    w.bind_first("s")
    w.publish("B")
    w.restart("E1")
    w.repair("B", "E1")
    w.order_repair("A", "E1")
    number = w.said.number
    w.close_and_release("s")
    assert w.repair_failed("E1", number) == "OK"
    assert (w.repair_state(number), w.engine("E1")) == ("FAILED", "UP")


def test_a_success_forgets_the_failures_before_it():
    w, number = ordered()
    w.repair_failed("E1", number)
    w.wait(1_000)
    w.repair("A", "E1")
    w.engine_up("E1")
    assert w.order_repair("A", "E1") == "OK"
    assert w.r.engines["E1"].repair_failures == 0


def test_without_the_bytes_nothing_can_be_repaired():
    w = World(require_artifact=False)
    w.reserve("A")
    for e in ("E0", "E1"):
        w.prepared(e)
        w.ready(e)
    w.commit("A")
    w.restart("E1")
    assert w.order_repair("A", "E1") == "ARTIFACT_MISSING"
    w.store("A")
    assert w.order_repair("A", "E1") == "OK"


def test_a_quarantine_withdraws_what_was_ordered():
    w, number = ordered()
    w.quarantine("E1")
    assert w.repair_state(number) == "WITHDRAWN"
    assert w.repair_ready("E1", number) == "STALE_REPAIR"
    assert w.repair_failed("E1", number) == "STALE_REPAIR"
    assert w.routable("A") == {"E0"}


def test_a_ready_that_comes_while_the_engine_is_silent_counts_when_it_is_back():
    w, number = ordered()
    w.engine_lost("E1")
    assert w.repair_ready("E1", number) == "OK"
    assert w.routable("A") == {"E0"}
    w.engine_up("E1", holds=[w.resident("A", n=number)])
    assert (w.engine("E1"), w.routable("A")) == ("UP", {"E0", "E1"})

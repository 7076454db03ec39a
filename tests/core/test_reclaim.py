"""Reclaim: from "no session can need it" to "no engine holds it" (RFC 5, protocol rules 11, 12, 16)."""

from __future__ import annotations

import pytest

from lorafsm.outcomes import ReclaimOrdered
from tests.core.every_event import Situation, Subject, assert_cell, cells
from tests.core.story import World


def retired() -> World:
    """A is RETIRED and nobody holds it; B is the default."""
    w = World().boot("A")
    w.publish("B")
    return w


def claimed() -> World:
    w = retired()
    assert w.claim_reclaim("A", "r1") == "OK"
    return w


def reclaim_situation(state: str) -> Situation:
    """The reclaim r1 of A; E0 is the engine on which something is left to do."""
    w = retired() if state == "none" else claimed()
    if state != "none":
        w.unloaded("E1", "r1")
    if state == "DONE":
        w.unloaded("E0", "r1")
    return Subject(w, "A", reclaim="r1"), lambda: w.r.reclaims["r1"].state if w.r.reclaims else None


RECLAIM = {
    "none": r"""
        OK: reserve artifact_stored commit rollback owner_up heartbeat owner_gone recovered open bind_first \
            begin_close close_and_release engine_join engine_up engine_lost engine_dead quarantine
        STALE_ATTEMPT: prepared authorize_bucket bucket_done ready target_failed target_unknown cleaned takeover
        ALREADY_COMMITTED: abort
        OWNER_ALIVE: owner_expired
        OK -> OPEN: claim_reclaim
        UNKNOWN_RECLAIM: confirm_reclaim reclaim_unknown
        NOT_DEAD: engine_remove
        NOT_NEEDED: order_repair
        STALE_REPAIR: repair_ready repair_failed
    """,
    "OPEN": r"""
        OK: reserve artifact_stored commit owner_up heartbeat owner_gone recovered open bind_first begin_close \
            close_and_release claim_reclaim reclaim_unknown engine_join engine_lost quarantine
        STALE_ATTEMPT: prepared authorize_bucket bucket_done ready target_failed target_unknown cleaned takeover
        ALREADY_COMMITTED: abort
        VERSION_GONE: rollback order_repair
        OWNER_ALIVE: owner_expired
        OK -> DONE: confirm_reclaim engine_up engine_dead
        NOT_DEAD: engine_remove
        STALE_REPAIR: repair_ready repair_failed
    """,
    "DONE": r"""
        OK: reserve artifact_stored commit owner_up heartbeat owner_gone recovered open bind_first begin_close \
            close_and_release claim_reclaim confirm_reclaim reclaim_unknown engine_join engine_up engine_lost \
            engine_dead quarantine
        STALE_ATTEMPT: prepared authorize_bucket bucket_done ready target_failed target_unknown cleaned takeover
        ALREADY_COMMITTED: abort
        VERSION_GONE: rollback order_repair
        OWNER_ALIVE: owner_expired
        NOT_DEAD: engine_remove
        STALE_REPAIR: repair_ready repair_failed
    """,
}


@pytest.mark.parametrize(("state", "kind", "code", "after"), cells(RECLAIM))
def test_every_event_in_every_state_of_a_reclaim(state: str, kind: str, code: str, after: str | None):
    assert_cell(*reclaim_situation(state), kind, code, after)


def unload_situation(state: str) -> Situation:
    """E0's share of a reclaim that E1 has not confirmed either."""
    w = claimed()
    if state == "UNKNOWN":
        w.reclaim_unknown("E0", "r1")
    elif state == "UNLOADED":
        w.unloaded("E0", "r1")
    assert w.unload("A", "E0") == state
    return Subject(w, "A", reclaim="r1"), lambda: w.unload("A", "E0")


UNLOAD = {
    "ORDERED": r"""
        OK: reserve artifact_stored commit owner_up heartbeat owner_gone recovered open bind_first begin_close \
            close_and_release claim_reclaim engine_join engine_lost quarantine
        STALE_ATTEMPT: prepared authorize_bucket bucket_done ready target_failed target_unknown cleaned takeover
        ALREADY_COMMITTED: abort
        VERSION_GONE: rollback order_repair
        OWNER_ALIVE: owner_expired
        OK -> UNLOADED: confirm_reclaim engine_up engine_dead
        OK -> UNKNOWN: reclaim_unknown
        NOT_DEAD: engine_remove
        STALE_REPAIR: repair_ready repair_failed
    """,
    "UNKNOWN": r"""
        OK: reserve artifact_stored commit owner_up heartbeat owner_gone recovered open bind_first begin_close \
            close_and_release claim_reclaim reclaim_unknown engine_join engine_lost quarantine
        STALE_ATTEMPT: prepared authorize_bucket bucket_done ready target_failed target_unknown cleaned takeover
        ALREADY_COMMITTED: abort
        VERSION_GONE: rollback order_repair
        OWNER_ALIVE: owner_expired
        OK -> UNLOADED: confirm_reclaim engine_up engine_dead
        NOT_DEAD: engine_remove
        STALE_REPAIR: repair_ready repair_failed
    """,
    "UNLOADED": r"""
        OK: reserve artifact_stored commit owner_up heartbeat owner_gone recovered open bind_first begin_close \
            close_and_release claim_reclaim confirm_reclaim reclaim_unknown engine_join engine_up engine_lost \
            engine_dead quarantine
        STALE_ATTEMPT: prepared authorize_bucket bucket_done ready target_failed target_unknown cleaned takeover
        ALREADY_COMMITTED: abort
        VERSION_GONE: rollback order_repair
        OWNER_ALIVE: owner_expired
        NOT_DEAD: engine_remove
        STALE_REPAIR: repair_ready repair_failed
    """,
}


@pytest.mark.parametrize(("state", "kind", "code", "after"), cells(UNLOAD))
def test_every_event_in_every_state_of_an_unload(state: str, kind: str, code: str, after: str | None):
    assert_cell(*unload_situation(state), kind, code, after)


# Claim, rule 11


def test_only_a_retired_version_without_refs_is_reclaimed():
    w = World().boot("A")
    assert w.claim_reclaim("A") == "NOT_RETIRED"
    assert w.claim_reclaim("B") == "UNKNOWN_VERSION"
    w.bind_first("s")
    w.wait(300)
    w.bind_first("t")
    w.publish("B")
    w.wait(200)
    assert w.claim_reclaim("A") == "SESSION_REFS_HELD"
    (held,) = w.said.blockers
    assert (held.session_refs, held.oldest, held.oldest_age) == (2, w.session_key("s"), 500)
    w.close_and_release("s")
    assert w.claim_reclaim("A") == "SESSION_REFS_HELD"
    (held,) = w.said.blockers
    assert (held.session_refs, held.oldest, held.oldest_age) == (1, w.session_key("t"), 200)
    w.close_and_release("t")
    assert w.claim_reclaim("A", "r1") == "OK"
    assert w.said == ReclaimOrdered("r1", w.key("A"), (("E0", 1), ("E1", 1)))
    assert (w.version("A"), w.used, w.wakes()) == ("RECLAIMING", 2, {"reclaimer"})


def test_a_second_claim_returns_the_same_reclaim_for_ever():
    w = claimed()
    receipt = w.said
    registry = w.r
    assert w.claim_reclaim("A", "another-reclaimer") == "OK"
    assert w.said == receipt
    assert w.r is registry
    w.unloaded("E0", "r1")
    w.unloaded("E1", "r1")
    assert w.claim_reclaim("A", "r3") == "OK"
    assert w.said == receipt


def test_an_id_reclaims_one_version():
    w = claimed()
    w.unloaded("E0", "r1")
    w.unloaded("E1", "r1")
    w.publish("C")
    assert w.claim_reclaim("B", "r1") == "OPERATION_CONFLICT"
    assert w.said.field == "reclaim_id"
    assert w.version("B") == "RETIRED"


def test_a_reclaimed_version_is_gone_at_once():
    w = claimed()
    assert w.routable("A") == set()
    assert w.rollback("A") == "VERSION_GONE"
    assert w.order_repair("A", "E0") == "VERSION_GONE"


def test_every_incarnation_that_is_not_proved_dead_must_confirm():
    w = World(engines=["E0", "E1", "E2", "E3"]).boot("A")
    w.publish("B")
    w.engine_lost("E1")
    w.quarantine("E2")
    w.engine_dead("E3")
    w.join("E4")  # holds nothing, but an order may be on its way to it
    w.claim_reclaim("A", "r1")
    assert w.said.targets == (("E0", 1), ("E1", 1), ("E2", 1), ("E4", 1))


def test_pending_repairs_of_the_version_are_withdrawn():
    w = World().boot("A")
    w.bind_first("s")
    w.publish("B")
    w.restart("E1")
    w.repair("B", "E1")
    w.order_repair("A", "E1")
    number = w.said.number
    w.close_and_release("s")
    w.claim_reclaim("A", "r1")
    assert (w.repair_state(number), dict(w.r.engines["E1"].repairs)) == ("WITHDRAWN", {})
    assert w.repair_ready("E1", number) == "STALE_REPAIR"
    assert w.key("A") not in w.r.engines["E1"].residents


def test_a_fleet_that_is_all_dead_has_nothing_to_confirm():
    w = retired()
    w.engine_dead("E0")
    w.engine_dead("E1")
    assert w.claim_reclaim("A", "r1") == "OK"
    assert (w.version("A"), w.used) == ("RECLAIMED", 1)


# Confirmation, rule 12


def test_the_slot_is_free_when_all_have_confirmed():
    w = claimed()
    assert w.unloaded("E0", "r1") == "OK"
    assert (w.version("A"), w.used, w.unload("A", "E0"), w.unload("A", "E1")) == (
        "RECLAIMING",
        2,
        "UNLOADED",
        "ORDERED",
    )
    assert w.unloaded("E0", "r1") == "OK"
    assert w.used == 2
    assert w.unloaded("E1", "r1") == "OK"
    assert (w.version("A"), w.used, w.wakes()) == ("RECLAIMED", 1, {"publisher", "reclaimer"})
    registry = w.r
    assert w.unloaded("E1", "r1") == "OK"
    assert w.r is registry


def test_a_receipt_must_show_the_absence():
    w = claimed()
    assert w.unloaded("E0", "r1", absent=False) == "NOT_ABSENT"
    assert w.said.engines == ("E0",)
    assert w.unload("A", "E0") == "ORDERED"


def test_a_receipt_counts_under_its_id_engine_and_incarnation():
    w = claimed()
    for tell in (w.unloaded, w.reclaim_unknown):
        assert tell("E0", "r9") == "UNKNOWN_RECLAIM"
        assert tell("E9", "r1") == "UNKNOWN_ENGINE"
        assert tell("E0", "r1", inc=2) == "STALE_INCARNATION"
    assert (w.unload("A", "E0"), w.unload("A", "E1")) == ("ORDERED", "ORDERED")


def test_a_receipt_that_a_later_inventory_contradicts_frees_nothing():
    w = claimed()
    w.engine_up("E0", seq=90, holds=[w.resident("A"), w.resident("B")])
    assert w.unloaded("E0", "r1", seq=80) == "STALE_SEQ"
    assert w.unload("A", "E0") == "ORDERED"
    assert w.unloaded("E0", "r1", seq=91) == "OK"


def test_a_receipt_older_than_an_inventory_that_lacks_the_version_confirms():
    w = claimed()
    w.engine_up("E0", seq=90, holds=[w.resident("B")])
    assert w.unload("A", "E0") == "ORDERED"  # an inventory is no receipt: a load may be under way (rule 13)
    assert w.unloaded("E0", "r1", seq=80) == "OK"


def test_unknown_holds_the_slot_and_leaves_by_a_confirmed_repeat():
    w = claimed()
    w.unloaded("E0", "r1")
    w.wait(5_000)
    assert w.reclaim_unknown("E1", "r1") == "OK"
    assert (w.unload("A", "E1"), w.alarms(), w.used) == ("UNKNOWN", {"RECLAIM_STUCK"}, 2)
    registry = w.r
    assert w.reclaim_unknown("E1", "r1") == "OK"
    assert w.reclaim_unknown("E0", "r1") == "OK"
    assert w.r is registry
    assert w.unloaded("E1", "r1") == "OK"
    assert w.version("A") == "RECLAIMED"


@pytest.mark.parametrize("before", ["ORDERED", "UNKNOWN"])
@pytest.mark.parametrize("end", ["restart", "dead"])
def test_a_dead_incarnation_holds_nothing(before: str, end: str):
    w = claimed()
    w.unloaded("E0", "r1")
    if before == "UNKNOWN":
        w.reclaim_unknown("E1", "r1")
    assert (w.restart("E1") if end == "restart" else w.engine_dead("E1")) == "OK"
    assert (w.version("A"), w.used) == ("RECLAIMED", 1)
    assert w.unloaded("E1", "r1", inc=1) == "OK"  # its late receipt
    assert w.version("A") == "RECLAIMED"


@pytest.mark.parametrize("before", ["ORDERED", "UNKNOWN"])
def test_a_new_incarnation_that_lists_the_version_gets_the_order_again_under_the_same_id(before: str):
    w = claimed()
    w.unloaded("E0", "r1")
    if before == "UNKNOWN":
        w.reclaim_unknown("E1", "r1")
    w.restart("E1", holds=[w.resident("A")])
    assert (w.version("A"), w.unload("A", "E1"), w.used) == ("RECLAIMING", "ORDERED", 2)
    assert w.unloaded("E1", "r1", inc=1) == "STALE_INCARNATION"
    assert w.unloaded("E1", "r1", inc=2) == "OK"
    assert w.version("A") == "RECLAIMED"


def test_a_version_that_an_engine_lists_after_its_receipt_is_a_stray():
    w = claimed()
    w.unloaded("E0", "r1")
    w.engine_up("E0", holds=[w.resident("A"), w.resident("B")])
    assert w.version("A") == "RECLAIMING"  # E1 has not confirmed
    assert w.strays("E0") == {w.r.versions[w.key("A")].lora_name}


@pytest.mark.parametrize("back", ["restart", "join"])
def test_a_successor_of_a_dead_engine_that_lists_the_version_holds_a_stray(back: str):
    w = claimed()
    w.engine_dead("E0")
    assert w.unload("A", "E0") == "UNLOADED"
    if back == "restart":
        w.restart("E0", holds=[w.resident("A")])
    else:
        w.engine_remove("E0")
        w.join("E0", inc=2, holds=[w.resident("A")])
    assert w.version("A") == "RECLAIMING"  # E1 has not confirmed
    assert w.strays("E0") == {w.r.versions[w.key("A")].lora_name}


def test_a_version_that_is_listed_after_the_reclaim_is_a_stray():
    w = retired()
    w.reclaim("A")
    w.engine_up("E0", holds=[w.resident("A"), w.resident("B")])
    assert w.strays("E0") == {w.r.versions[w.key("A")].lora_name}
    w.engine_up("E0", holds=[w.resident("B")])
    assert w.strays("E0") == set()


def test_a_reclaim_does_not_delay_a_publication():
    w = World(capacity=3, engine_slots=4).boot("A")
    w.publish("B")
    w.claim_reclaim("A", "r1")
    w.publish("C")
    assert (w.default, w.version("A")) == ("C", "RECLAIMING")

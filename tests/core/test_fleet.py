"""Engines that join, fall silent, restart, die and leave; strays (protocol rules 14-16)."""

from __future__ import annotations

import pytest

from lorafsm.records import MAX_ENGINES, Resident
from tests.core.every_event import Situation, Subject, assert_cell, cells
from tests.core.story import World


def situation(state: str) -> Situation:
    """E0 in this state; its `engine_up` is an inventory of its live incarnation that lists all that it holds."""
    w = World(engines=["E1"] if state == "unknown" else ["E0", "E1"]).boot("A")
    if state == "LOST":
        w.engine_lost("E0")
    elif state == "REPAIRING":
        w.restart("E0")
    elif state == "QUARANTINED":
        w.quarantine("E0")
    elif state in ("DEAD", "REMOVED"):
        w.engine_dead("E0")
    if state == "REMOVED":
        w.engine_remove("E0")
    repair = 99
    if state == "REPAIRING":
        w.order_repair("A", "E0")
        repair = w.said.number
    inc = w.incarnations.get("E0", 1)
    holds = frozenset() if state == "REPAIRING" else frozenset({w.resident("A")})
    changes = {"engine_up": {"incarnation": inc, "residents": holds}, "engine_join": {"incarnation": inc + 1}}
    assert "E0" not in w.r.engines or w.engine("E0") == state
    about = Subject(w, "A", repair=repair, changes=changes)
    return about, lambda: w.engine("E0") if "E0" in w.r.engines else None


ENGINE = {
    "unknown": r"""
        OK: reserve artifact_stored commit owner_up heartbeat owner_gone recovered open bind_first begin_close \
            close_and_release
        STALE_ATTEMPT: prepared authorize_bucket bucket_done ready target_failed target_unknown cleaned takeover
        ALREADY_COMMITTED: abort
        NOT_RETIRED: rollback claim_reclaim
        OWNER_ALIVE: owner_expired
        UNKNOWN_RECLAIM: confirm_reclaim reclaim_unknown
        OK -> REPAIRING: engine_join
        UNKNOWN_ENGINE: engine_up engine_lost engine_dead engine_remove quarantine order_repair
        STALE_REPAIR: repair_ready repair_failed
    """,
    "UP": r"""
        OK: reserve artifact_stored commit owner_up heartbeat owner_gone recovered open bind_first begin_close \
            close_and_release engine_up
        STALE_ATTEMPT: prepared authorize_bucket bucket_done ready target_failed target_unknown cleaned takeover
        ALREADY_COMMITTED: abort
        NOT_RETIRED: rollback claim_reclaim
        OWNER_ALIVE: owner_expired
        UNKNOWN_RECLAIM: confirm_reclaim reclaim_unknown
        ALREADY_MEMBER: engine_join
        OK -> LOST: engine_lost
        OK -> DEAD: engine_dead
        NOT_DEAD: engine_remove
        OK -> QUARANTINED: quarantine
        NOT_NEEDED: order_repair
        STALE_REPAIR: repair_ready repair_failed
    """,
    "LOST": r"""
        OK: reserve artifact_stored commit owner_up heartbeat owner_gone recovered open bind_first begin_close \
            close_and_release engine_lost
        STALE_ATTEMPT: prepared authorize_bucket bucket_done ready target_failed target_unknown cleaned takeover
        ALREADY_COMMITTED: abort
        NOT_RETIRED: rollback claim_reclaim
        OWNER_ALIVE: owner_expired
        UNKNOWN_RECLAIM: confirm_reclaim reclaim_unknown
        ALREADY_MEMBER: engine_join
        OK -> UP: engine_up
        OK -> DEAD: engine_dead
        NOT_DEAD: engine_remove
        OK -> QUARANTINED: quarantine
        TARGET_UNAVAILABLE: order_repair
        STALE_REPAIR: repair_ready repair_failed
    """,
    "REPAIRING": r"""
        OK: reserve artifact_stored commit owner_up heartbeat owner_gone recovered open bind_first begin_close \
            close_and_release engine_up order_repair repair_failed
        STALE_ATTEMPT: prepared authorize_bucket bucket_done ready target_failed target_unknown cleaned takeover
        ALREADY_COMMITTED: abort
        NOT_RETIRED: rollback claim_reclaim
        OWNER_ALIVE: owner_expired
        UNKNOWN_RECLAIM: confirm_reclaim reclaim_unknown
        ALREADY_MEMBER: engine_join
        OK -> LOST: engine_lost
        OK -> DEAD: engine_dead
        NOT_DEAD: engine_remove
        OK -> QUARANTINED: quarantine
        OK -> UP: repair_ready
    """,
    "QUARANTINED": r"""
        OK: reserve artifact_stored commit owner_up heartbeat owner_gone recovered open bind_first begin_close \
            close_and_release engine_up engine_lost quarantine
        STALE_ATTEMPT: prepared authorize_bucket bucket_done ready target_failed target_unknown cleaned takeover
        ALREADY_COMMITTED: abort
        NOT_RETIRED: rollback claim_reclaim
        OWNER_ALIVE: owner_expired
        UNKNOWN_RECLAIM: confirm_reclaim reclaim_unknown
        ALREADY_MEMBER: engine_join
        OK -> DEAD: engine_dead
        NOT_DEAD: engine_remove
        TARGET_UNAVAILABLE: order_repair
        STALE_REPAIR: repair_ready repair_failed
    """,
    "DEAD": r"""
        OK: reserve artifact_stored commit owner_up heartbeat owner_gone recovered open bind_first begin_close \
            close_and_release engine_lost engine_dead quarantine
        STALE_ATTEMPT: prepared authorize_bucket bucket_done ready target_failed target_unknown cleaned takeover
        ALREADY_COMMITTED: abort
        NOT_RETIRED: rollback claim_reclaim
        OWNER_ALIVE: owner_expired
        UNKNOWN_RECLAIM: confirm_reclaim reclaim_unknown
        ALREADY_MEMBER: engine_join
        STALE_INCARNATION: engine_up
        OK -> REMOVED: engine_remove
        TARGET_UNAVAILABLE: order_repair
        STALE_REPAIR: repair_ready repair_failed
    """,
    "REMOVED": r"""
        OK: reserve artifact_stored commit owner_up heartbeat owner_gone recovered open bind_first begin_close \
            close_and_release engine_remove
        STALE_ATTEMPT: prepared authorize_bucket bucket_done ready target_failed target_unknown cleaned takeover
        ALREADY_COMMITTED: abort
        NOT_RETIRED: rollback claim_reclaim
        OWNER_ALIVE: owner_expired
        UNKNOWN_RECLAIM: confirm_reclaim reclaim_unknown
        OK -> REPAIRING: engine_join
        UNKNOWN_ENGINE: engine_up engine_lost engine_dead quarantine order_repair
        STALE_REPAIR: repair_ready repair_failed
    """,
}


@pytest.mark.parametrize(("state", "kind", "code", "after"), cells(ENGINE))
def test_every_event_in_every_state_of_an_engine(state: str, kind: str, code: str, after: str | None):
    assert_cell(*situation(state), kind, code, after)


@pytest.mark.parametrize(
    ("state", "code", "after"),
    [
        ("unknown", "UNKNOWN_ENGINE", None),
        ("UP", "OK", "REPAIRING"),
        ("LOST", "OK", "REPAIRING"),
        ("REPAIRING", "OK", "REPAIRING"),
        ("QUARANTINED", "OK", "REPAIRING"),
        ("DEAD", "OK", "REPAIRING"),
        ("REMOVED", "UNKNOWN_ENGINE", "REMOVED"),
    ],
)
def test_a_new_incarnation_in_every_state_of_an_engine(state: str, code: str, after: str | None):
    about, state_of = situation(state)
    assert about.w.engine_up("E0", inc=7) == code
    assert state_of() == after


# Members


def test_a_member_joins_once():
    w = World()
    registry = w.r
    assert w.join("E0") == "OK"
    assert w.r is registry
    assert w.join("E0", inc=2) == "ALREADY_MEMBER"
    w.engine_lost("E0")
    assert w.join("E0") == "ALREADY_MEMBER"


def test_a_removed_member_joins_again_as_a_new_process_only():
    w = World()
    assert w.engine_remove("E9") == "UNKNOWN_ENGINE"
    assert w.engine_remove("E0") == "NOT_DEAD"
    w.engine_dead("E0")
    assert w.engine_remove("E0") == "OK"
    assert w.engine_remove("E0") == "OK"
    assert w.join("E0", inc=1) == "STALE_INCARNATION"
    assert w.join("E0", inc=2) == "OK"
    assert w.engine("E0") == "UP"


def test_a_fleet_has_an_upper_size():
    w = World(engines=[f"E{n}" for n in range(MAX_ENGINES)])
    assert w.join("one-more") == "FLEET_FULL"
    w.engine_dead("E0")
    assert w.join("one-more") == "FLEET_FULL"
    w.engine_remove("E0")
    assert w.join("one-more") == "OK"


def test_a_member_has_the_deployments_base_model():
    w = World(engines=[], base_fingerprint="base-1")
    assert w.join("E0", fp="base-2") == "BASE_MISMATCH"
    assert w.said.field == "base_fingerprint"
    w.join("E0", fp="base-1")
    assert w.engine_up("E0", fp="base-2") == "BASE_MISMATCH"
    assert w.engine_up("E0", inc=2, fp="base-2") == "BASE_MISMATCH"
    assert w.r.engines["E0"].incarnation == 1


# Silence, death, restart (rule 14)


def test_silence_concludes_nothing():
    w = World().boot("A")
    w.bind_first("s")
    assert w.engine_lost("E1") == "OK"
    assert (w.engine("E1"), w.alarms(), w.routable("A")) == ("LOST", {"ENGINE_LOST"}, {"E0"})
    assert w.may_dispatch("s") == "A"
    assert w.key("A") in w.r.engines["E1"].residents
    assert w.engine_up("E1", holds=[w.resident("A")]) == "OK"
    assert (w.engine("E1"), w.routable("A")) == ("UP", {"E0", "E1"})


def test_an_engine_that_comes_back_without_a_version_is_not_routable_for_it():
    w = World().boot("A")
    w.engine_lost("E1")
    w.engine_up("E1")
    assert (w.engine("E1"), w.routable("A")) == ("REPAIRING", {"E0"})


def test_an_older_inventory_changes_nothing():
    w = World().boot("A")
    w.engine_up("E1", seq=90, holds=[w.resident("A")])
    assert w.engine_up("E1", seq=89) == "STALE_SEQ"
    assert w.said.field == "seq"
    assert w.routable("A") == {"E0", "E1"}
    w.begin("B")
    w.ready("E1", seq=95)
    assert w.engine_up("E1", seq=94, holds=[w.resident("A")]) == "STALE_SEQ"
    assert w.target("B", "E1") == "READY"


def test_a_dead_incarnation_is_never_heard_again():
    w = World().boot("A")
    assert w.engine_dead("E1") == "OK"
    assert (w.engine("E1"), w.alarms(), w.routable("A")) == ("DEAD", {"ENGINE_DEAD"}, {"E0"})
    assert w.engine_up("E1", inc=1, holds=[w.resident("A")]) == "STALE_INCARNATION"
    assert w.engine_dead("E1") == "OK"
    assert w.engine_lost("E1") == "OK"
    assert w.engine("E1") == "DEAD"
    assert w.restart("E1") == "OK"
    assert w.engine("E1") == "REPAIRING"
    for verb in (w.engine_up, w.engine_dead, w.engine_lost, w.quarantine):
        assert verb("E1", inc=1) == "STALE_INCARNATION"
    for verb in (w.engine_dead, w.engine_lost, w.quarantine):
        assert verb("E1", inc=3) == "STALE_INCARNATION"


def test_a_restart_fences_all_that_belonged_to_the_old_process():
    w = World(capacity=3, engine_slots=4).boot("A")
    w.bind_first("s")
    w.publish("B")
    w.engine_up("E1", holds=[w.resident("A")])  # B is lost there
    w.order_repair("B", "E1")
    repair = w.said.number
    w.begin("C")
    assert w.restart("E1") == "OK"
    assert w.alarms() == {"ENGINE_RESTARTED"}
    assert w.target("C", "E1") == "CLEANED"
    assert w.repair_state(repair) == "WITHDRAWN"
    assert w.repair_ready("E1", repair, inc=1) == "STALE_REPAIR"
    assert (w.routable("A"), w.routable("B")) == ({"E0"}, {"E0"})
    assert dict(w.r.engines["E1"].residents) == {}


def test_nothing_is_adopted_by_name_alone():
    w = World().boot("A")
    w.restart("E1", holds=[w.resident("A")])
    assert (w.engine("E1"), w.routable("A")) == ("REPAIRING", {"E0"})


def test_what_a_new_process_lists_under_an_old_number_is_a_stray():
    w = World().boot("A")
    w.restart("E1", holds=[w.resident("A")])  # no order of number 1 was ever addressed to this process
    assert w.strays("E1") == {w.r.versions[w.key("A")].lora_name}
    assert w.order_repair("A", "E1") == "NOT_ABSENT"


def test_what_a_joining_engine_lists_is_a_stray():
    w = World().boot("A")
    w.join("E2", holds=[w.resident("A")])
    assert w.routable("A") == {"E0", "E1"}
    assert w.strays("E2") == {w.r.versions[w.key("A")].lora_name}


def test_a_leftover_of_an_aborted_attempt_on_an_engine_that_is_clean_is_a_stray():
    w = World().boot("A")
    w.make_ready("B")
    w.abort("B")
    w.cleaned("E0")
    w.engine_up("E0", holds=[w.resident("A"), w.resident("B")])
    assert w.version("B") == "ABORTED"  # E1 has not confirmed
    assert w.strays("E0") == {w.r.versions[w.key("B")].lora_name}


# Quarantine


def test_a_quarantined_engine_serves_nothing_until_it_is_a_new_process():
    w = World().boot("A")
    assert w.quarantine("E1") == "OK"
    assert w.quarantine("E1") == "OK"
    assert (w.engine("E1"), w.routable("A")) == ("QUARANTINED", {"E0"})
    w.engine_up("E1", holds=[w.resident("A")])
    assert w.engine("E1") == "QUARANTINED"
    assert w.order_repair("A", "E1") == "TARGET_UNAVAILABLE"
    w.restart("E1")
    w.repair("A", "E1")
    assert (w.engine("E1"), w.routable("A")) == ("UP", {"E0", "E1"})


def test_who_is_gone_cannot_be_quarantined():
    w = World()
    assert w.quarantine("E9") == "UNKNOWN_ENGINE"
    w.engine_dead("E0")
    assert w.quarantine("E0", inc=2) == "STALE_INCARNATION"
    registry = w.r
    assert w.quarantine("E0") == "OK"  # a dead process serves nothing
    assert w.r is registry
    w.engine_remove("E0")
    assert w.quarantine("E0") == "UNKNOWN_ENGINE"


# Strays (rule 15)


def test_managed_names_that_should_not_be_there_are_strays():
    w = World().boot("A")
    w.engine_up("E0", holds=[w.resident("A")], foreign=["relax_policy_lora@e0-4-0123456789ab", "somebody-elses"])
    assert w.strays("E0") == {"relax_policy_lora@e0-4-0123456789ab"}
    assert w.routable("A") == {"E0", "E1"}
    w.engine_up("E0", holds=[w.resident("A")])
    assert w.strays("E0") == set()


def test_a_resident_with_other_bytes_or_of_a_finished_number_is_a_stray():
    w = World().boot("A")
    w.fail("B")
    w.begin("B")
    w.engine_up("E0", holds=[w.resident("A"), w.resident("B", n=2)])
    assert w.strays("E0") == {w.r.versions[w.key("B")].lora_name}
    w.engine_up("E0", holds=[w.resident("A"), w.resident("B")])
    assert w.strays("E0") == set()


def test_a_stray_of_the_same_name_stands_in_the_way_of_a_repair():
    w = World().boot("A")
    w.engine_up("E1", holds=[w.resident("A", n=77)])
    assert w.engine("E1") == "REPAIRING"
    assert w.order_repair("A", "E1") == "NOT_ABSENT"
    w.engine_up("E1")
    assert w.order_repair("A", "E1") == "OK"


def test_the_number_of_one_versions_repair_answers_for_no_other_version():
    w = World().boot("A")
    w.bind_first("s")
    w.publish("B")
    w.join("E2")
    assert w.order_repair("B", "E2") == "OK"
    [number] = w.r.repairs
    a = w.r.versions[w.key("A")]
    assert w.engine_up("E2", holds=[Resident(a.key, a.digest, number)]) == "OK"
    assert w.strays("E2") == {a.lora_name}


def test_a_stored_artifact_stored_again_and_a_served_fleet_change_nothing():
    w = World().boot("A")
    since = {name: engine.since for name, engine in w.r.engines.items()}
    w.wait(500)
    w.publish("B")
    before = w.r
    assert w.store("B") == "OK"
    assert w.r is before
    assert {name: engine.since for name, engine in w.r.engines.items()} == since

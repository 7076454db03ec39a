"""Publication of a version: reserve, commit, abort, cleanup (RFC 3, protocol rules 1-4)."""

from __future__ import annotations

import pytest

from lorafsm.outcomes import Aborted, Committed, Reserved, VersionStatus
from lorafsm.registry.view import attempt_outcome
from tests.core.every_event import Situation, Subject, assert_cell, cells
from tests.core.story import World, digest_of


def situation(state: str) -> Situation:
    """A version in this state; E0 is the engine on which something is left to do."""
    w = World()
    if state == "unseen":
        return Subject(w), lambda: w.version("B")
    w.boot("A")
    name = "A" if state in ("RETIRED", "RECLAIMING", "RECLAIMED") else "B"
    if state == "LOADING":
        w.make_ready("B")
    elif state == "ABORTED":
        w.begin("B")
        w.abort("B")
        w.cleaned("E1")
    elif state == "FAILED_CLEAN":
        w.fail("B")
    else:
        w.publish("B")
    if state == "RECLAIMING":
        w.claim_reclaim("A")
        w.unloaded("E1", "reclaim-A")
    elif state == "RECLAIMED":
        w.reclaim("A")
    assert w.version(name) == state
    return Subject(w, name), lambda: w.version(name)


VERSION = {
    "unseen": r"""
        OK -> LOADING: reserve
        UNKNOWN_VERSION: artifact_stored takeover rollback claim_reclaim order_repair
        STALE_ATTEMPT: prepared authorize_bucket bucket_done ready target_failed target_unknown cleaned
        BAD_TOKEN: commit abort
        OK: owner_up heartbeat owner_gone recovered open begin_close close_and_release engine_join engine_up \
            engine_lost engine_dead quarantine
        OWNER_ALIVE: owner_expired
        NO_PUBLISHED_VERSION: bind_first
        UNKNOWN_RECLAIM: confirm_reclaim reclaim_unknown
        NOT_DEAD: engine_remove
        STALE_REPAIR: repair_ready repair_failed
    """,
    "LOADING": r"""
        OK: reserve artifact_stored prepared ready target_failed target_unknown takeover owner_up heartbeat \
            owner_gone recovered open bind_first begin_close close_and_release engine_join engine_up engine_lost \
            engine_dead quarantine
        BAD_INPUT: authorize_bucket
        OUT_OF_ORDER: bucket_done
        OK -> PUBLISHED: commit
        OK -> ABORTED: abort
        NOT_ABORTED: cleaned
        NOT_RETIRED: rollback claim_reclaim
        OWNER_ALIVE: owner_expired
        UNKNOWN_RECLAIM: confirm_reclaim reclaim_unknown
        NOT_DEAD: engine_remove
        NOT_NEEDED: order_repair
        STALE_REPAIR: repair_ready repair_failed
    """,
    "PUBLISHED": r"""
        OK: reserve artifact_stored commit owner_up heartbeat owner_gone recovered open bind_first begin_close \
            close_and_release engine_join engine_up engine_lost engine_dead quarantine
        STALE_ATTEMPT: prepared authorize_bucket bucket_done ready target_failed target_unknown cleaned takeover
        ALREADY_COMMITTED: abort
        NOT_RETIRED: rollback claim_reclaim
        OWNER_ALIVE: owner_expired
        UNKNOWN_RECLAIM: confirm_reclaim reclaim_unknown
        NOT_DEAD: engine_remove
        NOT_NEEDED: order_repair
        STALE_REPAIR: repair_ready repair_failed
    """,
    "RETIRED": r"""
        OK: reserve artifact_stored commit owner_up heartbeat owner_gone recovered open bind_first begin_close \
            close_and_release engine_join engine_up engine_lost engine_dead quarantine
        STALE_ATTEMPT: prepared authorize_bucket bucket_done ready target_failed target_unknown cleaned takeover
        ALREADY_COMMITTED: abort
        OK -> PUBLISHED: rollback
        OWNER_ALIVE: owner_expired
        OK -> RECLAIMING: claim_reclaim
        UNKNOWN_RECLAIM: confirm_reclaim reclaim_unknown
        NOT_DEAD: engine_remove
        NOT_NEEDED: order_repair
        STALE_REPAIR: repair_ready repair_failed
    """,
    "RECLAIMING": r"""
        OK: reserve artifact_stored commit owner_up heartbeat owner_gone recovered open bind_first begin_close \
            close_and_release claim_reclaim reclaim_unknown engine_join engine_lost quarantine
        STALE_ATTEMPT: prepared authorize_bucket bucket_done ready target_failed target_unknown cleaned takeover
        ALREADY_COMMITTED: abort
        VERSION_GONE: rollback order_repair
        OWNER_ALIVE: owner_expired
        OK -> RECLAIMED: confirm_reclaim engine_up engine_dead
        NOT_DEAD: engine_remove
        STALE_REPAIR: repair_ready repair_failed
    """,
    "RECLAIMED": r"""
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
    "ABORTED": r"""
        OK: reserve artifact_stored target_unknown abort owner_up heartbeat owner_gone recovered open bind_first \
            begin_close close_and_release engine_join engine_lost quarantine
        STALE_ATTEMPT: prepared authorize_bucket bucket_done ready target_failed takeover
        ALREADY_ABORTED: commit
        OK -> FAILED_CLEAN: cleaned engine_up engine_dead
        NOT_RETIRED: rollback claim_reclaim
        OWNER_ALIVE: owner_expired
        UNKNOWN_RECLAIM: confirm_reclaim reclaim_unknown
        NOT_DEAD: engine_remove
        NOT_NEEDED: order_repair
        STALE_REPAIR: repair_ready repair_failed
    """,
    "FAILED_CLEAN": r"""
        OK -> LOADING: reserve
        OK: artifact_stored abort cleaned owner_up heartbeat owner_gone recovered open bind_first begin_close \
            close_and_release engine_join engine_up engine_lost engine_dead quarantine
        STALE_ATTEMPT: prepared authorize_bucket bucket_done ready target_failed target_unknown takeover
        ALREADY_ABORTED: commit
        NOT_RETIRED: rollback claim_reclaim
        OWNER_ALIVE: owner_expired
        UNKNOWN_RECLAIM: confirm_reclaim reclaim_unknown
        NOT_DEAD: engine_remove
        NOT_NEEDED: order_repair
        STALE_REPAIR: repair_ready repair_failed
    """,
}


@pytest.mark.parametrize(("state", "kind", "code", "after"), cells(VERSION))
def test_every_event_in_every_state_of_a_version(state: str, kind: str, code: str, after: str | None):
    assert_cell(*situation(state), kind, code, after)


# Reserve, rule 1


def test_reserve_takes_a_slot_a_number_and_freezes_the_fleet():
    w = World()
    assert w.reserve("A") == "OK"
    assert w.version("A") == "LOADING"
    assert (w.used, w.number("A"), w.default, w.revision) == (1, 1, None, 0)
    assert w.said == Reserved(w.key("A"), 1, f"relax_policy_lora@e1-1-{digest_of('A')[:12]}", 0, (("E0", 1), ("E1", 1)))
    assert {e: w.target("A", e) for e in w.targets("A")} == {"E0": "RESERVED", "E1": "RESERVED"}
    assert w.wakes() == {"publisher"}


def test_a_lost_reply_to_reserve_is_recovered_whatever_happened_since():
    w = World()
    assert w.reserve("A", token="t") == "OK"
    receipt = w.said
    for state in ("LOADING", "PUBLISHED", "RETIRED", "RECLAIMING", "RECLAIMED"):
        if state == "PUBLISHED":
            w.store("A")
            for e in ("E0", "E1"):
                w.prepared(e)
                w.ready(e)
            w.commit("A")
        elif state == "RETIRED":
            w.publish("B")
        elif state == "RECLAIMING":
            w.claim_reclaim("A")
        elif state == "RECLAIMED":
            w.unloaded("E0", "reclaim-A")
            w.unloaded("E1", "reclaim-A")
        assert w.version("A") == state
        registry = w.r
        assert w.reserve("A", token="t") == "OK"
        assert w.said == receipt
        assert w.r is registry


def test_a_late_duplicate_of_a_reserve_opens_no_second_attempt():
    w = World().boot("A")
    w.begin("B")
    token = w.tokens["B"]
    w.abort("B")
    w.cleaned("E0")
    w.cleaned("E1")
    assert w.version("B") == "FAILED_CLEAN"
    registry = w.r
    assert w.reserve("B", token=token) == "OK"
    assert w.said.number == 2
    assert w.r is registry
    assert w.version("B") == "FAILED_CLEAN"


def test_a_token_serves_one_operation():
    w = World().boot("A")
    w.reserve("B", token="t")
    assert w.reserve("C", token="t") == "OPERATION_CONFLICT"
    assert w.said.field == "token"
    assert w.reserve("B", bytes_of="B*", token="t") == "OPERATION_CONFLICT"
    assert w.takeover("B", token="t", handover="t") == "OPERATION_CONFLICT"


def test_one_version_has_one_content_for_the_whole_epoch():
    for state in ("LOADING", "PUBLISHED", "RETIRED", "RECLAIMING", "RECLAIMED", "ABORTED", "FAILED_CLEAN"):
        about, state_of = situation(state)
        w, name = about.w, about.version
        used, default = w.used, w.default
        assert w.reserve(name, bytes_of="other bytes") == "VERSION_CONFLICT"
        assert (w.used, w.default, state_of()) == (used, default, state)
        assert w.store(name, bytes_of="other bytes") == "VERSION_CONFLICT"


def test_a_second_reserve_of_a_known_version_gives_its_status_and_no_rights():
    w = World().boot("A")
    w.begin("B")
    assert w.reserve("B", token="second") == "OK"
    assert w.said == VersionStatus(w.key("B"), "LOADING", digest_of("B"), 2)
    assert w.authorize(0, token="second") == "BAD_TOKEN"
    assert w.commit("B", token="second") == "BAD_TOKEN"
    assert w.abort("B", token="second") == "BAD_TOKEN"
    assert w.version("B") == "LOADING"


def test_one_attempt_at_a_time():
    w = World(capacity=3, engine_slots=4).boot("A")
    w.begin("B")
    assert w.reserve("C") == "PUBLICATION_IN_PROGRESS"
    assert w.version("C") is None
    w.abort("B")
    assert w.reserve("C") == "PUBLICATION_UNRESOLVED"
    assert w.said.engines == ("E0", "E1")
    w.cleaned("E0")
    assert w.reserve("C") == "PUBLICATION_UNRESOLVED"
    assert w.said.engines == ("E1",)
    w.cleaned("E1")
    assert w.reserve("C") == "OK"


def test_an_open_attempt_is_named_before_the_missing_slot():
    w = World().boot("A")
    w.begin("B")
    assert w.used == 2
    assert w.reserve("C") == "PUBLICATION_IN_PROGRESS"


def test_a_missing_slot_is_named_before_the_unresolved_attempt():
    w = World().boot("A")
    w.begin("B")
    w.abort("B")
    assert w.reserve("C") == "CAPACITY_ERROR"
    assert [(b.key, b.state) for b in w.said.blockers] == [(w.key("A"), "PUBLISHED"), (w.key("B"), "ABORTED")]


def test_a_full_registry_names_each_holder_and_what_it_waits_for():
    w = World().boot("A")
    w.bind_first("s")
    w.publish("B")
    w.wait(700)
    assert w.reserve("C") == "CAPACITY_ERROR"
    old, default = w.said.blockers
    assert (old.key, old.state, old.session_refs) == (w.key("A"), "RETIRED", 1)
    assert (old.oldest, old.oldest_age) == (w.session_key("s"), 700)
    assert "session" in old.waits_for
    assert (default.key, default.state) == (w.key("B"), "PUBLISHED")
    w.close_and_release("s")
    w.claim_reclaim("A")
    w.unloaded("E0", "reclaim-A")
    assert w.reserve("C") == "CAPACITY_ERROR"
    assert "E1" in w.said.blockers[0].waits_for


def test_a_silent_member_is_not_published_past():
    w = World().boot("A")
    w.engine_lost("E1")
    assert w.reserve("B") == "TARGET_UNAVAILABLE"
    assert w.said.engines == ("E1",)
    w.quarantine("E1")
    assert w.reserve("B") == "TARGET_UNAVAILABLE"
    w.engine_dead("E1")
    assert w.reserve("B") == "OK"
    assert w.targets("B") == ["E0"]


def test_by_option_a_silent_member_is_left_out_and_repaired_later():
    w = World(publish_past_lost=True).boot("A")
    w.engine_lost("E1")
    w.publish("B")
    assert w.routable("B") == {"E0"}
    w.engine_up("E1", holds=[w.resident("A")])
    assert w.engine("E1") == "REPAIRING"
    w.repair("B", "E1")
    assert w.engine("E1") == "UP"


def test_an_empty_fleet_publishes_nothing():
    for config in ({}, {"publish_past_lost": True}):
        w = World(engines=[], **config)
        assert w.reserve("A") == "TARGET_UNAVAILABLE"


def test_numbers_are_never_used_twice():
    w = World(capacity=3, engine_slots=4).boot("A")
    w.fail("B")
    w.restart("E0")
    w.order_repair("A", "E0")
    w.begin("B")
    assert [w.number("A"), w.said.ok, sorted(w.r.repairs), w.number("B")] == [1, True, [3], 4]


def test_a_new_version_is_never_below_the_highest():
    """A trainer that comes back from an old checkpoint counts over ids that were skipped (rule 1)."""
    w = World().boot("A")
    w.fail("D")
    before = w.r
    for skipped in ("B", "C"):
        assert (w.reserve(skipped), w.said.field) == ("VERSION_BACKWARDS", "key")
    assert w.r is before
    assert w.reserve("A") == "OK"  # known: its status
    w.begin("D")  # as often as it fails, whatever came after it
    assert w.reserve("C") == "VERSION_BACKWARDS"  # named before the open attempt
    assert w.reserve("E") == "PUBLICATION_IN_PROGRESS"


def test_a_failed_version_returns_below_the_highest():
    w = World().boot("A")
    w.fail("B")
    w.fail("C")
    assert (w.reserve("B"), w.version("B")) == ("OK", "LOADING")


def test_any_first_id_will_do():
    w = World()
    assert w.reserve("D") == "OK"
    assert w.r.highest == w.key("D").version_id


# Commit, rule 3


def test_commit_needs_every_target():
    w = World().boot("A")
    w.begin("B")
    assert w.commit("B") == "NOT_READY"
    assert w.said.engines == ("E0", "E1")
    w.ready("E0")
    assert w.commit("B") == "NOT_READY"
    assert w.said.engines == ("E1",)
    w.ready("E1")
    assert w.commit("B") == "OK"
    assert w.said == Committed(w.key("B"), 2, 2, w.key("A"))
    assert (w.version("A"), w.version("B"), w.default, w.revision) == ("RETIRED", "PUBLISHED", "B", 2)


def test_a_commit_is_answered_the_same_for_ever():
    w = World().boot("A")
    receipt = Committed(w.key("A"), 1, 1, None)
    for rev in (0, 1, 7):
        assert w.commit("A", rev=rev) == "OK"
        assert w.said == receipt
    w.publish("B")
    w.reclaim("A")
    registry = w.r
    assert w.commit("A") == "OK"
    assert w.said == receipt
    assert w.r is registry
    assert (w.default, w.revision) == ("B", 2)


def test_commit_and_abort_need_the_token_of_that_version():
    w = World().boot("A")
    w.make_ready("B")
    for token in (w.tokens["A"], "somebody-else"):
        assert w.commit("B", token=token) == "BAD_TOKEN"
        assert w.abort("B", token=token) == "BAD_TOKEN"
        assert w.said.field == "token"
    assert w.version("B") == "LOADING"


def test_a_token_of_an_aborted_attempt_moves_nothing_of_the_next():
    w = World().boot("A")
    w.fail("B")
    old = w.tokens["B"]
    w.make_ready("B")
    assert w.commit("B", token=old) == "ALREADY_ABORTED"
    assert w.abort("B", token=old) == "OK"
    assert w.said == Aborted(w.key("B"), 2, "the load failed")
    assert w.version("B") == "LOADING"
    assert w.commit("B") == "OK"


def test_commit_expects_the_revision_of_its_reserve():
    w = World().boot("A")
    w.make_ready("B")
    for rev in (0, 2):
        assert w.commit("B", rev=rev) == "REVISION_CONFLICT"
        assert (w.said.default, w.said.revision) == (w.key("A"), 1)
    assert w.commit("B", rev=1) == "OK"


def test_a_rollback_is_never_undone_by_an_earlier_decision():
    w = World(capacity=3, engine_slots=4).boot("A")
    w.publish("B")
    w.make_ready("C")
    assert w.rollback("A") == "OK"
    assert w.commit("C", rev=2) == "REVISION_CONFLICT"
    assert (w.said.default, w.said.revision) == (w.key("A"), 3)
    assert w.commit("C", rev=3) == "REVISION_CONFLICT"  # the revision seen at reserve decides
    assert w.abort("C", reason="SUPERSEDED") == "OK"
    assert (w.default, w.revision, w.version("C")) == ("A", 3, "ABORTED")


def test_without_the_bytes_in_the_store_nothing_is_committed():
    w = World()
    w.reserve("A")
    for e in ("E0", "E1"):
        w.prepared(e)
        w.ready(e)
    assert w.commit("A") == "ARTIFACT_MISSING"
    assert w.version("A") == "LOADING"
    assert w.store("A") == "OK"
    assert w.store("A") == "OK"
    assert w.commit("A") == "OK"


def test_the_artifact_is_an_option():
    w = World(require_artifact=False)
    w.reserve("A")
    for e in ("E0", "E1"):
        w.prepared(e)
        w.ready(e)
    assert w.commit("A") == "OK"


def test_a_stored_artifact_serves_the_next_attempt_too():
    w = World().boot("A")
    w.fail("B")
    w.reserve("B")
    for e in ("E0", "E1"):
        w.prepared(e)
        w.ready(e)
    assert w.commit("B") == "OK"


def test_silence_suspends_a_ready_and_the_same_incarnation_restores_it():
    w = World().boot("A")
    w.make_ready("B")
    w.engine_lost("E1")
    assert w.commit("B") == "NOT_READY"
    assert w.said.engines == ("E1",)
    assert w.target("B", "E1") == "READY"
    w.engine_up("E1", holds=[w.resident("A"), w.resident("B")])
    assert w.commit("B") == "OK"


def test_a_ready_that_is_not_in_the_inventory_any_more_has_failed():
    w = World().boot("A")
    w.make_ready("B")
    w.engine_up("E1", holds=[w.resident("A")])
    assert w.target("B", "E1") == "FAILED"
    assert w.commit("B") == "NOT_READY"
    w.abort("B")
    assert w.version("B") == "ABORTED"


def test_an_inventory_under_another_number_restores_no_ready():
    w = World().boot("A")
    w.make_ready("B")
    w.engine_lost("E1")
    w.engine_up("E1", holds=[w.resident("A"), w.resident("B", n=1)])
    assert w.target("B", "E1") == "FAILED"
    assert w.commit("B") == "NOT_READY"


@pytest.mark.parametrize("end", ["restart", "dead", "removed"])
def test_a_dead_incarnation_dooms_the_attempt(end: str):
    w = World().boot("A")
    w.make_ready("B")
    if end == "restart":
        w.restart("E1")
    else:
        w.engine_dead("E1")
    if end == "removed":
        w.engine_remove("E1")
    assert w.commit("B") == "MEMBERSHIP_CHANGED"
    assert w.said.engines == ("E1",)
    assert w.target("B", "E1") == "CLEANED"
    w.abort("B")
    assert w.version("B") == "ABORTED"
    w.cleaned("E0")
    assert w.version("B") == "FAILED_CLEAN"


def test_a_new_incarnation_that_lists_the_candidate_dooms_the_attempt_all_the_same():
    w = World().boot("A")
    w.make_ready("B")
    w.restart("E1", holds=[w.resident("B")])
    assert w.commit("B") == "MEMBERSHIP_CHANGED"
    w.abort("B")
    w.cleaned("E0")
    assert w.version("B") == "ABORTED"  # the new process still lists it (rule 12)
    assert w.cleaned("E1", inc=2) == "OK"
    assert w.version("B") == "FAILED_CLEAN"


def test_a_joining_engine_disturbs_nothing_and_is_repaired_after_the_commit():
    w = World().boot("A")
    w.make_ready("B")
    w.join("E2")
    assert w.targets("B") == ["E0", "E1"]
    assert w.commit("B") == "OK"
    assert (w.routable("B"), w.engine("E2")) == ({"E0", "E1"}, "REPAIRING")
    w.repair("B", "E2")
    assert (w.routable("B"), w.engine("E2")) == ({"E0", "E1", "E2"}, "UP")


# Abort and cleanup, rule 4


def test_abort_is_decided_by_the_registry():
    w = World().boot("A")
    w.make_ready("B")
    w.commit("B")
    assert w.abort("B") == "ALREADY_COMMITTED"
    assert w.version("B") == "PUBLISHED"


def test_how_an_attempt_ended_is_told_to_whoever_asks_and_for_ever():
    w = World().boot("A")
    w.make_ready("B")
    assert (attempt_outcome(w.r, 2), attempt_outcome(w.r, 3)) == (None, None)
    w.abort("B", reason="the trainer goes")
    assert attempt_outcome(w.r, 2) == Aborted(w.key("B"), 2, "the trainer goes")
    w.cleaned("E0")
    w.cleaned("E1")
    w.publish("B")
    assert attempt_outcome(w.r, 1) == Committed(w.key("A"), 1, 1, None)
    assert attempt_outcome(w.r, 2) == Aborted(w.key("B"), 2, "the trainer goes")
    assert attempt_outcome(w.r, 3) == Committed(w.key("B"), 3, 2, w.key("A"))


def test_cleanup_comes_after_the_decision():
    w = World().boot("A")
    w.begin("B")
    assert w.cleaned("E0") == "NOT_ABORTED"
    w.abort("B")
    assert (w.version("B"), w.used) == ("ABORTED", 2)
    assert w.alarms() == {"PUBLICATION_ABORTED"}
    assert w.cleaned("E0") == "OK"
    assert w.cleaned("E0") == "OK"
    assert (w.version("B"), w.used) == ("ABORTED", 2)
    assert w.cleaned("E1") == "OK"
    assert (w.version("B"), w.used, w.default) == ("FAILED_CLEAN", 1, "A")


def test_cleanup_of_an_older_number_leaves_the_next_attempt_alone():
    w = World().boot("A")
    w.fail("B")
    w.make_ready("B")
    assert w.cleaned("E0", n=2) == "OK"
    assert w.target("B", "E0") == "READY"
    assert w.key("B") in w.r.engines["E0"].residents
    assert w.commit("B") == "OK"


def test_a_receipt_of_cleanup_that_a_later_inventory_contradicts_frees_nothing():
    w = World().boot("A")
    w.make_ready("B")
    w.abort("B")
    w.engine_up("E0", seq=90, holds=[w.resident("A"), w.resident("B")])
    assert w.cleaned("E0", seq=80) == "STALE_SEQ"
    assert w.target("B", "E0") == "READY"
    assert w.cleaned("E0", seq=91) == "OK"


def test_an_unknown_cleanup_holds_the_slot_until_a_repeat_or_a_death():
    w = World().boot("A")
    w.begin("B")
    w.abort("B")
    assert w.unknown("E0") == "OK"
    assert w.unknown("E1") == "OK"
    assert (w.target("B", "E0"), w.used) == ("UNKNOWN", 2)
    w.cleaned("E0")
    assert w.version("B") == "ABORTED"
    w.engine_dead("E1")
    assert (w.version("B"), w.used) == ("FAILED_CLEAN", 1)


def test_a_failed_version_may_be_tried_again_under_the_next_number():
    w = World().boot("A")
    w.fail("B")
    assert w.reserve("B", bytes_of="B*") == "VERSION_CONFLICT"
    w.make_ready("B")
    assert w.number("B") == 3
    assert w.commit("B") == "OK"
    assert w.r.versions[w.key("B")].failure == ""

"""Attempts and their targets: what engines answer, in order, and what counts (RFC 3.2, protocol rules 2, 6, 16)."""

from __future__ import annotations

import pytest

from lorafsm.outcomes import Authorized
from tests.core.every_event import Situation, Subject, assert_cell, cells
from tests.core.story import World, digest_of


def attempt_situation(state: str) -> Situation:
    """The attempt 2 in this state; E0 is the engine on which something is left to do."""
    w = World().boot("A")
    w.make_ready("B")
    if state == "COMMITTED":
        w.commit("B")
    elif state != "OPEN":
        w.abort("B")
        w.cleaned("E1")
    if state == "CLEAN":
        w.cleaned("E0", n=2)
    assert w.r.attempts[2].state == state
    return Subject(w, number=2), lambda: w.r.attempts[2].state


ATTEMPT = {
    "OPEN": r"""
        OK: reserve artifact_stored prepared ready target_failed target_unknown takeover owner_up heartbeat \
            owner_gone recovered open bind_first begin_close close_and_release engine_join engine_up engine_lost \
            engine_dead quarantine
        BAD_INPUT: authorize_bucket
        OUT_OF_ORDER: bucket_done
        OK -> COMMITTED: commit
        OK -> ABORTED: abort
        NOT_ABORTED: cleaned
        NOT_RETIRED: rollback claim_reclaim
        OWNER_ALIVE: owner_expired
        UNKNOWN_RECLAIM: confirm_reclaim reclaim_unknown
        NOT_DEAD: engine_remove
        NOT_NEEDED: order_repair
        STALE_REPAIR: repair_ready repair_failed
    """,
    "COMMITTED": r"""
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
    "ABORTED": r"""
        OK: reserve artifact_stored target_unknown abort owner_up heartbeat owner_gone recovered open bind_first \
            begin_close close_and_release engine_join engine_lost quarantine
        STALE_ATTEMPT: prepared authorize_bucket bucket_done ready target_failed takeover
        ALREADY_ABORTED: commit
        OK -> CLEAN: cleaned engine_up engine_dead
        NOT_RETIRED: rollback claim_reclaim
        OWNER_ALIVE: owner_expired
        UNKNOWN_RECLAIM: confirm_reclaim reclaim_unknown
        NOT_DEAD: engine_remove
        NOT_NEEDED: order_repair
        STALE_REPAIR: repair_ready repair_failed
    """,
    "CLEAN": r"""
        OK: reserve artifact_stored abort cleaned owner_up heartbeat owner_gone recovered open bind_first \
            begin_close close_and_release engine_join engine_up engine_lost engine_dead quarantine
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


@pytest.mark.parametrize(("state", "kind", "code", "after"), cells(ATTEMPT))
def test_every_event_in_every_state_of_an_attempt(state: str, kind: str, code: str, after: str | None):
    assert_cell(*attempt_situation(state), kind, code, after)


def target_situation(state: str) -> Situation:
    """E0's share of an attempt with one bucket."""
    w = World().boot("A")
    w.reserve("B", buckets=1)
    w.store("B")
    what, _, more = state.partition(", ")
    bucket = 0
    if what != "RESERVED":
        w.prepared("E0")
        w.prepared("E1")
    if what in ("RECEIVING", "READY") or more == "bucket authorised":
        w.authorize(0)
    if what in ("RECEIVING", "READY"):
        w.bucket_done("E0", 0)
        bucket = 1
    if what == "READY":
        w.ready("E0")
    elif what == "FAILED":
        w.failed("E0")
    elif what == "UNKNOWN":
        w.unknown("E0")
    elif what == "CLEANED":
        w.abort("B")
        w.cleaned("E0")
    if more == "attempt aborted":
        w.abort("B")
    assert w.target("B", "E0") == what
    about = Subject(w, changes={"authorize_bucket": {"bucket": bucket}})
    return about, lambda: w.r.attempts[2].targets["E0"].state


TARGET = {
    "RESERVED": r"""
        OK: reserve artifact_stored abort takeover owner_up heartbeat owner_gone recovered open bind_first \
            begin_close close_and_release engine_join engine_lost quarantine
        OK -> PREPARED: prepared
        OUT_OF_ORDER: authorize_bucket bucket_done ready
        OK -> FAILED: target_failed
        OK -> UNKNOWN: target_unknown
        NOT_READY: commit
        NOT_ABORTED: cleaned
        NOT_RETIRED: rollback claim_reclaim
        OWNER_ALIVE: owner_expired
        UNKNOWN_RECLAIM: confirm_reclaim reclaim_unknown
        OK -> CLEANED: engine_up engine_dead
        NOT_DEAD: engine_remove
        NOT_NEEDED: order_repair
        STALE_REPAIR: repair_ready repair_failed
    """,
    "PREPARED": r"""
        OK: reserve artifact_stored prepared authorize_bucket abort takeover owner_up heartbeat owner_gone recovered \
            open bind_first begin_close close_and_release engine_join engine_lost quarantine
        OUT_OF_ORDER: bucket_done ready
        OK -> FAILED: target_failed
        OK -> UNKNOWN: target_unknown
        NOT_READY: commit
        NOT_ABORTED: cleaned
        NOT_RETIRED: rollback claim_reclaim
        OWNER_ALIVE: owner_expired
        UNKNOWN_RECLAIM: confirm_reclaim reclaim_unknown
        OK -> CLEANED: engine_up engine_dead
        NOT_DEAD: engine_remove
        NOT_NEEDED: order_repair
        STALE_REPAIR: repair_ready repair_failed
    """,
    "PREPARED, bucket authorised": r"""
        OK: reserve artifact_stored prepared abort takeover owner_up heartbeat owner_gone recovered open bind_first \
            begin_close close_and_release engine_join engine_lost quarantine
        ALREADY_AUTHORIZED: authorize_bucket
        OK -> RECEIVING: bucket_done
        OUT_OF_ORDER: ready
        OK -> FAILED: target_failed
        OK -> UNKNOWN: target_unknown
        NOT_READY: commit
        NOT_ABORTED: cleaned
        NOT_RETIRED: rollback claim_reclaim
        OWNER_ALIVE: owner_expired
        UNKNOWN_RECLAIM: confirm_reclaim reclaim_unknown
        OK -> CLEANED: engine_up engine_dead
        NOT_DEAD: engine_remove
        NOT_NEEDED: order_repair
        STALE_REPAIR: repair_ready repair_failed
    """,
    "RECEIVING": r"""
        OK: reserve artifact_stored prepared bucket_done abort takeover owner_up heartbeat owner_gone recovered open \
            bind_first begin_close close_and_release engine_join engine_lost quarantine
        BAD_INPUT: authorize_bucket
        OK -> READY: ready
        OK -> FAILED: target_failed
        OK -> UNKNOWN: target_unknown
        NOT_READY: commit
        NOT_ABORTED: cleaned
        NOT_RETIRED: rollback claim_reclaim
        OWNER_ALIVE: owner_expired
        UNKNOWN_RECLAIM: confirm_reclaim reclaim_unknown
        OK -> CLEANED: engine_up engine_dead
        NOT_DEAD: engine_remove
        NOT_NEEDED: order_repair
        STALE_REPAIR: repair_ready repair_failed
    """,
    "READY": r"""
        OK: reserve artifact_stored prepared bucket_done ready target_unknown abort takeover owner_up heartbeat \
            owner_gone recovered open bind_first begin_close close_and_release engine_join engine_lost quarantine
        BAD_INPUT: authorize_bucket
        OK -> FAILED: target_failed
        NOT_READY: commit
        NOT_ABORTED: cleaned
        NOT_RETIRED: rollback claim_reclaim
        OWNER_ALIVE: owner_expired
        UNKNOWN_RECLAIM: confirm_reclaim reclaim_unknown
        OK -> CLEANED: engine_up engine_dead
        NOT_DEAD: engine_remove
        NOT_NEEDED: order_repair
        STALE_REPAIR: repair_ready repair_failed
    """,
    "FAILED": r"""
        OK: reserve artifact_stored target_failed target_unknown abort takeover owner_up heartbeat owner_gone \
            recovered open bind_first begin_close close_and_release engine_join engine_lost quarantine
        OUT_OF_ORDER: prepared authorize_bucket bucket_done ready
        NOT_READY: commit
        NOT_ABORTED: cleaned
        NOT_RETIRED: rollback claim_reclaim
        OWNER_ALIVE: owner_expired
        UNKNOWN_RECLAIM: confirm_reclaim reclaim_unknown
        OK -> CLEANED: engine_up engine_dead
        NOT_DEAD: engine_remove
        NOT_NEEDED: order_repair
        STALE_REPAIR: repair_ready repair_failed
    """,
    "UNKNOWN": r"""
        OK: reserve artifact_stored target_unknown abort takeover owner_up heartbeat owner_gone recovered open \
            bind_first begin_close close_and_release engine_join engine_lost quarantine
        OK -> PREPARED: prepared
        OUT_OF_ORDER: authorize_bucket bucket_done ready
        OK -> FAILED: target_failed
        NOT_READY: commit
        NOT_ABORTED: cleaned
        NOT_RETIRED: rollback claim_reclaim
        OWNER_ALIVE: owner_expired
        UNKNOWN_RECLAIM: confirm_reclaim reclaim_unknown
        OK -> CLEANED: engine_up engine_dead
        NOT_DEAD: engine_remove
        NOT_NEEDED: order_repair
        STALE_REPAIR: repair_ready repair_failed
    """,
    "UNKNOWN, bucket authorised": r"""
        OK: reserve artifact_stored prepared target_unknown abort takeover owner_up heartbeat owner_gone recovered \
            open bind_first begin_close close_and_release engine_join engine_lost quarantine
        ALREADY_AUTHORIZED: authorize_bucket
        OK -> RECEIVING: bucket_done
        OK -> READY: ready
        OK -> FAILED: target_failed
        NOT_READY: commit
        NOT_ABORTED: cleaned
        NOT_RETIRED: rollback claim_reclaim
        OWNER_ALIVE: owner_expired
        UNKNOWN_RECLAIM: confirm_reclaim reclaim_unknown
        OK -> CLEANED: engine_up engine_dead
        NOT_DEAD: engine_remove
        NOT_NEEDED: order_repair
        STALE_REPAIR: repair_ready repair_failed
    """,
    "UNKNOWN, attempt aborted": r"""
        OK: reserve artifact_stored target_unknown abort owner_up heartbeat owner_gone recovered open bind_first \
            begin_close close_and_release engine_join engine_lost quarantine
        STALE_ATTEMPT: prepared authorize_bucket bucket_done ready target_failed takeover
        ALREADY_ABORTED: commit
        OK -> CLEANED: cleaned engine_up engine_dead
        NOT_RETIRED: rollback claim_reclaim
        OWNER_ALIVE: owner_expired
        UNKNOWN_RECLAIM: confirm_reclaim reclaim_unknown
        NOT_DEAD: engine_remove
        NOT_NEEDED: order_repair
        STALE_REPAIR: repair_ready repair_failed
    """,
    "READY, attempt aborted": r"""
        OK: reserve artifact_stored abort owner_up heartbeat owner_gone recovered open bind_first begin_close \
            close_and_release engine_join engine_lost quarantine
        STALE_ATTEMPT: prepared authorize_bucket bucket_done ready target_failed takeover
        OK -> UNKNOWN: target_unknown
        ALREADY_ABORTED: commit
        OK -> CLEANED: cleaned engine_up engine_dead
        NOT_RETIRED: rollback claim_reclaim
        OWNER_ALIVE: owner_expired
        UNKNOWN_RECLAIM: confirm_reclaim reclaim_unknown
        NOT_DEAD: engine_remove
        NOT_NEEDED: order_repair
        STALE_REPAIR: repair_ready repair_failed
    """,
    "CLEANED": r"""
        OK: reserve artifact_stored target_unknown abort cleaned owner_up heartbeat owner_gone recovered open \
            bind_first begin_close close_and_release engine_join engine_up engine_lost engine_dead quarantine
        STALE_ATTEMPT: prepared authorize_bucket bucket_done ready target_failed takeover
        ALREADY_ABORTED: commit
        NOT_RETIRED: rollback claim_reclaim
        OWNER_ALIVE: owner_expired
        UNKNOWN_RECLAIM: confirm_reclaim reclaim_unknown
        NOT_DEAD: engine_remove
        NOT_NEEDED: order_repair
        STALE_REPAIR: repair_ready repair_failed
    """,
}


@pytest.mark.parametrize(("state", "kind", "code", "after"), cells(TARGET))
def test_every_event_in_every_state_of_a_target(state: str, kind: str, code: str, after: str | None):
    assert_cell(*target_situation(state), kind, code, after)


# Order, rules 2 and 6


def test_buckets_go_one_after_the_other_on_all_targets():
    w = World().boot("A")
    w.reserve("B", buckets=2)
    assert w.authorize(0) == "OUT_OF_ORDER"
    assert w.said.engines == ("E0", "E1")
    w.prepared("E0")
    assert w.authorize(0) == "OUT_OF_ORDER"
    assert w.said.engines == ("E1",)
    w.prepared("E1")
    assert w.authorize(1) == "OUT_OF_ORDER"
    assert w.authorize(2) == "BAD_INPUT"
    assert w.bucket_done("E0", 0) == "OUT_OF_ORDER"  # nobody authorised it
    assert w.authorize(0) == "OK"
    assert w.said == Authorized(2, 0)
    assert w.bucket_done("E0", 0) == "OK"
    assert w.authorize(1) == "OUT_OF_ORDER"
    assert w.bucket_done("E0", 1) == "OUT_OF_ORDER"
    assert w.bucket_done("E1", 0) == "OK"
    assert w.authorize(1) == "OK"
    assert w.bucket_done("E0", 1) == "OK"
    assert w.bucket_done("E0", 2) == "OUT_OF_ORDER"
    assert w.ready("E1") == "OUT_OF_ORDER"
    assert w.ready("E0") == "OK"
    assert w.bucket_done("E1", 1) == "OK"
    assert w.ready("E1") == "OK"


def test_a_bucket_is_authorised_once():
    w = World()
    w.reserve("A", buckets=2)
    w.prepared("E0")
    w.prepared("E1")
    assert w.authorize(0) == "OK"
    assert w.authorize(0) == "ALREADY_AUTHORIZED"
    w.unknown("E0")
    assert w.authorize(0) == "ALREADY_AUTHORIZED"
    w.bucket_done("E0", 0)
    w.bucket_done("E1", 0)
    assert w.authorize(0) == "ALREADY_AUTHORIZED"


def test_a_duplicate_answer_is_stored_already():
    w = World()
    w.reserve("A", buckets=1)
    w.prepared("E0")
    registry = w.r
    assert w.prepared("E0") == "OK"
    assert w.r is registry
    w.prepared("E1")
    w.authorize(0)
    w.bucket_done("E0", 0)
    registry = w.r
    assert w.bucket_done("E0", 0) == "OK"
    assert w.prepared("E0") == "OK"
    assert w.r is registry
    w.ready("E0")
    registry = w.r
    assert w.ready("E0") == "OK"
    assert w.bucket_done("E0", 0) == "OK"
    assert w.prepared("E0") == "OK"
    assert w.r is registry


def test_no_bucket_goes_to_a_fleet_that_changed_or_is_silent():
    w = World().boot("A")
    w.reserve("B", buckets=1)
    w.prepared("E0")
    w.prepared("E1")
    w.engine_lost("E1")
    assert w.authorize(0) == "OUT_OF_ORDER"
    assert w.said.engines == ("E1",)
    w.restart("E1")
    assert w.authorize(0) == "MEMBERSHIP_CHANGED"
    assert w.said.engines == ("E1",)


@pytest.mark.parametrize(
    "claims",
    [
        {"digest": digest_of("")},
        {"digest": digest_of("A")},
        {"base_fingerprint": "another base model"},
        {"probe_ok": False},
        {"key": World().key("A")},
    ],
)
def test_ready_must_prove_what_was_ordered(claims: dict):
    w = World().boot("A")
    w.begin("B")
    assert w.ready("E1", **claims) == "READY_MISMATCH"
    assert w.said.engines == ("E1",)
    assert w.target("B", "E1") == "PREPARED"
    assert w.commit("B") == "NOT_READY"


def test_an_empty_digest_is_no_digest():
    w = World().boot("A")
    w.begin("B")
    assert w.ready("E1", digest="") == "BAD_INPUT"
    assert w.said.field == "digest"


def test_the_base_model_is_part_of_the_proof():
    w = World(engines=[], base_fingerprint="base-1")
    assert w.join("E0") == "BASE_MISMATCH"
    assert w.join("E0", fp="base-1") == "OK"
    w.begin("A")
    assert w.ready("E0", base_fingerprint="") == "READY_MISMATCH"
    assert w.ready("E0") == "OK"


@pytest.mark.parametrize("verb", ["prepared", "bucket_done", "ready", "failed", "unknown", "cleaned"])
def test_answers_count_under_their_number_engine_and_incarnation(verb: str):
    w = World().boot("A")
    w.fail("B")
    w.reserve("B", buckets=1)
    if verb == "cleaned":
        w.abort("B")
    more = (0,) if verb == "bucket_done" else ()
    tell = getattr(w, verb)
    assert tell("E0", *more, n=99) == "STALE_ATTEMPT"
    assert tell("E0", *more, n=1) == "STALE_ATTEMPT"
    assert tell("E9", *more) == "UNKNOWN_ENGINE"
    assert tell("E0", *more, inc=7) == "ENGINE_RESTARTED"
    assert tell("E0", *more, inc=0) == "ENGINE_RESTARTED"
    if verb != "cleaned":  # a repeated receipt of an old cleanup is true, and changes nothing
        assert tell("E0", *more, n=2) == "STALE_ATTEMPT"
    assert w.target("B", "E0") == "RESERVED"


def test_no_progress_after_the_abort():
    w = World().boot("A")
    w.reserve("B", buckets=1)
    w.prepared("E0")
    w.prepared("E1")
    w.authorize(0)
    w.abort("B")
    assert w.bucket_done("E0", 0) == "STALE_ATTEMPT"
    assert w.ready("E0") == "STALE_ATTEMPT"
    assert w.prepared("E0") == "STALE_ATTEMPT"
    assert w.failed("E0") == "STALE_ATTEMPT"
    assert w.authorize(0) == "STALE_ATTEMPT"


def test_a_ready_that_a_later_inventory_contradicts_is_stale():
    w = World().boot("A")
    w.begin("B")
    w.engine_up("E0", seq=90, holds=[w.resident("A")])
    assert w.ready("E0", seq=80) == "STALE_SEQ"
    assert w.target("B", "E0") == "PREPARED"
    assert w.ready("E0", seq=91) == "OK"


def test_a_ready_older_than_an_inventory_that_lists_it_is_a_proof():
    w = World().boot("A")
    w.begin("B")
    w.engine_up("E0", seq=90, holds=[w.resident("A"), w.resident("B")])
    assert w.ready("E0", seq=80) == "OK"


# UNKNOWN, rule 16


def test_unknown_before_prepared_is_left_by_the_agents_answer():
    w = World().boot("A")
    w.reserve("B")
    assert w.unknown("E0") == "OK"
    assert (w.target("B", "E0"), w.alarms(), w.used) == ("UNKNOWN", {"TARGET_UNKNOWN"}, 2)
    assert w.prepared("E0") == "OK"
    assert w.target("B", "E0") == "PREPARED"
    w.unknown("E0")
    assert w.ready("E0") == "OK"
    assert w.target("B", "E0") == "READY"


def test_an_order_that_never_arrived_is_given_again():
    """No news takes a target out of UNKNOWN too, and renews no lease: a silence that returns has an end."""
    w = World().boot("A")
    w.reserve("B", buckets=1)
    w.prepared("E0", seq=7)
    w.prepared("E1")
    w.wait(1000)
    lease = w.attempt("B").driver_until
    w.unknown("E0")
    assert (w.prepared("E0", seq=6), w.target("B", "E0")) == ("STALE_SEQ", "UNKNOWN")
    assert (w.prepared("E0", seq=7), w.target("B", "E0")) == ("OK", "PREPARED")
    w.unknown("E0")
    assert (w.prepared("E0", seq=9), w.target("B", "E0")) == ("OK", "PREPARED")
    assert w.attempt("B").driver_until == lease
    w.authorize(0)
    w.unknown("E0")
    assert (w.prepared("E0", seq=9), w.target("B", "E0")) == ("OK", "UNKNOWN")  # of its bucket it says nothing
    w.bucket_done("E0", 0, seq=11)
    w.wait(1000)
    lease = w.attempt("B").driver_until
    w.unknown("E0")
    assert (w.bucket_done("E0", 0, seq=11), w.target("B", "E0")) == ("OK", "RECEIVING")
    assert w.attempt("B").driver_until == lease


def test_a_bucket_before_the_last_says_nothing_of_the_last():
    w = World().boot("A")
    w.reserve("B", buckets=2)
    for e in ("E0", "E1"):
        w.prepared(e)
    w.authorize(0)
    for e in ("E0", "E1"):
        w.bucket_done(e, 0, seq=20)
    w.authorize(1)
    w.unknown("E0")
    assert (w.bucket_done("E0", 0, seq=20), w.target("B", "E0")) == ("OK", "UNKNOWN")


def test_unknown_with_a_bucket_under_way_is_left_by_its_completion_or_by_ready():
    w = World().boot("A")
    w.reserve("B", buckets=1)
    w.prepared("E0")
    w.prepared("E1")
    w.authorize(0)
    for e in ("E0", "E1"):
        w.unknown(e)
    assert w.bucket_done("E0", 0) == "OK"
    assert w.target("B", "E0") == "RECEIVING"
    assert w.ready("E1") == "OK"  # READY after the last bucket proves the bucket too
    assert w.target("B", "E1") == "READY"


def test_unknown_does_not_skip_a_bucket():
    w = World().boot("A")
    w.reserve("B", buckets=2)
    w.prepared("E0")
    w.prepared("E1")
    w.authorize(0)
    w.unknown("E0")
    assert w.ready("E0") == "OUT_OF_ORDER"
    assert w.target("B", "E0") == "UNKNOWN"


def test_silence_takes_no_proof_back():
    w = World().boot("A")
    w.make_ready("B")
    registry = w.r
    assert w.unknown("E0") == "OK"
    assert w.r is registry


def test_an_old_answer_moves_nothing_out_of_unknown():
    w = World().boot("A")
    w.reserve("B", buckets=1)
    w.prepared("E0", seq=50)
    w.unknown("E0")
    w.prepared("E0", seq=60)  # the answer to a query
    w.unknown("E0")
    w.prepared("E0", seq=50)  # the first answer, delivered twice
    assert w.target("B", "E0") == "UNKNOWN"


@pytest.mark.parametrize("verb", ["prepared", "ready", "cleaned"])
def test_an_answer_older_than_one_about_the_same_target_is_stale(verb: str):
    w = World().boot("A")
    w.reserve("B")
    w.prepared("E0", seq=50)
    if verb == "cleaned":
        w.ready("E0", seq=60)
        w.abort("B")
    state = w.target("B", "E0")
    assert getattr(w, verb)("E0", seq=40) == "STALE_SEQ"
    assert w.target("B", "E0") == state


def test_what_an_engine_said_before_it_failed_does_not_come_back_under_the_same_seq():
    w = World().boot("A")
    w.reserve("B")
    assert w.failed("E0", seq=50) == "OK"
    assert [w.prepared("E0", seq=50), w.prepared("E0", seq=51)] == ["STALE_SEQ", "OUT_OF_ORDER"]


@pytest.mark.parametrize("verb", ["ready", "cleaned"])
def test_another_answer_under_the_same_seq_is_not_swallowed(verb: str):
    w = World().boot("A")
    w.reserve("B")
    w.prepared("E0", seq=50)
    if verb == "cleaned":
        w.abort("B")
    assert getattr(w, verb)("E0", seq=50) == "STALE_SEQ"
    assert w.target("B", "E0") == "PREPARED"


@pytest.mark.parametrize("then", ["dead", "restart", "clean"])
def test_a_doomed_target_whose_successor_lists_the_candidate_is_cleaned_in_any_way(then: str):
    w = World().boot("A")
    w.make_ready("B")
    w.restart("E1", holds=[w.resident("B")])
    assert w.target("B", "E1") == "FAILED"
    assert w.prepared("E1") == "ENGINE_RESTARTED"
    assert w.ready("E1", inc=1) == "ENGINE_RESTARTED"
    w.abort("B")
    w.cleaned("E0")
    assert w.version("B") == "ABORTED"
    if then == "dead":
        w.engine_dead("E1")
    elif then == "restart":
        w.restart("E1")
    else:
        assert w.cleaned("E1", inc=1) == "ENGINE_RESTARTED"
        assert w.cleaned("E1", inc=2, seq=1) == "STALE_SEQ"  # older than the inventory that lists it
        assert w.cleaned("E1", inc=2) == "OK"
    assert (w.version("B"), w.used) == ("FAILED_CLEAN", 1)


# Failure


def test_a_target_that_said_no_dooms_nothing_by_itself():
    w = World().boot("A")
    w.make_ready("B")
    assert w.failed("E0", reason="no memory") == "OK"
    assert (w.target("B", "E0"), w.alarms()) == ("FAILED", {"TARGET_FAILED"})
    assert w.key("B") not in w.r.engines["E0"].residents
    assert w.commit("B") == "NOT_READY"
    assert w.ready("E0") == "OUT_OF_ORDER"
    assert w.prepared("E0") == "OUT_OF_ORDER"
    assert w.failed("E0") == "OK"
    assert w.unknown("E0") == "OK"
    assert w.target("B", "E0") == "FAILED"


def test_a_failure_older_than_the_latest_answer_is_stale():
    w = World().boot("A")
    w.begin("B")
    w.ready("E0", seq=90)
    assert w.failed("E0", seq=80) == "STALE_SEQ"
    assert w.target("B", "E0") == "READY"

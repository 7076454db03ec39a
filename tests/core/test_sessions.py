"""Owners and sessions: bind once, close once, expire with the owner (RFC 4, protocol rules 7-10)."""

from __future__ import annotations

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from lorafsm.events import BeginClose, BindFirst, CloseAndRelease, Open, OwnerUp, Reserve
from lorafsm.identity import SessionKey, VersionKey
from lorafsm.lifecycle import VersionState
from lorafsm.manifest import store_plan
from lorafsm.outcomes import Binding, Closed, Done, Lease, SessionStatus
from lorafsm.registry import step
from lorafsm.registry.view import blocker, may_dispatch, oldest_holder, session_state
from tests.core.every_event import Situation, Subject, assert_cell, cells
from tests.core.story import World, digest_of


def session_situation(state: str) -> Situation:
    """A session in this state; when `owner_expired` comes, the owner's lease has run out."""
    w = World().boot("A")
    what, _, more = state.partition(", ")
    if what in ("OPEN", "EXPIRED") or more == "never bound":
        w.open("s")
    elif what != "unseen":
        w.bind_first("s")
    if what in ("FINALIZING", "CLOSED"):
        w.begin_close("s")
    if what == "CLOSED":
        w.close_and_release("s")
    if what == "EXPIRED":
        w.bind_first("s")
        w.owner_gone()
    assert w.session("s") == (None if what == "unseen" else what)
    return Subject(w, "A", changes={"owner_expired": {"now": 30_001}}), lambda: w.session("s")


SESSION = {
    "unseen": r"""
        OK: reserve artifact_stored commit owner_up heartbeat recovered engine_join engine_up engine_lost \
            engine_dead quarantine
        STALE_ATTEMPT: prepared authorize_bucket bucket_done ready target_failed target_unknown cleaned takeover
        ALREADY_COMMITTED: abort
        NOT_RETIRED: rollback claim_reclaim
        OK -> EXPIRED: owner_expired owner_gone
        OK -> OPEN: open
        OK -> BOUND: bind_first
        OK -> FINALIZING: begin_close
        OK -> CLOSED: close_and_release
        UNKNOWN_RECLAIM: confirm_reclaim reclaim_unknown
        NOT_DEAD: engine_remove
        NOT_NEEDED: order_repair
        STALE_REPAIR: repair_ready repair_failed
    """,
    "OPEN": r"""
        OK: reserve artifact_stored commit owner_up heartbeat recovered open engine_join engine_up engine_lost \
            engine_dead quarantine
        STALE_ATTEMPT: prepared authorize_bucket bucket_done ready target_failed target_unknown cleaned takeover
        ALREADY_COMMITTED: abort
        NOT_RETIRED: rollback claim_reclaim
        OK -> EXPIRED: owner_expired owner_gone
        OK -> BOUND: bind_first
        OK -> FINALIZING: begin_close
        OK -> CLOSED: close_and_release
        UNKNOWN_RECLAIM: confirm_reclaim reclaim_unknown
        NOT_DEAD: engine_remove
        NOT_NEEDED: order_repair
        STALE_REPAIR: repair_ready repair_failed
    """,
    "BOUND": r"""
        OK: reserve artifact_stored commit owner_up heartbeat recovered open bind_first engine_join engine_up \
            engine_lost engine_dead quarantine
        STALE_ATTEMPT: prepared authorize_bucket bucket_done ready target_failed target_unknown cleaned takeover
        ALREADY_COMMITTED: abort
        NOT_RETIRED: rollback claim_reclaim
        OK -> EXPIRED: owner_expired owner_gone
        OK -> FINALIZING: begin_close
        OK -> CLOSED: close_and_release
        UNKNOWN_RECLAIM: confirm_reclaim reclaim_unknown
        NOT_DEAD: engine_remove
        NOT_NEEDED: order_repair
        STALE_REPAIR: repair_ready repair_failed
    """,
    "FINALIZING": r"""
        OK: reserve artifact_stored commit owner_up heartbeat recovered begin_close engine_join engine_up \
            engine_lost engine_dead quarantine
        STALE_ATTEMPT: prepared authorize_bucket bucket_done ready target_failed target_unknown cleaned takeover
        ALREADY_COMMITTED: abort
        NOT_RETIRED: rollback claim_reclaim
        OK -> EXPIRED: owner_expired owner_gone
        SESSION_CLOSED: open bind_first
        OK -> CLOSED: close_and_release
        UNKNOWN_RECLAIM: confirm_reclaim reclaim_unknown
        NOT_DEAD: engine_remove
        NOT_NEEDED: order_repair
        STALE_REPAIR: repair_ready repair_failed
    """,
    "FINALIZING, never bound": r"""
        OK: reserve artifact_stored commit owner_up heartbeat recovered begin_close engine_join engine_up \
            engine_lost engine_dead quarantine
        STALE_ATTEMPT: prepared authorize_bucket bucket_done ready target_failed target_unknown cleaned takeover
        ALREADY_COMMITTED: abort
        NOT_RETIRED: rollback claim_reclaim
        OK -> EXPIRED: owner_expired owner_gone
        SESSION_CLOSED: open bind_first
        OK -> CLOSED: close_and_release
        UNKNOWN_RECLAIM: confirm_reclaim reclaim_unknown
        NOT_DEAD: engine_remove
        NOT_NEEDED: order_repair
        STALE_REPAIR: repair_ready repair_failed
    """,
    "CLOSED": r"""
        OK: reserve artifact_stored commit owner_up heartbeat owner_expired owner_gone recovered engine_join \
            engine_up engine_lost engine_dead quarantine
        STALE_ATTEMPT: prepared authorize_bucket bucket_done ready target_failed target_unknown cleaned takeover
        ALREADY_COMMITTED: abort
        NOT_RETIRED: rollback claim_reclaim
        SESSION_CLOSED: open bind_first
        ALREADY_CLOSED: begin_close close_and_release
        UNKNOWN_RECLAIM: confirm_reclaim reclaim_unknown
        NOT_DEAD: engine_remove
        NOT_NEEDED: order_repair
        STALE_REPAIR: repair_ready repair_failed
    """,
    "EXPIRED": r"""
        OK: reserve artifact_stored commit owner_expired owner_gone recovered engine_join engine_up engine_lost \
            engine_dead quarantine
        STALE_ATTEMPT: prepared authorize_bucket bucket_done ready target_failed target_unknown cleaned takeover
        ALREADY_COMMITTED: abort
        NOT_RETIRED: rollback claim_reclaim
        SESSION_EXPIRED: owner_up heartbeat open bind_first
        ALREADY_CLOSED: begin_close close_and_release
        UNKNOWN_RECLAIM: confirm_reclaim reclaim_unknown
        NOT_DEAD: engine_remove
        NOT_NEEDED: order_repair
        STALE_REPAIR: repair_ready repair_failed
    """,
}


@pytest.mark.parametrize(("state", "kind", "code", "after"), cells(SESSION))
def test_every_event_in_every_state_of_a_session(state: str, kind: str, code: str, after: str | None):
    assert_cell(*session_situation(state), kind, code, after)


def owner_situation(state: str) -> Situation:
    w = World(owners=[]).boot("A")
    if state != "unknown":
        w.owner_up()
        w.bind_first("s")
    if state == "EXPIRED":
        w.wait(30_001)
        w.owner_expired()
    elif state == "GONE":
        w.owner_gone()
    about = Subject(w, "A", changes={"owner_expired": {"now": w.now + 30_001}})
    return about, lambda: w.owner() if w.r.owners else None


OWNER = {
    "unknown": r"""
        OK: reserve artifact_stored commit recovered engine_join engine_up engine_lost engine_dead quarantine
        STALE_ATTEMPT: prepared authorize_bucket bucket_done ready target_failed target_unknown cleaned takeover
        ALREADY_COMMITTED: abort
        NOT_RETIRED: rollback claim_reclaim
        OK -> LIVE: owner_up
        UNKNOWN_OWNER: heartbeat owner_expired owner_gone open bind_first begin_close close_and_release
        UNKNOWN_RECLAIM: confirm_reclaim reclaim_unknown
        NOT_DEAD: engine_remove
        NOT_NEEDED: order_repair
        STALE_REPAIR: repair_ready repair_failed
    """,
    "LIVE": r"""
        OK: reserve artifact_stored commit owner_up heartbeat recovered open bind_first begin_close \
            close_and_release engine_join engine_up engine_lost engine_dead quarantine
        STALE_ATTEMPT: prepared authorize_bucket bucket_done ready target_failed target_unknown cleaned takeover
        ALREADY_COMMITTED: abort
        NOT_RETIRED: rollback claim_reclaim
        OK -> EXPIRED: owner_expired
        OK -> GONE: owner_gone
        UNKNOWN_RECLAIM: confirm_reclaim reclaim_unknown
        NOT_DEAD: engine_remove
        NOT_NEEDED: order_repair
        STALE_REPAIR: repair_ready repair_failed
    """,
    "EXPIRED": r"""
        OK: reserve artifact_stored commit owner_expired recovered engine_join engine_up engine_lost engine_dead \
            quarantine
        STALE_ATTEMPT: prepared authorize_bucket bucket_done ready target_failed target_unknown cleaned takeover
        ALREADY_COMMITTED: abort
        NOT_RETIRED: rollback claim_reclaim
        SESSION_EXPIRED: owner_up heartbeat open bind_first
        OK -> GONE: owner_gone
        ALREADY_CLOSED: begin_close close_and_release
        UNKNOWN_RECLAIM: confirm_reclaim reclaim_unknown
        NOT_DEAD: engine_remove
        NOT_NEEDED: order_repair
        STALE_REPAIR: repair_ready repair_failed
    """,
    "GONE": r"""
        OK: reserve artifact_stored commit owner_expired owner_gone recovered engine_join engine_up engine_lost \
            engine_dead quarantine
        STALE_ATTEMPT: prepared authorize_bucket bucket_done ready target_failed target_unknown cleaned takeover
        ALREADY_COMMITTED: abort
        NOT_RETIRED: rollback claim_reclaim
        SESSION_EXPIRED: owner_up heartbeat open bind_first
        ALREADY_CLOSED: begin_close close_and_release
        UNKNOWN_RECLAIM: confirm_reclaim reclaim_unknown
        NOT_DEAD: engine_remove
        NOT_NEEDED: order_repair
        STALE_REPAIR: repair_ready repair_failed
    """,
}


@pytest.mark.parametrize(("state", "kind", "code", "after"), cells(OWNER))
def test_every_event_in_every_state_of_an_owner(state: str, kind: str, code: str, after: str | None):
    assert_cell(*owner_situation(state), kind, code, after)


# Binding, rule 7


def test_open_binds_nothing():
    w = World().boot("A")
    assert w.open("s") == "OK"
    assert w.said == SessionStatus(w.session_key("s"), "OPEN")
    assert (w.session("s"), w.refs("A")) == ("OPEN", 0)
    assert w.may_dispatch("s") == "NO_BINDING"


def test_the_first_generation_binds_once_and_for_ever():
    w = World().boot("A")
    w.open("s")
    assert w.bind_first("s") == "A"
    assert w.said == Binding(w.session_key("s"), w.key("A"), w.r.versions[w.key("A")].lora_name, digest_of("A"))
    assert (w.session("s"), w.refs("A")) == ("BOUND", 1)
    w.publish("B")
    registry = w.r
    assert w.bind_first("s") == "A"
    assert w.open("s") == "OK"
    assert w.r is registry
    assert (w.session("s"), w.refs("A"), w.refs("B")) == ("BOUND", 1, 0)


def test_a_bind_of_an_unseen_session_opens_it():
    w = World().boot("A")
    assert w.bind_first("s") == "A"
    assert w.session("s") == "BOUND"


def test_before_the_first_commit_there_is_nothing_to_bind():
    w = World()
    w.open("s")
    assert w.bind_first("s") == "NO_PUBLISHED_VERSION"
    assert w.bind_first("unseen") == "NO_PUBLISHED_VERSION"
    assert (w.session("s"), w.session("unseen")) == ("OPEN", None)
    w.publish("A")
    assert w.bind_first("s") == "A"


def test_sessions_need_a_registered_owner():
    w = World().boot("A")
    for verb in (w.open, w.bind_first, w.begin_close, w.close_and_release):
        assert verb("s", "o9") == "UNKNOWN_OWNER"
    for verb in (w.heartbeat, w.owner_expired, w.owner_gone):
        assert verb("o9") == "UNKNOWN_OWNER"
        assert w.said.field == "owner"


def test_the_same_sequence_of_two_owners_is_two_sessions():
    w = World(owners=["o1", "o2"]).boot("A")
    w.bind_first("s", "o1")
    w.publish("B")
    assert w.bind_first("s", "o2") == "B"
    w.close_and_release("s", "o1")
    assert (w.refs("A"), w.refs("B")) == (0, 1)


# Closing, rule 8


def test_the_order_of_an_orderly_close():
    w = World().boot("A")
    w.bind_first("s")
    w.publish("B")
    assert w.begin_close("s") == "OK"
    assert w.said == SessionStatus(w.session_key("s"), "FINALIZING")
    assert (w.session("s"), w.refs("A"), w.may_dispatch("s")) == ("FINALIZING", 1, "SESSION_CLOSED")
    assert w.begin_close("s") == "OK"
    assert w.open("s") == "SESSION_CLOSED"
    assert w.bind_first("s") == "SESSION_CLOSED"
    assert w.close_and_release("s") == "OK"
    assert w.said == Closed(w.session_key("s"), released=w.key("A"))
    assert (w.session("s"), w.refs("A"), w.wakes()) == ("CLOSED", 0, {"reclaimer"})


def test_closed_is_for_ever():
    w = World().boot("A")
    w.bind_first("s")
    w.close_and_release("s")
    registry = w.r
    for verb in (w.close_and_release, w.begin_close):
        assert verb("s") == "ALREADY_CLOSED"
        assert w.said == Closed(w.session_key("s"), "ALREADY_CLOSED")
    for verb in (w.open, w.bind_first):
        assert verb("s") == "SESSION_CLOSED"
    assert w.may_dispatch("s") == "SESSION_CLOSED"
    assert w.r is registry


@pytest.mark.parametrize("first", ["close_and_release", "begin_close"])
def test_a_close_that_overtakes_open_and_bind_wins(first: str):
    w = World().boot("A")
    assert getattr(w, first)("s") == "OK"
    assert w.open("s") == "SESSION_CLOSED"
    assert w.bind_first("s") == "SESSION_CLOSED"
    assert w.refs("A") == 0
    w.close_and_release("s")
    assert w.session("s") == "CLOSED"


def test_one_session_ends_without_touching_the_others():
    w = World().boot("A")
    for s in ("s1", "s2", "s3"):
        w.bind_first(s)
    w.close_and_release("s2")
    assert w.refs("A") == 2
    assert [w.session(s) for s in ("s1", "s2", "s3")] == ["BOUND", "CLOSED", "BOUND"]
    w.publish("B")
    assert w.claim_reclaim("A") == "SESSION_REFS_HELD"
    w.close_and_release("s1")
    w.close_and_release("s3")
    assert w.claim_reclaim("A") == "OK"


@given(st.permutations(range(12)), st.integers(0, 11))
def test_closed_sessions_collapse_whatever_their_order(order: list[int], late: int):
    w = World(engines=["E0"]).boot("A")
    for sequence in order:
        w.sequences["o1", f"s{sequence}"] = sequence
        w.close_and_release(f"s{sequence}")
    owner = w.r.owners["o1"]
    assert (dict(owner.sessions), owner.next_sequence, owner.gaps) == ({}, 12, ())
    assert w.bind_first(f"s{late}") == "SESSION_CLOSED"


def test_a_gap_in_the_sequences_is_not_closed():
    w = World().boot("A")
    w.sequences |= {("o1", "late"): 5, ("o1", "early"): 2, ("o1", "first"): 0}
    w.close_and_release("late")
    assert (w.session("early"), w.r.owners["o1"].gaps) == (None, ((0, 4),))
    assert w.bind_first("early") == "A"
    assert w.r.owners["o1"].gaps == ((0, 1), (3, 4))
    assert w.open("first") == "OK"
    assert w.r.owners["o1"].gaps == ((1, 1), (3, 4))


# Leases, rule 9


def test_a_lease_runs_from_the_last_heartbeat():
    w = World(owner_lease=100)
    assert w.owner_expired() == "OWNER_ALIVE"
    w.wait(60)
    assert w.heartbeat() == "OK"
    assert w.said == Lease("o1", 160)
    w.wait(100)
    assert w.owner_expired() == "OWNER_ALIVE"
    w.wait(1)
    assert w.owner_expired() == "OK"
    assert (w.owner(), w.alarms()) == ("EXPIRED", {"OWNER_EXPIRED"})
    assert w.heartbeat() == "SESSION_EXPIRED"
    assert w.owner_expired() == "OK"
    assert w.owner_gone() == "OK"
    assert w.owner() == "GONE"


def test_time_never_runs_backwards():
    w = World(owner_lease=100)
    w.wait(90)
    w.heartbeat()
    w.now = 0
    assert w.heartbeat() == "OK"
    assert (w.said.until, w.r.now) == (190, 90)


@pytest.mark.parametrize("end", ["expired", "gone"])
def test_all_refs_of_an_owner_leave_at_once_and_once(end: str):
    w = World(owners=["o1", "o2"]).boot("A")
    for s in ("s1", "s2", "s3"):
        w.bind_first(s, "o1")
    w.bind_first("x", "o2")
    w.close_and_release("s3", "o1")
    w.begin_close("s2", "o1")
    w.publish("B")
    assert w.refs("A") == 3
    w.wait(30_000)
    w.heartbeat("o2")
    w.wait(1)
    assert (w.owner_expired("o1") if end == "expired" else w.owner_gone("o1")) == "OK"
    assert (w.refs("A"), w.wakes()) == (1, {"reclaimer"})
    assert [w.session(s, "o1") for s in ("s1", "s2", "s3")] == ["EXPIRED", "EXPIRED", "CLOSED"]
    assert w.may_dispatch("s1", "o1") == "SESSION_EXPIRED"
    assert w.bind_first("s3", "o1") == "SESSION_CLOSED"
    for verb in (w.open, w.bind_first):
        assert verb("s1", "o1") == "SESSION_EXPIRED"
    for verb in (w.begin_close, w.close_and_release):
        assert verb("s1", "o1") == "ALREADY_CLOSED"
    assert w.refs("A") == 1
    assert w.session("x", "o2") == "BOUND"


def test_an_owners_id_is_never_used_again():
    w = World()
    w.owner_gone()
    assert w.owner_up() == "SESSION_EXPIRED"
    assert w.owner_up("o2") == "OK"


def test_registering_twice_keeps_the_lease():
    w = World(owner_lease=100)
    w.wait(50)
    registry = w.r
    assert w.owner_up() == "OK"
    assert w.said == Lease("o1", 100)
    assert w.r is registry


def test_after_a_recovery_every_lease_is_granted_anew():
    w = World(owner_lease=100, driver_lease=100, owners=["o1", "o2"])
    w.owner_gone("o2")
    w.reserve("A")
    w.wait(10_000)
    assert w.recovered() == "OK"
    assert w.owner_expired() == "OWNER_ALIVE"
    assert w.takeover("A", token="successor") == "DRIVER_ALIVE"
    assert w.owner("o2") == "GONE"
    registry = w.r
    assert w.recovered() == "OK"
    assert w.r is registry
    w.wait(101)
    assert w.owner_expired() == "OK"
    assert w.takeover("A", token="successor") == "OK"


# max_version_lag, rule 9


def test_without_the_policy_nothing_is_forced():
    w = World(capacity=4, engine_slots=5).boot("v1")
    w.bind_first("s")
    for v in ("v2", "v3", "v4"):
        w.publish(v)
    assert (w.refs("v1"), w.may_dispatch("s")) == (1, "v1")


def test_a_version_beyond_the_lag_is_taken_from_its_sessions():
    w = World(max_version_lag=1, owners=["o1", "o2"]).boot("A")
    w.bind_first("s")
    w.bind_first("t")
    w.close_and_release("t")
    w.publish("B")
    assert (w.version("A"), w.refs("A"), w.routable("A")) == ("RETIRED", 0, set())
    assert w.may_dispatch("s") == "VERSION_RETIRED_BY_POLICY"
    assert w.bind_first("s") == "VERSION_RETIRED_BY_POLICY"
    assert w.heartbeat() == "OK"
    assert w.said.revoked == (w.key("A"),)
    assert w.heartbeat("o2") == "OK"
    assert w.said.revoked == ()
    assert w.rollback("A") == "VERSION_RETIRED_BY_POLICY"
    assert w.claim_reclaim("A") == "OK"
    assert w.close_and_release("s") == "OK"
    assert w.said == Closed(w.session_key("s"))
    assert (w.session("s"), w.refs("A")) == ("CLOSED", 0)


def test_an_owner_that_expires_gives_back_no_revoked_ref():
    w = World(max_version_lag=1).boot("A")
    w.bind_first("s")
    w.publish("B")
    w.bind_first("t")
    w.owner_gone()
    assert (w.refs("A"), w.refs("B")) == (0, 0)


# Epochs


def test_a_session_of_another_epoch_is_nobodys():
    w = World().boot("A")
    assert w.do(BindFirst(session=SessionKey("e2", "o1", 0))) == "OTHER_EPOCH"
    assert w.said.field == "epoch"
    assert w.session("s") is None


def test_a_version_of_another_epoch_is_nobodys():
    w = World().boot("A")
    said = w.do(Reserve(key=VersionKey("e2", 9), digest=digest_of("B"), plan=store_plan(), token="t"))
    assert (said, w.said.field, w.r.unresolved) == ("OTHER_EPOCH", "epoch", 0)


@pytest.mark.parametrize(
    "session", [SessionKey("e2", "o1", 0), SessionKey("e1", "nobody", 0), SessionKey("e1", "o1", 7)]
)
def test_of_a_session_that_nobody_opened_nothing_is_known_and_nothing_may_be_sent(session):
    w = World().boot("A")
    w.bind_first("s")
    assert session_state(w.r, session) is None
    assert may_dispatch(w.r, session).code == "NO_BINDING"


def test_an_age_is_counted_from_the_binding_and_is_never_negative():
    w = World().boot("A")
    w.now = 1_000
    w.bind_first("s")
    assert [blocker(w.r, w.key("A"), now).oldest_age for now in (900, 1_000, 1_250)] == [0, 0, 250]


def test_what_was_said_about_one_gap_leaves_the_others():
    w = World().boot("A")
    w.owner_up()
    for sequence in (10, 20, 30, 15, 5, 25, 11, 9):
        w.do(CloseAndRelease(session=SessionKey("e1", "o1", sequence)))
    assert w.r.owners["o1"].gaps == ((0, 4), (6, 8), (12, 14), (16, 19), (21, 24), (26, 29))
    assert w.r.owners["o1"].next_sequence == 31
    for unseen in (0, 7, 13, 17, 22, 28, 31):
        assert w.do(Open(session=SessionKey("e1", "o1", unseen), label="")) == "OK"
    assert w.do(Open(session=SessionKey("e1", "o1", 15), label="")) == "SESSION_CLOSED"


@pytest.mark.parametrize("times", [{"o1": 5, "o2": 9}, {"o1": 9, "o2": 5}, {"o1": 7, "o2": 7}])
def test_the_oldest_holder_is_found_over_all_owners(times):
    w = World().boot("A")
    for owner, now in times.items():
        w.do(OwnerUp(owner=owner, now=0))
        w.do(BindFirst(session=SessionKey("e1", owner, 0), now=now))
        w.r = evolve(w.r, now=0)  # the other binding may have been earlier
    oldest = min(times, key=lambda owner: (times[owner], owner))
    assert blocker(w.r, w.key("A"), 20).oldest == SessionKey("e1", oldest, 0)
    assert blocker(w.r, w.key("A"), 20).oldest_age == 20 - times[oldest]


def test_a_blocker_says_what_is_waited_for():
    w = World().boot("A")
    w.bind_first("s")
    assert "the default" in blocker(w.r, w.key("A"), 0).waits_for
    w.publish("B")
    assert "1 session(s) hold it" in blocker(w.r, w.key("A"), 0).waits_for
    w.close_and_release("s")
    assert "a reclaim may be claimed" in blocker(w.r, w.key("A"), 0).waits_for
    w.claim_reclaim("A")
    assert "unload not confirmed by E0, E1;" in blocker(w.r, w.key("A"), 0).waits_for
    w.unloaded("E0", "reclaim-A")
    assert "unload not confirmed by E1;" in blocker(w.r, w.key("A"), 0).waits_for
    w.unloaded("E1", "reclaim-A")
    w.make_ready("C")
    assert "its publication is under way" in blocker(w.r, w.key("C"), 0).waits_for
    w.abort("C")
    w.cleaned("E1")
    assert "cleanup not confirmed by E0;" in blocker(w.r, w.key("C"), 0).waits_for


def test_a_heartbeat_that_renews_nothing_changes_nothing():
    w = World().boot("A")
    w.owner_up()
    before = w.r
    assert w.heartbeat() == "OK"
    assert w.r is before


def test_nobody_holds_a_version_without_sessions():
    w = World().boot("A")
    assert oldest_holder(w.r, w.key("A")) is None


def test_nothing_stands_in_for_a_version_that_is_gone():
    """No step leads there (I2, I3); a registry that was made otherwise must not route to another version's weights."""
    w = World().boot("A")
    w.bind_first("s")
    gone = evolve(w.r.versions[w.key("A")], state=VersionState.RECLAIMED)
    r = evolve(w.r, versions=w.r.versions.set(gone.key, gone))
    assert may_dispatch(r, SessionKey("e1", "o1", 0)).code == "VERSION_GONE"


@pytest.mark.parametrize("event", [None, "open", object(), Done()])
def test_what_is_no_event_is_refused(event):
    w = World().boot("A")
    done = step(w.r, event)
    assert (done.registry is w.r, done.outcome.code, done.outcome.field) == (True, "BAD_INPUT", "event")


def test_only_the_last_ref_of_a_retired_version_wakes_the_reclaimer():
    w = World().boot("A")
    for name in ("s", "t"):
        w.bind_first(name)
    w.publish("B")
    w.close_and_release("s")
    assert w.wakes() == set()
    w.close_and_release("t")
    assert w.wakes() == {"reclaimer"}
    w.bind_first("u")
    w.close_and_release("u")
    assert w.wakes() == set()  # the default's last


def test_a_lease_names_revoked_versions_only():
    w = World().boot("A")
    w.bind_first("s")
    assert w.heartbeat() == "OK"
    assert w.said.revoked == ()


def test_a_session_keeps_the_label_that_it_was_opened_with():
    w = World().boot("A")
    w.owner_up()
    key = SessionKey("e1", "o1", 0)
    assert w.do(Open(session=key, label="agent 7")) == "OK"
    assert w.do(BindFirst(session=key)) == "OK"
    assert w.r.owners["o1"].sessions[0].label == "agent 7"
    w.do(BeginClose(session=key))
    assert w.r.owners["o1"].sessions[0].label == "agent 7"

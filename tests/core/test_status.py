"""Status: one call that says who holds what and what would free it (scenario S70, protocol rule 16)."""

import json

import pytest

from lorafsm.events import (
    Abort,
    ArtifactStored,
    BindFirst,
    ClaimReclaim,
    CloseAndRelease,
    Commit,
    ConfirmReclaim,
    EngineJoin,
    EngineLost,
    EngineUp,
    Event,
    OrderRepair,
    OwnerExpired,
    OwnerUp,
    Prepared,
    Ready,
    ReclaimUnknown,
    Reserve,
    TargetUnknown,
)
from lorafsm.identity import SessionKey, VersionKey
from lorafsm.lifecycle import EngineState, TargetState, UnloadState, VersionState
from lorafsm.manifest import store_plan
from lorafsm.outcomes import Code
from lorafsm.records import Config, Registry, Resident, new_registry
from lorafsm.registry import step
from lorafsm.status import status

EPOCH = "e1"


def key(version_id: int) -> VersionKey:
    return VersionKey(EPOCH, version_id)


def session(sequence: int) -> SessionKey:
    return SessionKey(EPOCH, "o1", sequence)


def digest(version_id: int) -> str:
    return f"{version_id:064x}"


def after(registry: Registry, *happened: Event) -> Registry:
    """The registry after events that must all be accepted."""
    for event in happened:
        done = step(registry, event)
        assert done.outcome.ok, done.outcome
        registry = done.registry
    return registry


def fleet(config: Config | None = None) -> Registry:
    joins = [EngineJoin(engine=e, incarnation=1, seq=1, base_fingerprint="", now=1000) for e in ("E0", "E1")]
    return after(new_registry(EPOCH, config), OwnerUp(owner="o1", now=1000), *joins)


def reserve(version_id: int, now: int) -> Reserve:
    return Reserve(key=key(version_id), digest=digest(version_id), plan=store_plan(), token=f"t{version_id}", now=now)


def ready(version_id: int, number: int, engine: str, seq: int) -> list[Event]:
    at = {"number": number, "engine": engine, "incarnation": 1}
    proof = {"key": key(version_id), "digest": digest(version_id), "base_fingerprint": "", "probe_ok": True}
    return [Prepared(**at, seq=seq), Ready(**at, seq=seq + 1, **proof)]


def published(registry: Registry, version_id: int, now: int) -> Registry:
    number, revision = registry.next_number, registry.default_revision
    return after(
        registry,
        reserve(version_id, now),
        ArtifactStored(key=key(version_id), digest=digest(version_id)),
        *ready(version_id, number, "E0", 10 * number),
        *ready(version_id, number, "E1", 10 * number),
        Commit(key=key(version_id), token=f"t{version_id}", expected_revision=revision, now=now),
    )


def test_an_empty_registry_says_that_it_needs_engines():
    s = status(new_registry(EPOCH))
    assert (s.default, s.revision, s.slots_used, s.live_sessions) == (None, 0, 0, 0)
    assert s.next_reserve is not None
    assert s.next_reserve.code is Code.TARGET_UNAVAILABLE


def test_a_free_slot_and_a_live_fleet_block_nothing():
    s = status(fleet())
    assert s.next_reserve is None
    assert s.holders == ()
    assert [(e.engine, e.state) for e in s.engines] == [("E0", EngineState.UP), ("E1", EngineState.UP)]


def test_who_holds_a():
    r = published(fleet(), 1, 2000)
    r = after(r, BindFirst(session=session(0), now=3000), BindFirst(session=session(1), now=4000))
    r = published(r, 2, 5000)
    s = status(r, now=9000)
    old, new = s.versions
    assert (old.state, old.session_refs, old.age) == (VersionState.RETIRED, 2, 4000)
    assert (old.oldest, old.oldest_age) == (session(0), 6000)
    assert old.routable == ("E0", "E1")
    assert old.digest == digest(1)
    assert (new.state, new.session_refs, new.oldest) == (VersionState.PUBLISHED, 0, None)
    assert (s.default, s.revision, s.slots_used, s.capacity) == (key(2), 2, 2, 2)
    assert (s.live_owners, s.live_sessions) == (1, 2)
    assert s.next_reserve is not None
    assert s.next_reserve.code is Code.CAPACITY_ERROR
    assert s.next_reserve.blockers == s.holders
    assert "2 session(s)" in s.holders[0].waits_for


def test_the_order_of_what_blocks_is_that_of_reserve():
    """An open attempt is named before the missing slot; it is step's own refusal, whatever that is."""
    r = after(published(fleet(Config(capacity=1)), 1, 2000), BindFirst(session=session(0), now=2500))
    seen = status(r).next_reserve
    asked = step(r, reserve(9, r.now)).outcome
    assert seen == asked
    r = after(fleet(Config(capacity=1)), reserve(1, 2000))
    blocked = status(r).next_reserve
    assert blocked is not None
    assert blocked.code is Code.PUBLICATION_IN_PROGRESS


def test_asking_takes_no_slot_and_no_number():
    r = fleet()
    assert status(r) == status(r)
    assert (r.next_number, len(r.slots), len(r.tokens), len(r.versions)) == (1, 0, 0, 0)


def test_a_used_status_token_or_version_id_does_not_matter():
    r = fleet()
    taken = Reserve(key=key(0), digest=digest(0), plan=store_plan(), token="status-0", now=2000)
    r = after(r, taken)
    blocked = status(r).next_reserve
    assert blocked is not None
    assert blocked.code is Code.PUBLICATION_IN_PROGRESS


def test_the_open_attempt_shows_its_targets_and_lease_but_no_token():
    r = after(fleet(), reserve(1, 2000), *ready(1, 1, "E0", 10))
    r = after(r, TargetUnknown(number=1, engine="E1", incarnation=1))
    s = status(r, now=12_000)
    assert s.attempt is not None
    assert [(t.engine, t.state) for t in s.attempt.targets] == [("E0", TargetState.READY), ("E1", TargetState.UNKNOWN)]
    assert s.attempt.not_ready == ("E1",)
    assert s.attempt.driver_lease == 50_000
    assert status(r, now=90_000).attempt.driver_lease == 0  # type: ignore[union-attr]
    assert "t1" not in json.dumps(s.as_dict())


def test_an_aborted_attempt_says_what_waits():
    r = after(fleet(), reserve(1, 2000), *ready(1, 1, "E0", 10), Abort(key=key(1), token="t1", reason="enough"))
    s = status(r)
    assert s.attempt is not None
    assert (s.attempt.state, s.attempt.reason, s.attempt.not_ready) == ("ABORTED", "enough", ())
    assert s.next_reserve is not None
    assert s.next_reserve.code is Code.PUBLICATION_UNRESOLVED
    assert s.next_reserve.engines == ("E0", "E1")
    assert s.versions[0].failure == "enough"


def test_a_reclaim_shows_each_unload():
    r = published(published(fleet(), 1, 2000), 2, 3000)
    r = after(
        r,
        ClaimReclaim(key=key(1), reclaim_id="r1", now=4000),
        ReclaimUnknown(reclaim_id="r1", engine="E1", incarnation=1),
        ConfirmReclaim(reclaim_id="r1", engine="E0", incarnation=1, seq=99, observed_absent=True),
    )
    s = status(r, now=5500)
    [reclaim] = s.reclaims
    assert (reclaim.reclaim_id, reclaim.key, reclaim.age) == ("r1", key(1), 1500)
    assert [(u.engine, u.state) for u in reclaim.unloads] == [
        ("E0", UnloadState.UNLOADED),
        ("E1", UnloadState.UNKNOWN),
    ]
    assert "E1" in s.holders[0].waits_for
    assert "E0" not in s.holders[0].waits_for
    done = after(r, ConfirmReclaim(reclaim_id="r1", engine="E1", incarnation=1, seq=99, observed_absent=True))
    after_it = status(done)
    assert after_it.reclaims == ()
    assert after_it.versions[0].state is VersionState.RECLAIMED
    assert not after_it.versions[0].holds_slot
    assert after_it.next_reserve is None


def test_an_engine_shows_residents_strays_and_repairs():
    r = published(fleet(), 1, 2000)
    stray = Resident(key(7), digest(7), 0)
    up = EngineUp(engine="E0", incarnation=2, seq=1, base_fingerprint="", residents=frozenset({stray}), now=3000)
    r = after(r, up, OrderRepair(key=key(1), engine="E0", now=3000))
    e0, e1 = status(r, now=3500).engines
    assert (e0.incarnation, e0.state, e0.residents, e0.age) == (2, EngineState.REPAIRING, (), 500)
    assert len(e0.strays) == 1
    assert [(repair.number, repair.key) for repair in e0.repairs] == [(2, key(1))]
    assert (e1.residents, e1.strays, e1.repairs) == ((key(1),), (), ())
    assert status(r).versions[0].routable == ("E1",)


def test_a_lost_engine_blocks_the_next_reserve_by_name():
    s = status(after(fleet(), EngineLost(engine="E1", incarnation=1)))
    assert s.next_reserve is not None
    assert (s.next_reserve.code, s.next_reserve.engines) == (Code.TARGET_UNAVAILABLE, ("E1",))


def test_sessions_of_an_expired_owner_are_not_live():
    r = after(published(fleet(), 1, 2000), BindFirst(session=session(0), now=2000))
    r = after(r, OwnerExpired(owner="o1", now=900_000))
    s = status(r)
    assert (s.live_owners, s.live_sessions, s.versions[0].session_refs) == (0, 0, 0)


def test_time_never_runs_backwards():
    r = published(fleet(), 1, 5000)
    assert status(r, now=1).now == r.now
    assert status(r).now == r.now


def test_a_closed_session_leaves_the_count():
    r = after(published(fleet(), 1, 2000), BindFirst(session=session(0)), BindFirst(session=session(1)))
    assert status(after(r, CloseAndRelease(session=session(0)))).live_sessions == 1


@pytest.mark.parametrize("now", [None, 10_000])
def test_as_dict_is_plain_json(now: int | None):
    r = after(published(fleet(), 1, 2000), BindFirst(session=session(0), now=2500))
    r = after(published(r, 2, 3000), EngineLost(engine="E1", incarnation=1))
    plain = status(r, now).as_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["default"] == "e1-2"
    assert plain["versions"][0]["oldest"] == "e1/o1/0"
    assert plain["next_reserve"]["code"] == "CAPACITY_ERROR"
    assert plain["next_reserve"]["blockers"][0]["key"] == "e1-1"
    assert plain["engines"][0]["residents"] == ["e1-1", "e1-2"]

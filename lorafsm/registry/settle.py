"""What follows by itself once its last condition is true; called at the end of the transitions that may complete it."""

from __future__ import annotations

from attrs import evolve

from lorafsm.identity import VersionKey
from lorafsm.lifecycle import ALIVE, AttemptState, EngineState, ReclaimState, TargetState, UnloadState, VersionState
from lorafsm.records import Attempt, Registry
from lorafsm.registry.view import lacks


def unclean(attempt: Attempt) -> tuple[str, ...]:
    """The targets that may still hold something of the attempt."""
    return tuple(sorted(t.engine for t in attempt.targets.values() if t.state is not TargetState.CLEANED))


def with_clean_attempt(r: Registry, now: int) -> Registry:
    """Free the slot of an aborted attempt once every target is clean: FAILED_CLEAN (RFC 3.4, I11)."""
    attempt = r.attempts.get(r.unresolved)
    if attempt is None or attempt.state is not AttemptState.ABORTED or unclean(attempt):
        return r
    version = evolve(r.versions[attempt.key], state=VersionState.FAILED_CLEAN, since=now)
    return evolve(
        r,
        versions=r.versions.set(attempt.key, version),
        attempts=r.attempts.set(attempt.number, evolve(attempt, state=AttemptState.CLEAN)),
        slots=_without(r.slots, attempt.key),
        unresolved=0,
    )


def with_done_reclaim(r: Registry, reclaim_id: str, now: int) -> Registry:
    """Free the slot of a reclaimed version once every engine confirmed or is dead: RECLAIMED (RFC 5.2, I11)."""
    reclaim = r.reclaims[reclaim_id]
    if any(u.state is not UnloadState.UNLOADED for u in reclaim.unloads.values()):
        return r
    version = evolve(r.versions[reclaim.key], state=VersionState.RECLAIMED, since=now)
    return evolve(
        r,
        versions=r.versions.set(reclaim.key, version),
        reclaims=r.reclaims.set(reclaim_id, evolve(reclaim, state=ReclaimState.DONE)),
        slots=_without(r.slots, reclaim.key),
    )


def with_serving_states(r: Registry, now: int) -> Registry:
    """UP while a member holds all that sessions may need, REPAIRING while it does not (rule 15)."""
    engines = r.engines
    for name, engine in sorted(r.engines.items()):
        serving = EngineState.REPAIRING if lacks(engine, r) else EngineState.UP
        if engine.state in ALIVE and engine.state is not serving:
            engines = engines.set(name, evolve(engine, state=serving, since=now))
    return evolve(r, engines=engines)


def _without(slots: tuple[VersionKey, ...], key: VersionKey) -> tuple[VersionKey, ...]:
    return tuple(slot for slot in slots if slot != key)

"""Engines that come, go, restart and are repaired (protocol rules 14-16).

Silence proves nothing; a dead incarnation proves absence; a new one proves nothing until its inventory and its
READYs do.
"""

from __future__ import annotations

from attrs import evolve
from immutables import Map

from lorafsm.effects import Alarm, Wake
from lorafsm.events import EngineDead, EngineJoin, EngineLost, EngineRemove, EngineUp, Quarantine
from lorafsm.identity import DIGEST_PREFIX_LENGTH, MANAGED_PREFIX
from lorafsm.lifecycle import (
    ALIVE,
    AttemptState,
    EngineState,
    RepairState,
    TargetState,
    UnloadState,
    VersionState,
)
from lorafsm.outcomes import Code, Done
from lorafsm.records import MAX_ENGINES, Engine, Inventory, Registry, Resident, Stray
from lorafsm.registry.answer import Step, refuse
from lorafsm.registry.reclaim import absent_from
from lorafsm.registry.settle import with_clean_attempt, with_done_reclaim, with_serving_states
from lorafsm.registry.view import members

_WAKE_ALL = (Wake("publisher"), Wake("reclaimer"), Wake("repairer"))


def engine_join(r: Registry, e: EngineJoin, now: int) -> Step:
    """A new member.  It disturbs no publication under way and is repaired after the commit (rules 3, 14)."""
    known = r.engines.get(e.engine)
    if known is not None and known.state is not EngineState.REMOVED:
        if known.state in ALIVE and known.incarnation == e.incarnation:
            return Step(r, Done())
        return refuse(
            r, Code.ALREADY_MEMBER, f"{e.engine} is a member ({known.state}); report it with engine_up", field="engine"
        )
    if known is not None and e.incarnation <= known.incarnation:
        return refuse(
            r,
            Code.STALE_INCARNATION,
            f"incarnation {known.incarnation} of {e.engine} is dead; a new process has a larger one",
            field="incarnation",
        )
    if len(members(r)) >= MAX_ENGINES:
        return refuse(r, Code.FLEET_FULL, f"at most {MAX_ENGINES} members; remove a dead one first")
    if e.base_fingerprint != r.config.base_fingerprint:
        return refuse(
            r, Code.BASE_MISMATCH, "base weights or tokenizer differ from the deployment's", field="base_fingerprint"
        )
    joined = Engine(e.engine, e.incarnation, EngineState.UP, now)
    return Step(_reconciled(r, joined, e, now), Done(), _WAKE_ALL)


def engine_up(r: Registry, e: EngineUp, now: int) -> Step:
    """A live incarnation's inventory reconciles; a new incarnation fences all that belonged to older ones (rule 14).

    An inventory is always taken in, also one that says nothing new: it shows that the engine was there at `now`.
    """
    known = r.engines.get(e.engine)
    if known is None or known.state is EngineState.REMOVED:
        return refuse(r, Code.UNKNOWN_ENGINE, f"{e.engine} is no member; let it join", field="engine")
    dead = e.incarnation == known.incarnation and known.state is EngineState.DEAD
    if e.incarnation < known.incarnation or dead:
        return refuse(
            r, Code.STALE_INCARNATION, f"incarnation {e.incarnation} of {e.engine} is dead", field="incarnation"
        )
    if e.base_fingerprint != r.config.base_fingerprint:
        return refuse(
            r, Code.BASE_MISMATCH, "base weights or tokenizer differ from the deployment's", field="base_fingerprint"
        )
    if e.incarnation > known.incarnation:
        return _restarted(r, known, e, now)
    if e.seq < known.seq:
        return refuse(
            r,
            Code.STALE_SEQ,
            f"{e.engine} answered seq {known.seq} already; take a new inventory",
            field="seq",
        )
    back = evolve(known, state=EngineState.UP, since=now) if known.state is EngineState.LOST else known
    return Step(_reconciled(r, back, e, now), Done(), _WAKE_ALL)


def _restarted(r: Registry, known: Engine, e: EngineUp, now: int) -> Step:
    fenced = _fenced(r, known, e, now)
    fresh = Engine(e.engine, e.incarnation, EngineState.UP, now)
    after = _reconciled(fenced, fresh, e, now)
    alarm = Alarm("ENGINE_RESTARTED", f"{e.engine}: incarnation {known.incarnation} ended, {e.incarnation} is up")
    return Step(after, Done(), (*_WAKE_ALL, alarm))


def _member(r: Registry, e: EngineDead | EngineLost | Quarantine) -> Engine | Step:
    """The member that this is about, under the incarnation that the registry knows; else the refusal."""
    known = r.engines.get(e.engine)
    if known is None or known.state is EngineState.REMOVED:
        return refuse(r, Code.UNKNOWN_ENGINE, f"{e.engine} is no member", field="engine")
    if e.incarnation != known.incarnation:
        return refuse(
            r, Code.STALE_INCARNATION, f"the live incarnation of {e.engine} is {known.incarnation}", field="incarnation"
        )
    return known


def engine_dead(r: Registry, e: EngineDead, now: int) -> Step:
    """Proof that the process ended: what it held is gone, without a successor (rule 14)."""
    known = _member(r, e)
    if isinstance(known, Step):
        return known
    if known.state is EngineState.DEAD:
        return Step(r, Done())
    fenced = _fenced(r, known, None, now)
    dead = Engine(e.engine, e.incarnation, EngineState.DEAD, now, reason=e.evidence)
    after = evolve(fenced, engines=fenced.engines.set(e.engine, dead))
    return Step(_settled(after, now), Done(), (*_WAKE_ALL, Alarm("ENGINE_DEAD", f"{e.engine}: {e.evidence}")))


def engine_lost(r: Registry, e: EngineLost, now: int) -> Step:
    """Silence suspends: READYs do not count, nothing is routed; nothing is concluded (rule 3)."""
    known = _member(r, e)
    if isinstance(known, Step):
        return known
    if known.state not in ALIVE:
        return Step(r, Done())
    lost = evolve(known, state=EngineState.LOST, since=now)
    alarm = Alarm("ENGINE_LOST", f"{e.engine} does not answer")
    return Step(evolve(r, engines=r.engines.set(e.engine, lost)), Done(), (*_WAKE_ALL, alarm))


def engine_remove(r: Registry, e: EngineRemove, now: int) -> Step:
    """A dead member leaves; its id may join again with a larger incarnation (rule 14)."""
    known = r.engines.get(e.engine)
    if known is None:
        return refuse(r, Code.UNKNOWN_ENGINE, f"{e.engine} is no member", field="engine")
    if known.state is EngineState.REMOVED:
        return Step(r, Done())
    if known.state is not EngineState.DEAD:
        return refuse(
            r, Code.NOT_DEAD, f"{e.engine} is {known.state}; stop it and declare it dead first", field="engine"
        )
    removed = evolve(known, state=EngineState.REMOVED, since=now)
    return Step(evolve(r, engines=r.engines.set(e.engine, removed)), Done(), (Wake("publisher"),))


def quarantine(r: Registry, e: Quarantine, now: int) -> Step:
    """The member broke a promise: it serves nothing until a new incarnation is up (rules 13, 15)."""
    known = _member(r, e)
    if isinstance(known, Step):
        return known
    if known.state in (EngineState.QUARANTINED, EngineState.DEAD):
        return Step(r, Done())
    return Step(
        with_quarantine(r, known, e.reason, now), Done(), (*_WAKE_ALL, Alarm("QUARANTINED", f"{e.engine}: {e.reason}"))
    )


def with_quarantine(r: Registry, engine: Engine, reason: str, now: int) -> Registry:
    """The registry with this engine out of service and its pending repairs withdrawn."""
    out = evolve(engine, state=EngineState.QUARANTINED, since=now, reason=reason, repairs=Map())
    return evolve(_without_repairs(r, engine), engines=r.engines.set(engine.engine, out))


def _without_repairs(r: Registry, engine: Engine) -> Registry:
    repairs = r.repairs
    for number in sorted(engine.repairs.values()):
        repairs = repairs.set(number, evolve(repairs[number], state=RepairState.WITHDRAWN))
    return evolve(r, repairs=repairs)


def _fenced(r: Registry, old: Engine, up: EngineUp | None, now: int) -> Registry:
    """All that belonged to the dead incarnation: its target clean, its reclaims judged, its repairs withdrawn."""
    residents, incarnation = (up.residents, up.incarnation) if up is not None else (frozenset(), old.incarnation)
    r = _without_target(_without_repairs(r, old), old, residents, incarnation)
    for key in r.slots:
        version = r.versions[key]
        if version.state is not VersionState.RECLAIMING:
            continue
        reclaim = r.reclaims[version.reclaim_id]
        unload = reclaim.unloads.get(old.engine)
        if unload is None or unload.state is UnloadState.UNLOADED:
            continue
        if absent_from(residents, reclaim):
            unload = evolve(unload, state=UnloadState.UNLOADED)
        else:
            unload = evolve(unload, state=UnloadState.ORDERED, incarnation=incarnation)
        reclaim = evolve(reclaim, unloads=reclaim.unloads.set(old.engine, unload))
        r = evolve(r, reclaims=r.reclaims.set(reclaim.reclaim_id, reclaim))
    return r


def _without_target(r: Registry, old: Engine, residents: frozenset[Resident], incarnation: int) -> Registry:
    attempt = r.attempts.get(r.unresolved)
    if attempt is None:
        return r
    target = attempt.targets.get(old.engine)
    if target is None or target.state is TargetState.CLEANED:
        return r
    listed = any(resident.key == attempt.key for resident in residents)
    fenced = evolve(target, state=TargetState.FAILED if listed else TargetState.CLEANED)
    # An open attempt keeps its frozen incarnation, and is doomed by it; `abort` addresses the successor.
    if listed and attempt.state is AttemptState.ABORTED:
        fenced = evolve(fenced, incarnation=incarnation, seq=-1)
    attempt = evolve(attempt, targets=attempt.targets.set(old.engine, fenced))
    return evolve(r, attempts=r.attempts.set(attempt.number, attempt))


def _reconciled(r: Registry, engine: Engine, e: EngineJoin | EngineUp, now: int) -> Registry:
    """After this inventory: what is not listed is not proved any more; what should not be there is a stray."""
    proved = engine.residents
    for key, resident in engine.residents.items():
        if resident not in e.residents:
            proved = proved.delete(key)
    strays = {Stray(_name(item), item.number) for item in e.residents if not _is_expected(r, engine, item)}
    strays.update(Stray(name, 0) for name in e.foreign if name.startswith(MANAGED_PREFIX))
    after = evolve(
        engine,
        seq=e.seq,
        inventory=Inventory(e.seq, e.residents, e.foreign),
        residents=proved,
        strays=frozenset(strays),
    )
    return _settled(_with_lost_ready(evolve(r, engines=r.engines.set(engine.engine, after)), after), now)


def _with_lost_ready(r: Registry, engine: Engine) -> Registry:
    """A READY target whose adapter the engine does not list any more has FAILED (rule 3)."""
    attempt = r.attempts.get(r.unresolved)
    if attempt is None or attempt.state is not AttemptState.OPEN or attempt.key in engine.residents:
        return r
    target = attempt.targets.get(engine.engine)
    if target is None or target.state is not TargetState.READY:
        return r
    failed = evolve(target, state=TargetState.FAILED, seq=engine.seq, detail="no longer in the engine's inventory")
    attempt = evolve(attempt, targets=attempt.targets.set(engine.engine, failed))
    return evolve(r, attempts=r.attempts.set(attempt.number, attempt))


def _settled(r: Registry, now: int) -> Registry:
    r = with_clean_attempt(r, now)
    for key in r.slots:
        version = r.versions[key]
        if version.state is VersionState.RECLAIMING:
            r = with_done_reclaim(r, version.reclaim_id, now)
    return with_serving_states(r, now)


def _is_expected(r: Registry, engine: Engine, resident: Resident) -> bool:
    """Whether an adapter may be there: loaded here by a number that still answers for it (rule 15)."""
    version = r.versions.get(resident.key)
    if version is None or version.digest != resident.digest:
        return False
    if version.state in (VersionState.RECLAIMED, VersionState.FAILED_CLEAN):
        return False
    if version.state is VersionState.RECLAIMING:
        unload = r.reclaims[version.reclaim_id].unloads.get(engine.engine)
        return unload is not None and unload.state is not UnloadState.UNLOADED
    return _loaded_by_attempt(r, engine, resident) or _loaded_by_repair(r, engine, resident)


def _loaded_by_attempt(r: Registry, engine: Engine, resident: Resident) -> bool:
    attempt = r.attempts.get(resident.number)
    if attempt is None or attempt.key != resident.key:
        return False
    target = attempt.targets.get(engine.engine)
    if target is None or target.state is TargetState.CLEANED:
        return False
    # An unresolved attempt cleans up whatever incarnation lists its candidate.
    return attempt.number == r.unresolved or target.incarnation == engine.incarnation


def _loaded_by_repair(r: Registry, engine: Engine, resident: Resident) -> bool:
    repair = r.repairs.get(resident.number)
    if repair is None or repair.key != resident.key:
        return False
    if (repair.engine, repair.incarnation) != (engine.engine, engine.incarnation):
        return False
    return repair.state in (RepairState.ORDERED, RepairState.READY)


def _name(resident: Resident) -> str:
    return f"{MANAGED_PREFIX}{resident.key}-{resident.digest[:DIGEST_PREFIX_LENGTH]}"

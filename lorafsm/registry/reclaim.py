"""Reclaim: from "no session can need it" to "no engine holds it" (RFC 5, protocol rules 11-13)."""

from __future__ import annotations

from attrs import evolve
from immutables import Map

from lorafsm.effects import Alarm, Wake
from lorafsm.events import ClaimReclaim, ConfirmReclaim, ReclaimUnknown
from lorafsm.lifecycle import EngineState, ReclaimState, RepairState, UnloadState, VersionState
from lorafsm.outcomes import Code, Done, ReclaimOrdered, Refusal
from lorafsm.records import Reclaim, Registry, Resident, Unload, Version
from lorafsm.registry.answer import Step, refuse
from lorafsm.registry.progress import contradicted, seen
from lorafsm.registry.settle import with_done_reclaim, with_serving_states
from lorafsm.registry.view import blocker, members


def claim_reclaim(r: Registry, e: ClaimReclaim, now: int) -> Step:
    """RETIRED and unheld: no dispatch any more, unload everywhere, under one stable id (RFC 5.1, rule 11)."""
    version = r.versions.get(e.key)
    if version is None:
        return refuse(r, Code.UNKNOWN_VERSION, f"{e.key} was never reserved", field="key")
    if version.reclaim_id:
        return Step(r, r.receipts[("claim_reclaim", version.reclaim_id)])
    if e.reclaim_id in r.reclaims:
        taken = r.reclaims[e.reclaim_id].key
        return refuse(r, Code.OPERATION_CONFLICT, f"this id reclaims {taken}; make a fresh one", field="reclaim_id")
    if version.state is not VersionState.RETIRED:
        return refuse(r, Code.NOT_RETIRED, f"{e.key} is {version.state}; only a RETIRED version is reclaimed")
    if version.session_refs:
        held = blocker(r, e.key, now)
        oldest = f", the oldest {held.oldest} for {held.oldest_age} ms" if held.oldest is not None else ""
        return Step(r, Refusal(Code.SESSION_REFS_HELD, f"{held.waits_for}{oldest}", blockers=(held,)))
    return _open_reclaim(r, e, version, now)


def _open_reclaim(r: Registry, e: ClaimReclaim, version: Version, now: int) -> Step:
    # Believed holders or not: a load of it may be on its way to any live incarnation.
    targets = tuple((m.engine, m.incarnation) for m in members(r) if m.state is not EngineState.DEAD)
    reclaim = Reclaim(
        e.reclaim_id, e.key, ReclaimState.OPEN, Map({name: Unload(name, inc) for name, inc in targets}), now
    )
    receipt = ReclaimOrdered(e.reclaim_id, e.key, targets)
    after = evolve(
        with_withdrawn_repairs(r, version),
        versions=r.versions.set(
            e.key, evolve(version, state=VersionState.RECLAIMING, since=now, reclaim_id=e.reclaim_id)
        ),
        reclaims=r.reclaims.set(e.reclaim_id, reclaim),
        receipts=r.receipts.set(("claim_reclaim", e.reclaim_id), receipt),
    )
    settled = with_serving_states(with_done_reclaim(after, e.reclaim_id, now), now)
    return Step(settled, receipt, (Wake("reclaimer"),))


def with_withdrawn_repairs(r: Registry, version: Version) -> Registry:
    """Nobody needs this version any more: its pending repairs are withdrawn (rule 11)."""
    engines, repairs = r.engines, r.repairs
    for m in members(r):
        number = m.repairs.get(version.key)
        if number is not None:
            repairs = repairs.set(number, evolve(repairs[number], state=RepairState.WITHDRAWN))
            engines = engines.set(m.engine, evolve(m, repairs=m.repairs.delete(version.key)))
    return evolve(r, engines=engines, repairs=repairs)


def confirm_reclaim(r: Registry, e: ConfirmReclaim, now: int) -> Step:
    """An engine observed the version's absence; the last confirmation frees the slot (RFC 5.2, rule 12)."""
    found = _unload(r, e)
    if isinstance(found, Refusal):
        return Step(r, found)
    reclaim, unload = found
    if unload.state is UnloadState.UNLOADED:
        return Step(r, Done())
    if not e.observed_absent:
        return refuse(
            r,
            Code.NOT_ABSENT,
            "the receipt does not show that the version is absent; repeat the order",
            engines=(e.engine,),
        )
    engine = r.engines[e.engine]
    listed = {resident for resident in engine.inventory.residents if resident.key == reclaim.key}
    if any(contradicted(engine, e.seq, resident, present=False) for resident in listed):
        return refuse(r, Code.STALE_SEQ, "a later inventory of this engine lists the version", engines=(e.engine,))
    gone = engine.residents.delete(reclaim.key) if reclaim.key in engine.residents else engine.residents
    after = evolve(
        r,
        engines=r.engines.set(e.engine, evolve(seen(engine, e.seq), residents=gone)),
        reclaims=r.reclaims.set(e.reclaim_id, _with_unload(reclaim, evolve(unload, state=UnloadState.UNLOADED))),
    )
    return Step(with_done_reclaim(after, e.reclaim_id, now), Done(), (Wake("publisher"), Wake("reclaimer")))


def reclaim_unknown(r: Registry, e: ReclaimUnknown, now: int) -> Step:
    """No answer in time: the slot stays held until a repeat is confirmed or the incarnation is dead (rule 16)."""
    found = _unload(r, e)
    if isinstance(found, Refusal):
        return Step(r, found)
    reclaim, unload = found
    if unload.state is not UnloadState.ORDERED:
        return Step(r, Done())
    unknown = _with_unload(reclaim, evolve(unload, state=UnloadState.UNKNOWN))
    alarm = Alarm("RECLAIM_STUCK", f"{reclaim.key} on {e.engine}: unload not confirmed after {now - reclaim.since} ms")
    return Step(evolve(r, reclaims=r.reclaims.set(e.reclaim_id, unknown)), Done(), (Wake("reclaimer"), alarm))


def _unload(r: Registry, e: ConfirmReclaim | ReclaimUnknown) -> tuple[Reclaim, Unload] | Refusal:
    reclaim = r.reclaims.get(e.reclaim_id)
    if reclaim is None:
        return Refusal(Code.UNKNOWN_RECLAIM, f"no reclaim has the id {e.reclaim_id}", field="reclaim_id")
    unload = reclaim.unloads.get(e.engine)
    if unload is None:
        return Refusal(Code.UNKNOWN_ENGINE, f"{e.engine} is no target of this reclaim", field="engine")
    if e.incarnation != unload.incarnation:
        return Refusal(
            Code.STALE_INCARNATION, f"this reclaim waits for incarnation {unload.incarnation}", field="incarnation"
        )
    return reclaim, unload


def _with_unload(reclaim: Reclaim, unload: Unload) -> Reclaim:
    return evolve(reclaim, unloads=reclaim.unloads.set(unload.engine, unload))


def absent_from(residents: frozenset[Resident], reclaim: Reclaim) -> bool:
    """Whether a new incarnation's inventory lacks the reclaimed version (rule 12).

    A stranger under the version's name, loaded by no number of this epoch, is not the version: it is a stray, which
    counts against that engine's slots until it is observed absent (rule 15).
    """
    return all(resident.key != reclaim.key for resident in residents)

"""Repair: a needed version is loaded again, and proved, on a member that lacks it (protocol rule 15)."""

from __future__ import annotations

from attrs import evolve

from lorafsm.effects import Alarm, Wake
from lorafsm.events import OrderRepair, RepairFailed, RepairReady
from lorafsm.lifecycle import ALIVE, EngineState, RepairState, VersionState
from lorafsm.outcomes import Code, Done, RepairOrdered
from lorafsm.records import Registry, Repair, Resident
from lorafsm.registry.answer import Step, refuse
from lorafsm.registry.fleet import with_quarantine
from lorafsm.registry.progress import contradicted, ready_mismatch, seen, with_resident
from lorafsm.registry.settle import with_serving_states
from lorafsm.registry.view import is_needed


def order_repair(r: Registry, e: OrderRepair, now: int) -> Step:
    """Number a repair; it holds no slot, and asked again it answers the one that is pending."""
    version = r.versions.get(e.key)
    engine = r.engines.get(e.engine)
    if version is None:
        return refuse(r, Code.UNKNOWN_VERSION, f"{e.key} was never reserved", field="key")
    if engine is None or engine.state is EngineState.REMOVED:
        return refuse(r, Code.UNKNOWN_ENGINE, f"{e.engine} is no member", field="engine")
    if e.key in engine.repairs:
        pending = r.repairs[engine.repairs[e.key]]
        return Step(r, RepairOrdered(pending.number, pending.key, pending.engine, pending.incarnation))
    if engine.state not in ALIVE:
        return refuse(r, Code.TARGET_UNAVAILABLE, f"{e.engine} is {engine.state}", engines=(e.engine,))
    if not is_needed(version) or e.key in engine.residents:
        gone = version.state in (VersionState.RECLAIMING, VersionState.RECLAIMED)
        return refuse(
            r, Code.VERSION_GONE if gone else Code.NOT_NEEDED, f"{e.engine} does not need {e.key} ({version.state})"
        )
    if any(stray.lora_name == version.lora_name for stray in engine.strays):
        return refuse(r, Code.NOT_ABSENT, "a stray of the same name must be observed absent first", engines=(e.engine,))
    if not version.artifact:
        return refuse(r, Code.ARTIFACT_MISSING, "the version's bytes are not in the artifact store")
    if now < engine.retry_at:
        return refuse(
            r, Code.BACKING_OFF, f"the last repair of {e.engine} failed; try again in {engine.retry_at - now} ms"
        )
    repair = Repair(r.next_number, e.key, e.engine, engine.incarnation, RepairState.ORDERED)
    after = evolve(
        r,
        engines=r.engines.set(e.engine, evolve(engine, repairs=engine.repairs.set(e.key, repair.number))),
        repairs=r.repairs.set(repair.number, repair),
        next_number=r.next_number + 1,
    )
    return Step(after, RepairOrdered(repair.number, e.key, e.engine, engine.incarnation), (Wake("repairer"),))


def repair_ready(r: Registry, e: RepairReady, now: int) -> Step:
    """The same proof as a publication's READY makes the engine routable for the version."""
    found = _pending(r, e)
    if not isinstance(found, Repair):
        return found
    engine = r.engines[e.engine]
    resident = Resident(found.key, r.versions[found.key].digest, found.number)
    if mismatch := ready_mismatch(r, e, resident):
        return refuse(r, Code.READY_MISMATCH, mismatch, engines=(e.engine,))
    if contradicted(engine, e.seq, resident, present=True):
        return refuse(
            r, Code.STALE_SEQ, "a later inventory of this engine does not list the version", engines=(e.engine,)
        )
    mended = evolve(engine, repairs=engine.repairs.delete(found.key), repair_failures=0, retry_at=0)
    after = with_resident(r, mended, resident, e.seq)
    after = evolve(after, repairs=after.repairs.set(found.number, evolve(found, state=RepairState.READY)))
    return Step(with_serving_states(after, now), Done(), (Wake("repairer"),))


def repair_failed(r: Registry, e: RepairFailed, now: int) -> Step:
    """Back off and try again under a new number; the last failure allowed quarantines the engine."""
    found = _pending(r, e)
    if not isinstance(found, Repair):
        return found
    engine = seen(r.engines[e.engine], e.seq)
    # A repair that nobody needs any more says nothing about the engine.
    failures = engine.repair_failures + is_needed(r.versions[found.key])
    wait = r.config.repair_backoff * 2 ** max(0, failures - 1)
    failed = evolve(engine, repairs=engine.repairs.delete(found.key), repair_failures=failures, retry_at=now + wait)
    after = evolve(
        r,
        engines=r.engines.set(e.engine, failed),
        repairs=r.repairs.set(found.number, evolve(found, state=RepairState.FAILED, reason=e.reason)),
    )
    alarm = Alarm("REPAIR_FAILED", f"{found.key} on {e.engine}: {e.reason}")
    if failures >= r.config.repair_limit:
        after = with_quarantine(after, failed, f"{failures} repairs failed: {e.reason}"[:512], now)
    return Step(after, Done(), (Wake("repairer"), alarm))


def _pending(r: Registry, e: RepairReady | RepairFailed) -> Repair | Step:
    repair = r.repairs.get(e.number)
    if repair is None or repair.engine != e.engine:
        return refuse(r, Code.STALE_REPAIR, f"repair {e.number} is not of {e.engine}", field="number")
    if repair.incarnation != e.incarnation:
        return refuse(
            r, Code.ENGINE_RESTARTED, f"repair {e.number} is for incarnation {repair.incarnation}", field="incarnation"
        )
    done = RepairState.READY if isinstance(e, RepairReady) else RepairState.FAILED
    if repair.state is done:
        return Step(r, Done())
    if repair.state is not RepairState.ORDERED:
        return refuse(r, Code.STALE_REPAIR, f"repair {e.number} is {repair.state}", field="number")
    return repair

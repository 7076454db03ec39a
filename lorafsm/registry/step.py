"""`step(registry, event)`: the one function through which the registry changes (protocol section 2).

Total and deterministic: any event, however malformed, gets an outcome; a refusal changes nothing; the registry
that went in is never mutated.  Time comes in with the event and never runs backwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import evolve

from lorafsm import events
from lorafsm.events import EVENTS, Event
from lorafsm.forms import fault_in
from lorafsm.outcomes import Code
from lorafsm.records import Registry
from lorafsm.registry import fleet, progress, publication, reclaim, repair, sessions
from lorafsm.registry.answer import Step, refuse

_TRANSITIONS: Mapping[type[Any], Callable[[Registry, Any, int], Step]] = {
    events.Reserve: publication.reserve,
    events.ArtifactStored: publication.artifact_stored,
    events.Prepared: progress.prepared,
    events.AuthorizeBucket: publication.authorize_bucket,
    events.BucketDone: progress.bucket_done,
    events.Ready: progress.ready,
    events.TargetFailed: progress.target_failed,
    events.TargetUnknown: progress.target_unknown,
    events.Commit: publication.commit,
    events.Abort: publication.abort,
    events.Cleaned: progress.cleaned,
    events.Takeover: publication.takeover,
    events.Rollback: publication.rollback,
    events.OwnerUp: sessions.owner_up,
    events.Heartbeat: sessions.heartbeat,
    events.OwnerExpired: sessions.owner_expired,
    events.OwnerGone: sessions.owner_gone,
    events.Recovered: sessions.recovered,
    events.Open: sessions.open_session,
    events.BindFirst: sessions.bind_first,
    events.BeginClose: sessions.begin_close,
    events.CloseAndRelease: sessions.close_and_release,
    events.ClaimReclaim: reclaim.claim_reclaim,
    events.ConfirmReclaim: reclaim.confirm_reclaim,
    events.ReclaimUnknown: reclaim.reclaim_unknown,
    events.EngineJoin: fleet.engine_join,
    events.EngineUp: fleet.engine_up,
    events.EngineLost: fleet.engine_lost,
    events.EngineDead: fleet.engine_dead,
    events.EngineRemove: fleet.engine_remove,
    events.Quarantine: fleet.quarantine,
    events.OrderRepair: repair.order_repair,
    events.RepairReady: repair.repair_ready,
    events.RepairFailed: repair.repair_failed,
}
assert set(_TRANSITIONS) == set(EVENTS)


def step(registry: Registry, event: Event) -> Step:
    """The registry after `event`, the outcome, and the effects.  Refusals are outcomes; nothing is raised."""
    transition = _TRANSITIONS.get(type(event))
    if transition is None:
        return refuse(registry, Code.BAD_INPUT, f"{type(event).__name__} is no event", field="event")
    if fault := fault_in(event):
        return refuse(registry, Code.BAD_INPUT, fault[1], field=fault[0])
    key = getattr(event, "key", None) or getattr(event, "session", None)
    if key is not None and key.epoch != registry.epoch:
        return refuse(registry, Code.OTHER_EPOCH, f"this registry's epoch is {registry.epoch}", field="epoch")
    now = max(registry.now, event.now)
    done = transition(registry, event, now)
    if done.registry is not registry and done.registry.now != now:
        return Step(evolve(done.registry, now=now), done.outcome, done.effects)
    return done

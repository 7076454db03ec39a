"""What goes wrong, or comes from outside: each within its budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lorafsm import events as ev
from lorafsm.dispatch import records as heard
from lorafsm.dispatch.records import Admission, Guard
from lorafsm.lifecycle import ALIVE, AttemptState, EngineState, TargetState, UnloadState, VersionState
from lorafsm.records import Registry, Target
from lorafsm.system import actions as do
from lorafsm.system import owner, process
from lorafsm.system.records import Cell, Driver, System
from lorafsm.system.world import OWNER, World, open_attempt

_SETTLED = (TargetState.CLEANED, TargetState.FAILED, TargetState.UNKNOWN)


def moves(world: World, state: System) -> Iterator[do.Action]:
    """The faults of every kind that still has a budget."""
    for kind, action in world.remembered(_possible, state.registry, state.driver, state.owner):
        if kind is None or world.may(state, kind):
            yield action
    for engine in world.ids:
        if _is_quarantined(world, state, engine) and not world.may(state, "crash"):
            yield do.CrashEngine(engine)  # an operator restarts it


def _possible(
    world: World, registry: Cell[Registry], driver: Cell[Driver], guard: Cell[Guard]
) -> tuple[tuple[str | None, do.Action], ...]:
    found: list[tuple[str | None, do.Action]] = []
    for engine in world.ids:
        found += [("crash", do.CrashEngine(engine)), ("dead", do.DeclareDead(engine))]
        if registry.value.engines[engine].state in ALIVE:
            found.append(("lost", do.LoseEngine(engine)))
    if driver.value.token:
        found += [("publisher", do.CrashPublisher()), ("deadline", do.GiveUp())]
    found += [("silence", hush) for hush in _silences(registry.value)]
    found += [("rollback", do.RollBack(v.key)) for v in _sorted(registry.value, VersionState.RETIRED)]
    found += [("reserve", do.RepeatReserve(n)) for n in sorted(registry.value.attempts)]
    found += [("bind", do.RepeatBind(sequence)) for sequence in range(guard.value.next_sequence)]
    if not guard.value.lost:
        found.append(("owner", do.EndOwner()))
        found += [("doubt", do.Doubt(s)) for s, known in sorted(guard.value.sessions.items()) if _is_sent(known)]
    kinds = set(world.kinds)
    return tuple((kind, action) for kind, action in found if kind is None or kind in kinds)


def _open_targets(r: Registry) -> tuple[Target, ...]:
    attempt = open_attempt(r)
    return () if attempt is None else tuple(attempt.targets.values())


def _is_sent(known: heard.GuardedSession) -> bool:
    return known.attempt is not None and known.attempt.admission is not Admission.UNKNOWN


def _sorted(r: Registry, state: VersionState) -> list[Any]:
    return sorted((v for v in r.versions.values() if v.state is state), key=lambda v: v.key)


def _silences(r: Registry) -> Iterator[do.Hush]:
    attempt = r.attempts.get(r.unresolved)
    for target in () if attempt is None else sorted(attempt.targets.values(), key=lambda t: t.engine):
        kept = attempt is not None and attempt.state is AttemptState.OPEN and target.state is TargetState.READY
        if target.state not in _SETTLED and not kept:
            yield do.Hush(target.engine, number=r.unresolved)
    for reclaim_id, reclaim in sorted(r.reclaims.items()):
        for engine, unload in sorted(reclaim.unloads.items()):
            if unload.state is UnloadState.ORDERED:
                yield do.Hush(engine, reclaim_id=reclaim_id)


def _is_quarantined(world: World, state: System, engine: str) -> bool:
    """Whether the process that runs now is the quarantined one."""
    known = state.registry.value.engines[engine]
    running = state.engines[world.ids.index(engine)].value.agent.incarnation
    return known.state is EngineState.QUARANTINED and known.incarnation == running


def _process_ended(world: World, state: System, engine: str) -> System:
    """The process is gone with all that it held; those who wait for its requests hear of it."""
    at = world.ids.index(engine)
    p = state.engines[at].value
    new = world.cell(process.successor(p))
    state = state._replace(engines=(*state.engines[:at], new, *state.engines[at + 1 :]))
    for served in sorted(p.served):
        state = owner.heard_the_end(world, state, served.sequence, served.rid)
    return state


def crash_engine(world: World, state: System, action: do.CrashEngine) -> tuple[System, str]:
    """The registry is not told; a quarantined engine is restarted by an operator."""
    after = _process_ended(world, state, action.engine)
    return (after if _is_quarantined(world, state, action.engine) else world.spent(after, "crash")), "OK"


def declare_dead(world: World, state: System, action: do.DeclareDead) -> tuple[System, str]:
    """The registry hears of the end before it hears of the successor."""
    agent = state.engines[world.ids.index(action.engine)].value.agent
    after = world.spent(_process_ended(world, state, action.engine), "dead")
    event = ev.EngineDead(engine=action.engine, incarnation=agent.incarnation, evidence="exit status")
    after, outcome = world.tell(after, event)
    return after, outcome.code


def crash_publisher(world: World, state: System, action: do.CrashPublisher) -> tuple[System, str]:
    """Token and transport are forgotten; what was broadcast was broadcast."""
    driver = Driver(sent=state.driver.value.sent)
    return world.spent(state._replace(driver=world.cell(driver)), "publisher"), "OK"


def hush(world: World, state: System, action: do.Hush) -> tuple[System, str]:
    """A deadline passed without an answer (RFC 3.4)."""
    r = state.registry.value
    event: ev.Event
    if action.number:
        incarnation = r.attempts[action.number].targets[action.engine].incarnation
        event = ev.TargetUnknown(number=action.number, engine=action.engine, incarnation=incarnation)
    else:
        incarnation = r.reclaims[action.reclaim_id].unloads[action.engine].incarnation
        event = ev.ReclaimUnknown(reclaim_id=action.reclaim_id, engine=action.engine, incarnation=incarnation)
    after, outcome = world.tell(state, event)
    return world.spent(after, "silence"), outcome.code


def lose_engine(world: World, state: System, action: do.LoseEngine) -> tuple[System, str]:
    """Silence suspends and proves nothing."""
    incarnation = state.registry.value.engines[action.engine].incarnation
    after, outcome = world.tell(state, ev.EngineLost(engine=action.engine, incarnation=incarnation))
    return world.spent(after, "lost"), outcome.code


def give_up(world: World, state: System, action: do.GiveUp) -> tuple[System, str]:
    """The publisher aborts at its deadline."""
    attempt = open_attempt(state.registry.value)
    assert attempt is not None
    token = state.driver.value.token
    after, outcome = world.tell(state, ev.Abort(key=attempt.key, token=token, reason="DEADLINE"))
    return world.spent(after, "deadline"), outcome.code


def end_owner(world: World, state: System, action: do.EndOwner) -> tuple[System, str]:
    """The owner's refs leave at once (rule 9)."""
    after, outcome = world.tell(state, ev.OwnerGone(owner=OWNER))
    after, _ = world.ask_guard(after, heard.LeaseLost())
    return world.spent(after, "owner"), outcome.code


def doubt(world: World, state: System, action: do.Doubt) -> tuple[System, str]:
    """The owner does not learn whether its request was admitted."""
    known = state.owner.value.sessions[action.sequence]
    assert known.attempt is not None
    event = heard.AdmissionUnknown(session=world.session(action.sequence), rid=known.attempt.rid)
    after, outcome = world.ask_guard(state, event)
    return world.spent(after, "doubt"), str(outcome.code)


def roll_back(world: World, state: System, action: do.RollBack) -> tuple[System, str]:
    """Refused or not, the operator asked once."""
    r = state.registry.value
    event = ev.Rollback(
        key=action.key,
        expected_revision=r.default_revision,
        operation_id=f"op{action.key.version_id}-{r.default_revision}",
    )
    after, outcome = world.tell(state, event)
    return world.spent(after, "rollback"), outcome.code


def repeat_reserve(world: World, state: System, action: do.RepeatReserve) -> tuple[System, str]:
    """The very same event as the first time."""
    attempt = state.registry.value.attempts[action.number]
    digest = state.registry.value.versions[attempt.key].digest
    event = ev.Reserve(key=attempt.key, digest=digest, plan=attempt.plan, token=f"t{action.number}")
    after, outcome = world.tell(state, event)
    return world.spent(after, "reserve"), outcome.code


def repeat_bind(world: World, state: System, action: do.RepeatBind) -> tuple[System, str]:
    """The stored binding, or a refusal: never a second one."""
    after, outcome = world.tell(state, ev.BindFirst(session=world.session(action.sequence)))
    return world.spent(after, "bind"), outcome.code


STEPS: Mapping[type[Any], Callable[[World, System, Any], tuple[System, str]]] = {
    do.CrashEngine: crash_engine,
    do.DeclareDead: declare_dead,
    do.CrashPublisher: crash_publisher,
    do.Hush: hush,
    do.LoseEngine: lose_engine,
    do.GiveUp: give_up,
    do.EndOwner: end_owner,
    do.Doubt: doubt,
    do.RollBack: roll_back,
    do.RepeatReserve: repeat_reserve,
    do.RepeatBind: repeat_bind,
}

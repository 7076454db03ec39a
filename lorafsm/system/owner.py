"""The owner of the sessions: bind, dispatch, settle, close, as its guard allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lorafsm import events as ev
from lorafsm.dispatch import records as heard
from lorafsm.dispatch.records import Admission, Guard, GuardedSession, Verdict
from lorafsm.engine import orders as inputs
from lorafsm.lifecycle import SERVES
from lorafsm.outcomes import Binding
from lorafsm.records import Registry
from lorafsm.registry.view import routable
from lorafsm.system import actions as do
from lorafsm.system import process
from lorafsm.system.records import Cell, Message, Request, System
from lorafsm.system.world import World


def moves(world: World, state: System) -> Iterator[do.Action]:
    """What the owner may do with its sessions now."""
    yield from world.remembered(_of_sessions, state.registry, state.owner)


def _of_sessions(world: World, registry: Cell[Registry], owner: Cell[Guard]) -> tuple[do.Action, ...]:
    g, r = owner.value, registry.value
    wanted: list[do.Action] = []
    if g.lost:
        return ()
    if g.next_sequence < world.box.sessions:
        if world.box.opens_first:
            wanted.append(do.Open(g.next_sequence))
        elif r.default is not None:
            wanted.append(do.Bind(g.next_sequence))
    for sequence, known in sorted(g.sessions.items()):
        wanted += _of_session(world, r, sequence, known)
    return tuple(wanted)


def _of_session(world: World, r: Registry, sequence: int, known: GuardedSession) -> Iterator[do.Action]:
    if known.attempt is not None and known.attempt.admission is Admission.UNKNOWN:
        yield do.Settle(sequence)
    if known.finalizing:
        if known.attempt is None:
            yield do.Close(sequence)
        return
    yield do.BeginClose(sequence)
    if known.binding is None:
        yield do.Bind(sequence)
        yield from (do.Dispatch(sequence, engine) for engine in world.ids)  # which its guard refuses
    if known.binding is not None and known.attempts < world.box.requests:
        yield from (do.Dispatch(sequence, engine) for engine in routable(r, known.binding.key))


def open_session(world: World, state: System, action: do.Open) -> tuple[System, str]:
    """Register the session (rule 7)."""
    session = world.session(action.sequence)
    state, outcome = world.tell(state, ev.Open(session=session))
    state, _ = world.ask_guard(state, heard.Opened(session=session))
    return state, outcome.code


def bind(world: World, state: System, action: do.Bind) -> tuple[System, str]:
    """The session's first generation: bound to the default, once (rule 7)."""
    session = world.session(action.sequence)
    state, outcome = world.tell(state, ev.BindFirst(session=session))
    if not isinstance(outcome, Binding):
        return state, outcome.code
    state, _ = world.ask_guard(state, heard.Opened(session=session))
    state, _ = world.ask_guard(state, heard.Bound(session=session, binding=outcome))
    return state, outcome.code


def dispatch(world: World, state: System, action: do.Dispatch) -> tuple[System, str]:
    """The owner's own copy of the rule says whether a request may be sent (rule 10)."""
    session = world.session(action.sequence)
    number = state.owner.value.sessions[action.sequence].attempts + 1
    rid = f"{action.sequence}-{number}-{action.engine}"
    after, outcome = world.ask_guard(state, heard.StartAttempt(session=session, rid=rid, attempt=number, now=0))
    if not isinstance(outcome, Binding):
        return after, str(outcome.code)
    request = Request(
        rid=rid, sequence=action.sequence, engine=action.engine, key=outcome.key, lora_name=outcome.lora_name
    )
    version = state.registry.value.versions[outcome.key]
    if version.state not in SERVES:
        after = after._replace(
            wrong=(*after.wrong, f"I7: a request of {version.key} is sent, which is {version.state}")
        )
    return world.sent(after, (world.cell(request),)), "OK"


def request_arrived(world: World, state: System, message: Cell[Message]) -> tuple[System, str]:
    """The engine admits or refuses; its reply reaches an owner that still listens."""
    request = message.value
    assert isinstance(request, Request)
    state, code = world.give(state, world.ids.index(request.engine), process.admit, message)
    if code != "Acquired":
        return heard_the_end(world, state, request.sequence, request.rid), code
    if _listens(state, request.sequence, request.rid):
        session = world.session(request.sequence)
        state, _ = world.ask_guard(state, heard.Admitted(session=session, rid=request.rid))
    elif _is_over(state, request):
        state = state._replace(wrong=(*state.wrong, f"rule 10: request {request.rid} was settled as absent, and runs"))
    return state, code


def _is_over(state: System, request: Request) -> bool:
    """Whether its owner was told that this request does not run and never will."""
    g = state.owner.value
    known = g.sessions.get(request.sequence)
    return not g.lost and (known is None or known.attempt is None or known.attempt.rid != request.rid)


def _listens(state: System, sequence: int, rid: str) -> bool:
    known = state.owner.value.sessions.get(sequence)
    if known is None or known.attempt is None or known.attempt.rid != rid:
        return False
    return known.attempt.admission is not Admission.UNKNOWN


def heard_the_end(world: World, state: System, sequence: int, rid: str) -> System:
    """The owner hears that a request is over, unless its connection broke before."""
    if not _listens(state, sequence, rid):
        return state
    after, _ = world.ask_guard(state, heard.Finished(session=world.session(sequence), rid=rid))
    return after


def settle(world: World, state: System, action: do.Settle) -> tuple[System, str]:
    """Ask the engine that the request was sent to; absent seals the rid there (rule 10)."""
    known = state.owner.value.sessions[action.sequence]
    assert known.attempt is not None
    assert known.binding is not None
    rid = known.attempt.rid
    at = world.ids.index(rid.rsplit("-", 1)[1])
    verdict = Verdict.RUNNING if rid in state.engines[at].value.agent.requests else Verdict.ABSENT
    state, _ = world.give(state, at, process.give, inputs.Settle(rid=rid, key=known.binding.key))
    event = heard.Settled(session=world.session(action.sequence), rid=rid, verdict=verdict)
    state, _ = world.ask_guard(state, event)
    return state, str(verdict)


def begin_close(world: World, state: System, action: do.BeginClose) -> tuple[System, str]:
    """No new dispatch (RFC 4.3)."""
    session = world.session(action.sequence)
    state, outcome = world.tell(state, ev.BeginClose(session=session))
    state, _ = world.ask_guard(state, heard.BeginClose(session=session))
    return state, outcome.code


def close(world: World, state: System, action: do.Close) -> tuple[System, str]:
    """The ref is dropped once (RFC 4.3)."""
    session = world.session(action.sequence)
    state, outcome = world.tell(state, ev.CloseAndRelease(session=session))
    state, _ = world.ask_guard(state, heard.Drop(session=session))
    return state, outcome.code


STEPS: Mapping[type[Any], Callable[[World, System, Any], tuple[System, str]]] = {
    do.Open: open_session,
    do.Bind: bind,
    do.Dispatch: dispatch,
    do.Settle: settle,
    do.BeginClose: begin_close,
    do.Close: close,
}

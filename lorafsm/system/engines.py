"""What happens on an engine by itself: its executor finishes, its requests end, its keeper reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lorafsm import events as ev
from lorafsm.engine import actions as act
from lorafsm.engine.actions import Action
from lorafsm.engine.report import as_event
from lorafsm.lifecycle import EngineState
from lorafsm.orders import TakeInventory
from lorafsm.records import Registry
from lorafsm.system import actions as do
from lorafsm.system import owner, process
from lorafsm.system.records import Cell, Message, Process, System
from lorafsm.system.world import EPOCH, World, open_attempt

FAILS: Mapping[type[Action], str] = {
    act.StartLoad: "load",
    act.Probe: "load",
    act.PostReceive: "bucket",
    act.PhysicalUnload: "slow",
    act.CountRequests: "count",
}
"""The budget of each action that may go wrong."""


def moves(world: World, state: System) -> Iterator[do.Action]:
    """Of every engine: finish what was asked, end a request, report."""
    for at, cell in enumerate(state.engines):
        engine = world.ids[at]
        for action in world.remembered(_todo, cell):
            yield from _endings(world, state, cell.value, engine, action)
        for served in sorted(cell.value.served):
            yield do.EndRequest(engine, served.rid)
        if world.remembered(_must_report, state.registry, cell) or world.may(state, "inventory"):
            report = world.remembered(_inventory, cell)
            if report not in state.network:
                yield do.Report(engine)


def _todo(world: World, cell: Cell[Process]) -> tuple[Action, ...]:
    return tuple(sorted((a for a in cell.value.todo if not isinstance(a, act.AbortCommunicator)), key=repr))


def _endings(world: World, state: System, p: Process, engine: str, action: Action) -> Iterator[do.Action]:
    kind = FAILS.get(type(action))
    if isinstance(action, act.PostReceive):
        if (action.number, action.bucket) in state.driver.value.sent:
            yield do.Finish(engine, action)
        if _is_forsaken(state, p, action) or world.may(state, "bucket"):
            yield do.Finish(engine, action, "failed")
        return
    yield do.Finish(engine, action)
    if kind is not None and world.may(state, kind):
        yield do.Finish(engine, action, "failed")
    if isinstance(action, act.StartLoad) and world.may(state, "corrupt"):
        yield do.Finish(engine, action, "corrupt")


def _is_forsaken(state: System, p: Process, posted: act.PostReceive) -> bool:
    """Whether a posted receive may end without success for a cause that is known: the group is broken."""
    if act.AbortCommunicator(posted.number) in p.todo:
        return True
    attempt = open_attempt(state.registry.value)
    if attempt is None or attempt.number != posted.number or attempt.taken_over:
        return True
    live = {cell.value.agent.engine: cell.value.agent.incarnation for cell in state.engines}
    return any(live[target.engine] != target.incarnation for target in attempt.targets.values())


def _must_report(world: World, registry: Cell[Registry], cell: Cell[Process]) -> bool:
    known = registry.value.engines[cell.value.agent.engine]
    return known.incarnation < cell.value.agent.incarnation or known.state is EngineState.LOST


def _inventory(world: World, cell: Cell[Process]) -> Cell[Message]:
    agent = cell.value.agent
    order = TakeInventory(epoch=EPOCH, engine=agent.engine, incarnation=agent.incarnation)
    event = as_event(world.rules.agent(agent, order).answer, agent.engine, 0)
    assert isinstance(event, ev.EngineUp)
    return world.cell(event)


def finish(world: World, state: System, action: do.Finish) -> tuple[System, str]:
    """The executor is done with an action."""
    at = world.ids.index(action.engine)
    p = state.engines[at].value
    kind = "corrupt" if action.result == "corrupt" else FAILS.get(type(action.action), "")
    is_free = action.result == "ok" or (
        isinstance(action.action, act.PostReceive) and _is_forsaken(state, p, action.action)
    )
    after, _ = world.give(state, at, process.finish, action.action, action.result)
    return (after if is_free else world.spent(after, kind)), action.result


def end_request(world: World, state: System, action: do.EndRequest) -> tuple[System, str]:
    """A request ends on its engine, and its owner hears of it if it still listens."""
    at = world.ids.index(action.engine)
    [served] = (s for s in state.engines[at].value.served if s.rid == action.rid)
    after, code = world.give(state, at, process.end_request, action.rid)
    return owner.heard_the_end(world, after, served.sequence, served.rid), code


def report(world: World, state: System, action: do.Report) -> tuple[System, str]:
    """An inventory is on its way to the registry."""
    cell = state.engines[world.ids.index(action.engine)]
    if not world.remembered(_must_report, state.registry, cell):
        state = world.spent(state, "inventory")
    return world.sent(state, (world.remembered(_inventory, cell),)), "OK"


STEPS: Mapping[type[Any], Callable[[World, System, Any], tuple[System, str]]] = {
    do.Finish: finish,
    do.EndRequest: end_request,
    do.Report: report,
}

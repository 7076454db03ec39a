"""What is on its way: delivered in any order, lost, or doubled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attrs import evolve

from lorafsm.events import EVENTS
from lorafsm.system import actions as do
from lorafsm.system import owner, process
from lorafsm.system.publishing import told
from lorafsm.system.records import ArmedBy, Cell, Message, Request, System
from lorafsm.system.world import World, open_attempt


def moves(world: World, state: System) -> Iterator[do.Action]:
    """Each message may arrive; within the budgets it may be lost, or arrive and stay."""
    lose, double = world.may(state, "lose"), world.may(state, "duplicate")
    for message in state.network:
        deliver, loss, copy = world.remembered(_fates, message)
        yield deliver
        if not isinstance(message.value, Request):
            if lose:
                yield loss
            if double:
                yield copy


def _fates(world: World, message: Cell[Message]) -> tuple[do.Action, ...]:
    return do.Deliver(message.value), do.Lose(message.value), do.Duplicate(message.value)


def _without(state: System, message: Cell[Message]) -> System:
    return state._replace(network=tuple(m for m in state.network if m is not message))


def deliver(world: World, state: System, action: do.Deliver) -> tuple[System, str]:
    """The message has arrived."""
    message = world.cell(action.message)
    return _arrived(world, _without(state, message), message)


def lose(world: World, state: System, action: do.Lose) -> tuple[System, str]:
    """The message never arrives."""
    return world.spent(_without(state, world.cell(action.message)), "lose"), "OK"


def duplicate(world: World, state: System, action: do.Duplicate) -> tuple[System, str]:
    """The message has arrived, and is on its way still."""
    return _arrived(world, world.spent(state, "duplicate"), world.cell(action.message))


def _arrived(world: World, state: System, message: Cell[Message]) -> tuple[System, str]:
    match message.value:
        case ArmedBy():
            return _armed(world, state, message.value)
        case Request():
            return owner.request_arrived(world, state, message)
        case event if isinstance(event, EVENTS):
            return told(world, state, message)
        case order:
            engine: str = getattr(order, "engine")  # noqa: B009  # every order names its addressee
            return world.give(state, world.ids.index(engine), process.give, message)


def _armed(world: World, state: System, armed: ArmedBy) -> tuple[System, str]:
    """The driver counts an engine for the bucket that it is about to send, under the frozen incarnation."""
    attempt, driver = open_attempt(state.registry.value), state.driver.value
    if attempt is None or not driver.token or driver.permitted:
        return state, "LATE"
    target = attempt.targets.get(armed.engine)
    if target is None or target.incarnation != armed.incarnation:
        return state, "LATE"
    if (attempt.number, attempt.authorized) != (armed.number, armed.bucket):
        return state, "LATE"
    return state._replace(driver=world.cell(evolve(driver, armed=driver.armed | {armed.engine}))), "OK"


STEPS: Mapping[type[Any], Callable[[World, System, Any], tuple[System, str]]] = {
    do.Deliver: deliver,
    do.Lose: lose,
    do.Duplicate: duplicate,
}

"""The state of the composed system: registry, engines, the owner's process, and what is on its way between them.

A `System` is a tuple of cells.  A cell holds one value and stands for it: equal values have one cell, so states are
compared and hashed by identity, and what a machine answered once for a cell is never computed again (`Interned`).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from attrs import field, frozen

from lorafsm.dispatch import Guard
from lorafsm.engine.actions import Action
from lorafsm.engine.orders import EngineOrder
from lorafsm.engine.records import Agent
from lorafsm.events import Event
from lorafsm.identity import VersionKey
from lorafsm.records import Registry

T = TypeVar("T", bound=Hashable)


@frozen(eq=False)
class Cell(Generic[T]):
    """One value of the search; equal values have one cell.  `index` orders cells by when they were first seen."""

    value: T
    index: int = field(repr=False)


class Interned:
    """The cells of one search."""

    def __init__(self) -> None:
        self._cells: dict[Hashable, Cell[Any]] = {}

    def cell(self, value: T) -> Cell[T]:
        """The one cell of this value."""
        known = self._cells.get(value)
        if known is None:
            known = self._cells[value] = Cell(value, len(self._cells))
        return known


@frozen(kw_only=True)
class ArmedBy:
    """An engine tells the driver that the receive of a bucket is posted (rule 6)."""

    name = "armed"
    engine: str
    incarnation: int
    number: int
    bucket: int


@frozen(kw_only=True)
class Request:
    """A request of a session on its way to an engine: it asks for exactly `lora_name` (RFC 4.2)."""

    name = "request"
    rid: str
    sequence: int  # of its session
    engine: str
    key: VersionKey  # the session's binding
    lora_name: str


Message: TypeAlias = EngineOrder | Event | ArmedBy | Request


@frozen(order=True)
class Loaded:
    """What is physically under a name in an engine's memory, whatever anybody believes."""

    lora_name: str
    digest: str
    number: int  # the load that put it there


@frozen(order=True)
class Served:
    """A request that is physically running."""

    rid: str
    sequence: int
    key: VersionKey  # the binding of its session when it was sent
    lora_name: str


@frozen
class Process:
    """One engine's process: its agent, what its executor has to do, and what is physically true of it."""

    agent: Agent
    todo: frozenset[Action] = frozenset()  # asked of the executor, without a result yet
    loaded: frozenset[Loaded] = frozenset()
    served: frozenset[Served] = frozenset()
    history: frozenset[tuple[str, int, int]] = frozenset()  # (load | unload | receive, number, bucket) begun (I8)


@frozen
class Driver:
    """The publisher's process: its token, and what its transport knows of the bucket that it is sending (rule 6)."""

    token: str = ""  # its authority over the open attempt; "": none, or lost in a crash
    armed: frozenset[str] = frozenset()  # engines that said so for the next bucket
    permitted: bool = False  # the next bucket was authorised and is not broadcast yet
    sent: frozenset[tuple[int, int]] = frozenset()  # (number, bucket) broadcast by anybody, physically


class System(NamedTuple):
    """The whole state.  Made and changed by a `Model`."""

    registry: Cell[Registry]
    engines: tuple[Cell[Process], ...]  # in the order of their ids
    driver: Cell[Driver]
    owner: Cell[Guard]
    network: tuple[Cell[Message], ...]  # a set: any may be delivered next
    left: tuple[int, ...]  # budgets, in the order of the box's `budgets`
    wrong: tuple[str, ...]  # what was done that must never be done; empty but after a violation

"""What every action of a composed system uses: cells, budgets, and the machines with their answers remembered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import evolve

from lorafsm import invariants
from lorafsm.dispatch import Guard, dispatch_step
from lorafsm.engine.orders import Input
from lorafsm.events import Event
from lorafsm.identity import SessionKey, VersionKey, lora_name
from lorafsm.lifecycle import AttemptState
from lorafsm.manifest import Plan, store_plan
from lorafsm.outcomes import Outcome
from lorafsm.records import Attempt, Registry
from lorafsm.system import process
from lorafsm.system.box import SystemBox
from lorafsm.system.invariants import stale_changes
from lorafsm.system.process import Told
from lorafsm.system.records import Cell, Driver, Interned, Message, Process, System
from lorafsm.system.rules import REAL, Rules

EPOCH, OWNER, BASE = "e1", "o1", "base"


class World:
    """One box and its rules; nothing of it changes what a step answers."""

    def __init__(self, box: SystemBox, rules: Rules = REAL) -> None:
        self.box, self.rules = box, rules
        self.ids = box.engine_ids()
        self.kinds = tuple(sorted(box.budgets))
        self.interned = Interned()
        self.cell = self.interned.cell
        self._registry: dict[tuple[Cell[Registry], Cell[Event]], tuple[Cell[Registry], Outcome, tuple[str, ...]]] = {}
        self._told: dict[tuple[Any, ...], tuple[Cell[Process], tuple[Cell[Message], ...], str, tuple[str, ...]]] = {}
        self._guards: dict[tuple[Cell[Guard], Any], tuple[Cell[Guard], Any]] = {}
        self._memo: dict[tuple[Any, ...], Any] = {}

    # names

    def key(self, version: int) -> VersionKey:
        """Version 1, 2, ..."""
        return VersionKey(EPOCH, version)

    def digest(self, key: VersionKey) -> str:
        """A version's content."""
        return f"{key.version_id + 9:x}" * 64

    def lora_name(self, key: VersionKey) -> str:
        """A version's name on the engines."""
        return lora_name(key, self.digest(key))

    def plan(self) -> Plan:
        """The one bucket plan of the box."""
        return Plan(self.box.buckets, "f" * 64) if self.box.buckets else store_plan()

    def session(self, sequence: int) -> SessionKey:
        """A session of the one owner."""
        return SessionKey(EPOCH, OWNER, sequence)

    # budgets

    def may(self, state: System, kind: str) -> bool:
        """Whether something of this kind may still happen."""
        return kind in self.kinds and state.left[self.kinds.index(kind)] > 0

    def spent(self, state: System, kind: str) -> System:
        """The state with one less of this kind."""
        at = self.kinds.index(kind)
        return state._replace(left=(*state.left[:at], state.left[at] - 1, *state.left[at + 1 :]))

    # what was computed before

    def remembered(self, question: Callable[..., Any], *cells: Any) -> Any:
        """`question(self, *cells)`, computed once for these cells."""
        known = (question, *cells)
        if known not in self._memo:
            self._memo[known] = question(self, *cells)
        return self._memo[known]

    # the machines

    def tell(self, state: System, event: Event) -> tuple[System, Outcome]:
        """Submit an event to the registry."""
        return self.tell_cell(state, self.cell(event))

    def tell_cell(self, state: System, event: Cell[Event]) -> tuple[System, Outcome]:
        """Submit an event to the registry."""
        known = self._registry.get((state.registry, event))
        if known is None:
            known = self._registry[state.registry, event] = self._submit(state.registry, event.value)
        registry, outcome, wrong = known
        if registry is state.registry and not wrong:
            return state, outcome
        driver = self.remembered(_driver_after, registry, state.driver)
        return state._replace(registry=registry, driver=driver, wrong=state.wrong + wrong), outcome

    def _submit(self, before: Cell[Registry], event: Event) -> tuple[Cell[Registry], Outcome, tuple[str, ...]]:
        done = self.rules.registry(before.value, event)
        if done.registry is before.value:
            return before, done.outcome, ()
        if done.registry == before.value:
            return before, done.outcome, ()
        wrong = invariants.check_change(before.value, event, done.registry)
        wrong += stale_changes(before.value, event, done.registry)
        if not done.outcome.ok:
            wrong += (f"section 2: {event.name} was refused and changed something",)
        return self.cell(done.registry), done.outcome, wrong

    def give(self, state: System, at: int, what: Callable[..., Told], *words: Any) -> tuple[System, str]:
        """Let one engine's process take in something; its messages are on their way."""
        known = (state.engines[at], what, *words)
        told = self._told.get(known)
        if told is None:
            fresh = what(self.rules, state.engines[at].value, *(w.value if isinstance(w, Cell) else w for w in words))
            cells = tuple(self.cell(message) for message in fresh.messages)
            told = self._told[known] = (self.cell(fresh.process), cells, fresh.code, fresh.wrong)
        after, messages, code, wrong = told
        if after is not state.engines[at]:
            state = state._replace(engines=(*state.engines[:at], after, *state.engines[at + 1 :]))
        if wrong:
            state = state._replace(wrong=state.wrong + wrong)
        return self.sent(state, messages), code

    def give_input(self, state: System, at: int, item: Input) -> tuple[System, str]:
        """Let one engine's agent take in an order or a request that is answered at once."""
        return self.give(state, at, process.give, item)

    def sent(self, state: System, messages: tuple[Cell[Message], ...]) -> System:
        """The state with these on their way; one that is on its way already is not doubled."""
        more = tuple(m for m in messages if m not in state.network)
        if not more:
            return state
        return state._replace(network=tuple(sorted((*state.network, *more), key=_index)))

    def ask_guard(self, state: System, event: Any) -> tuple[System, Any]:
        """Let the owner's guard take in an event."""
        known = self._guards.get((state.owner, event))
        if known is None:
            done = dispatch_step(state.owner.value, event)
            guard = state.owner if done.guard == state.owner.value else self.cell(done.guard)
            known = self._guards[state.owner, event] = (guard, done.outcome)
        guard, outcome = known
        return (state if guard is state.owner else state._replace(owner=guard)), outcome


def open_attempt(r: Registry) -> Attempt | None:
    """The attempt that is OPEN."""
    attempt = r.attempts.get(r.unresolved)
    return attempt if attempt is not None and attempt.state is AttemptState.OPEN else None


def _index(cell: Cell[Any]) -> int:
    return cell.index


def _driver_after(world: World, registry: Cell[Registry], driver: Cell[Driver]) -> Cell[Driver]:
    """What the driver remembers of an attempt is worth nothing after its end."""
    if open_attempt(registry.value) is not None:
        return driver
    return world.cell(evolve(driver.value, token="", armed=frozenset(), permitted=False))

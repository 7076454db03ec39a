"""The composed system: a start, the actions that may happen in a state, what each does, and what must hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attrs import frozen

from lorafsm import events as ev
from lorafsm import invariants
from lorafsm.dispatch import Guard, dispatch_invariants, dispatch_step, new_guard
from lorafsm.dispatch import records as heard
from lorafsm.engine.invariants import agent_invariants
from lorafsm.explore import Exploration, explore
from lorafsm.identity import SessionKey
from lorafsm.lifecycle import ALIVE, VersionState
from lorafsm.orders import TakeInventory
from lorafsm.records import Registry, new_registry
from lorafsm.registry.view import lacks
from lorafsm.system import actions as do
from lorafsm.system import engines, faults, network, owner, process, publishing
from lorafsm.system import invariants as of_system
from lorafsm.system.box import SystemBox
from lorafsm.system.records import Cell, Driver, Message, Process, System
from lorafsm.system.rules import REAL, Rules
from lorafsm.system.world import BASE, EPOCH, OWNER, World

_PARTS = (publishing, network, engines, owner, faults)
_STEPS: Mapping[type[Any], Callable[[World, System, Any], tuple[System, str]]] = {
    kind: step for part in _PARTS for kind, step in part.STEPS.items()
}
_LEFT_TO_THE_SEARCH = (do.Reserve, do.Bind, do.Dispatch, do.BeginClose, do.CrashEngine, do.Claim)


@frozen
class SystemStep:
    """The system after an action, and what came of it: the outcome's code, or a word."""

    state: System
    outcome: str


class Model:
    """One box, searched by `lorafsm.explore`: `start`, `moves`, `step`, `check`."""

    def __init__(self, box: SystemBox, rules: Rules = REAL) -> None:
        self.world = World(box, rules)

    def start(self) -> System:
        """The fleet, the owner, and the versions that are published before the search; budgets are whole."""
        world, box = self.world, self.world.box
        registry = self._fleet()
        slots = registry.config.engine_slots
        fleet = tuple(world.cell(process.new_process(e, 1, EPOCH, slots, BASE)) for e in world.ids)
        budgets = tuple(box.budgets[kind] for kind in world.kinds)
        none = tuple(0 for _ in budgets)
        state = System(world.cell(registry), fleet, world.cell(Driver()), world.cell(self._guard()), (), none, ())
        if box.foreign:
            state = world.sent(state, self._foreign())
        for version in range(1, box.published + 1):
            state = self.step(state, do.Reserve(world.key(version))).state
            state = self._settled(state)
            assert state.registry.value.default == world.key(version)
        for sequence in range(box.bound):
            state = self.step(state, do.Bind(sequence)).state
        return state._replace(left=budgets)

    def _fleet(self) -> Registry:
        config = self.world.box.config
        if config.base_fingerprint != BASE:
            raise ValueError(f"config: base_fingerprint must be {BASE!r}")
        r = new_registry(EPOCH, config)
        joins: list[ev.Event] = [
            ev.EngineJoin(engine=e, incarnation=1, seq=0, base_fingerprint=BASE) for e in self.world.ids
        ]
        for event in (*joins, ev.OwnerUp(owner=OWNER)):
            r = self.world.rules.registry(r, event).registry
        return r

    def _foreign(self) -> tuple[Cell[Message], ...]:
        """What an earlier deployment left on its way."""
        order = TakeInventory(epoch="e0", engine=self.world.ids[0], incarnation=1)
        return self.world.cell(order), self.world.cell(ev.BindFirst(session=SessionKey("e0", OWNER, 0)))

    def _guard(self) -> Guard:
        return dispatch_step(new_guard(EPOCH, OWNER, margin=0), heard.LeaseRenewed(sent=0, lease=1)).guard

    def _settled(self, state: System) -> System:
        """The state after all that follows by itself, the first action first."""
        while True:
            following = [a for a in self.moves(state) if not isinstance(a, _LEFT_TO_THE_SEARCH)]
            if not following:
                return state
            state = self.step(state, min(following, key=_rank)).state

    def moves(self, state: System) -> Iterator[do.Action]:
        """The actions that may happen now; none after a violation."""
        if state.wrong:
            return
        for part in _PARTS:
            yield from part.moves(self.world, state)

    def step(self, state: System, action: do.Action) -> SystemStep:
        """What an action does, and what came of it."""
        after, outcome = _STEPS[type(action)](self.world, state, action)
        return SystemStep(after, outcome)

    def explored(self, state: System, action: do.Action) -> tuple[System, str]:
        """`step` in the form that `explore` takes."""
        after, outcome = _STEPS[type(action)](self.world, state, action)
        return (state if after == state else after), outcome

    def check(self, state: System) -> tuple[str, ...]:
        """Every invariant that this state breaks."""
        ask = self.world.remembered
        broken: tuple[str, ...] = (
            state.wrong + ask(_of_registry, state.registry) + ask(_of_owner, state.registry, state.owner)
        )
        for cell in state.engines:
            broken += ask(_of_agent, cell) + ask(_of_engine, state.registry, cell)
        return broken

    def can_rest(self, state: System, max_states: int = 100_000) -> bool:
        """Whether rest can be reached from here without a further fault; raises ValueError when that is too far."""
        spent = state._replace(left=tuple(0 for _ in state.left))
        found = explore(
            spent,
            self.moves,
            lambda s: ("rest",) if self.is_quiet(s) else (),
            step=self.explored,
            max_states=max_states,
        )
        if not found.violations and not found.complete:
            raise ValueError(f"no rest within {found.states} states, and {found.frontier} more to look at")
        return bool(found.violations)

    def search(self, max_states: int, stop_after: int = 1) -> Exploration[System, do.Action]:
        """Every state of the box, each with its invariants, and whether rest stays within reach of each."""
        return explore(
            self.start(),
            self.moves,
            self.check,
            step=self.explored,
            max_states=max_states,
            stop_after=stop_after,
            rests=self.is_quiet,
            is_fair=lambda before, after: before.left == after.left,
        )

    def is_quiet(self, state: System) -> bool:
        """Whether nothing is left to do but for the sessions: what liveness asks to stay within reach (rule 16)."""
        return not state.network and bool(self.world.remembered(_is_quiet, state.registry, state.engines))


def _rank(action: do.Action) -> int:
    """Orders last: given again before their work is done, they would be answered "pending" for ever."""
    return 0 if isinstance(action, do.Finish | do.Deliver) else 2 if isinstance(action, do.GiveOrders) else 1


def _of_registry(world: World, registry: Cell[Registry]) -> tuple[str, ...]:
    return invariants.check(registry.value) + of_system.of_registry(registry.value)


def _of_owner(world: World, registry: Cell[Registry], guard: Cell[Guard]) -> tuple[str, ...]:
    return dispatch_invariants(guard.value) + of_system.of_owner(registry.value, guard.value)


def _of_agent(world: World, cell: Cell[Process]) -> tuple[str, ...]:
    return agent_invariants(cell.value.agent)


def _of_engine(world: World, registry: Cell[Registry], cell: Cell[Process]) -> tuple[str, ...]:
    return of_system.of_engine(registry.value, cell.value)


def _is_quiet(world: World, registry: Cell[Registry], processes: tuple[Cell[Process], ...]) -> bool:
    r = registry.value
    if r.unresolved or any(v.state is VersionState.RECLAIMING for v in r.versions.values()):
        return False
    for cell in processes:
        engine = r.engines[cell.value.agent.engine]
        if engine.incarnation != cell.value.agent.incarnation or engine.state not in ALIVE:
            return False
        if lacks(engine, r) or engine.strays or cell.value.todo:
            return False
    return True

"""Who may see that the core was damaged, in a fixed order: golden graphs, the explorer's boxes, the tests of the core.

A killer looks at the core as it is in this process and answers what it saw, or None.  A mutant is put in by giving the
one function its changed code, so whoever imported the function has the mutant.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from itertools import chain
from types import CodeType, FunctionType
from typing import Any

import pytest
from attrs import evolve, frozen

from lorafsm import events, invariants
from lorafsm.box import registry_moves
from lorafsm.boxes import BOXES
from lorafsm.engine import agent_step
from lorafsm.engine.orders import Listed
from lorafsm.explore import explore, registry_step
from lorafsm.identity import SessionKey
from lorafsm.records import Registry
from lorafsm.registry import step
from lorafsm_tla import agent_boxes
from lorafsm_tla.agent_state import agent_as_tla, answer_as_tla, asked_as_tla
from lorafsm_tla.as_tla import tla_state
from lorafsm_tla.golden import read_golden
from lorafsm_tla.manifest import Model, folder, read_manifest
from lorafsm_tla.values import Graph, State, state_of, text_of
from tests.mutants.core_tree import ROOT, CoreMutant, modules, mutated
from tests.spec import tla_boxes
from tests.spec.observer import ANSWERED, seen_in
from tests.spec.test_conformance import is_a_row

step_module = importlib.import_module("lorafsm.registry.step")  # not the function of that name
agent_step_module = importlib.import_module("lorafsm.engine.step")

Seen = str | None
"""What a killer saw; None: nothing."""

GOLDEN: dict[str, Model] = {model.name: model for model in read_manifest(folder() / "manifest.toml") if model.golden}
REGISTRY_BOXES, AGENT_BOXES = (
    sorted((m.name for m in GOLDEN.values() if m.module == module), key=lambda name: GOLDEN[name].generated or 0)
    for module in ("MCLoraRegistry", "MCEngineAgent")
)
"""The cheapest first."""
EXPLORED = sorted(BOXES, key=lambda name: (BOXES[name].illegal, len(BOXES[name].events)))
SLOW_TESTS = "test_stateful test_fuzz test_determinism test_identity test_manifest test_holders test_deployment".split()
FIRST, SECOND, SEARCHED, ALL = 20, 400, 150, 100_000
"""States of a golden box that the first look, and the second, take in; those of a box of the explorer; all of them."""


@cache
def golden(name: str) -> Graph:
    """A golden graph, read once."""
    return read_golden(folder() / GOLDEN[name].golden)


def put_in(mutant: CoreMutant) -> None:
    """From now on this process runs the mutant."""
    code = compile(mutated(modules()[mutant.module].read_text(), mutant), "mutant", "exec")
    target: Any = importlib.import_module(f"lorafsm.{mutant.module}")
    for name in mutant.function.split("."):
        target = vars(target)[name]
        code = next(part for part in code.co_consts if isinstance(part, CodeType) and part.co_name == name)
    function = target.fget if isinstance(target, property) else target
    assert isinstance(function, FunctionType)
    function.__code__ = code


@cache
def calls() -> dict[str, frozenset[str]]:
    """The functions of the core that each function names, itself included, and so on: by name, so rather too many."""
    direct: dict[str, set[str]] = {}
    for path in modules().values():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                words = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
                words |= {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
                direct.setdefault(node.name, set()).update(words)
    reached = {}
    for name in direct:
        found, todo = {name}, [name]
        while todo:
            more = (direct[todo.pop()] & direct.keys()) - found
            found |= more
            todo += more
        reached[name] = frozenset(found)
    return reached


def touched(mutant: CoreMutant) -> frozenset[type]:
    """The events, or inputs, whose transition may come to the mutant's function."""
    name = mutant.function.split(".")[-1]
    table: Mapping[type, Any] = (agent_step_module if mutant.module.startswith("engine") else step_module)._TRANSITIONS
    everywhere = mutant.module.endswith(".step")
    return frozenset(kind for kind, transition in table.items() if everywhere or name in calls()[transition.__name__])


States = list[tuple[Any, State]]
"""Of a box, in the order of a search: what the core holds, and its image."""


@cache
def registries(name: str, limit: int) -> States:
    """The first states of a box of the registry.  To be asked while the core is as it was written."""
    box = tla_boxes.read_box(name)
    maker, times, first = tla_boxes._Maker(box), sorted(box.Time), tla_boxes.start(box)
    found = dict.fromkeys([first])
    todo = deque(found)
    while todo and len(found) < limit:
        r = todo.popleft()
        for event in maker.events(r):
            for now in times:
                after = step(r, evolve(event, now=now) if now else event).registry
                if after is not r and after not in found:
                    found[after] = None
                    todo.append(after)
    return [(r, tla_state(r, box.names)) for r in found]


@cache
def agents(name: str, limit: int) -> States:
    """The first states of a box of the agent."""
    box = agent_boxes.read_agent_box(folder() / GOLDEN[name].cfg)
    first = agent_boxes.new_agent(agent_boxes.ENGINE, agent_boxes.INCARNATION, agent_boxes.EPOCH, slots=box.Slots)
    first = evolve(first, base_fingerprint="base")
    found, fixed = dict.fromkeys([first]), agent_boxes.fixed_inputs(box)
    todo = deque(found)
    while todo and len(found) < limit:
        agent = todo.popleft()
        for item in chain(fixed, agent_boxes.listings(box, agent)):
            after = agent_step(agent, item).agent
            if after is not agent and after not in found:
                found[after] = None
                todo.append(after)
    return [(agent, state_of(agent_as_tla(agent, box.names))) for agent in found]


def graph_of_registry(name: str, kinds: frozenset[type], limit: int) -> Seen:
    """The core's graph of a box against the golden one, state by state: the steps of these kinds of event.

    In the first state where two graphs differ both have arrived, so it is a state of the core as it was written.
    """
    box, wanted = tla_boxes.read_box(name), golden(name)
    maker, names, times = tla_boxes._Maker(box), box.names, sorted(box.Time)
    happens = {name for name in box.Happens if _event_of(name) in kinds}
    maker.box = evolve(box, constants=box.constants | {"Happens": sorted(happens)})
    own = happens | {"TakeoverOfSilent"} if "Takeover" in happens else happens
    for r, image in registries(name, limit) if happens else ():
        out = set()
        for event in maker.events(r):
            for now in times:
                timed = evolve(event, now=now) if now else event
                after = step(r, timed).registry
                if after is r or after == r:
                    continue
                target = tla_state(after, names)
                if target != image:
                    out.add((tla_boxes.action_of(r, timed), target))
        if {one for one in wanted.steps[image] if one[0] in own} != out:
            return "another step"
    return None


def _event_of(action: str) -> type:
    return getattr(events, {"EngineRestarted": "EngineUp"}.get(action, action))


def graph_of_agent(name: str, kinds: frozenset[type], limit: int) -> Seen:
    """The same for the engine's agent; its steps say, besides, what was asked for."""
    box, wanted = agent_boxes.read_agent_box(folder() / GOLDEN[name].cfg), golden(name)
    nobody_asked = {
        tuple(pair for pair in state if pair[0] != "asked"): state for state in sorted(wanted.steps, reverse=True)
    }
    fixed = [item for item in agent_boxes.fixed_inputs(box) if type(item) in kinds]
    own = {kind.__name__ for kind in kinds} | {
        answer for answer, kind in ANSWERS_TO.items() if kind in {kind.__name__ for kind in kinds}
    }
    for agent, image in agents(name, limit):
        source, out = nobody_asked[image], set()
        listed = agent_boxes.listings(box, agent) if Listed in kinds else ()
        for item in chain(fixed, listed):
            done = agent_step(agent, item)
            if done.agent is agent and not done.actions:
                told = answer_as_tla(item, done.answer)
                if told is not None and told[0] in box.Happens:
                    mistaken = agent_boxes._mistaken(agent, item)
                    target = agent_boxes._with_asked(image, text_of(told[1]))
                    out.add((agent_boxes.NEVER if mistaken else told[0], target))
                continue
            after = image if done.agent is agent else state_of(agent_as_tla(done.agent, box.names))
            asked = text_of(asked_as_tla(done.actions, done.agent, box.names)) if done.actions else "[]"
            out.add((agent_boxes.action_of(agent, item), agent_boxes._with_asked(after, asked)))
        if {one for one in out if one[1] != source} != {one for one in wanted.steps[source] if one[0] in own}:
            return "another step"
    return None


ANSWERS_TO = {"Cleaned": "Cleanup", "Unloaded": "Unload", "StrayGone": "UnloadStray"}


@cache
def searched(name: str, limit: int) -> list[Registry]:
    """The first states of a box of the explorer."""
    found: dict[Registry, None] = {}
    box = BOXES[name]

    def known(r: Registry) -> tuple[str, ...]:
        found[r] = None
        return ()

    explore(box.start(), registry_moves(box), known, step=registry_step, max_states=limit)
    return list(found)


def explored(name: str, kinds: frozenset[type], limit: int) -> Seen:
    """A box of the explorer: the invariants, and each step of these kinds a row of the lifecycle tables."""
    box = BOXES[name]
    moves = registry_moves(evolve(box, events=box.events & {kind.name for kind in kinds}))
    sessions = [SessionKey(box.epoch, owner, sequence) for owner in box.owners for sequence in box.sequences]
    for r in searched(name, limit):
        for event in moves(r):
            done = step(r, event)
            after, code = done.registry, done.outcome.code
            if code not in ANSWERED and after is not r:
                return f"{event.name} was refused and changed something"
            if after is not r and (broken := invariants.check(after) + invariants.check_change(r, event, after)):
                return broken[0]
            for seen in seen_in(r, event, after, code, sessions):
                if not _is_a_row(seen):
                    return f"no row: {seen}"
    return None


_is_a_row = cache(is_a_row)


class _First:
    """The first test that fails."""

    def __init__(self) -> None:
        self.nodeid = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.nodeid:
            self.nodeid = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.nodeid:
            self.nodeid = report.nodeid


def tested(which: list[str]) -> Seen:
    """Tests of these files, or single ones, up to the first that fails."""
    first = _First()
    arguments = [
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
        f"--rootdir={ROOT}",
        *(str(ROOT / one) for one in which),
    ]
    for name in [name for name in sys.modules if name.startswith("tests.core.test_")]:
        del sys.modules[name]  # what a test module remembers was remembered of another core
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        code = pytest.main(arguments, plugins=[first])
    return first.nodeid or f"pytest ended with {code}" if code else None


@frozen
class Killer:
    """One look: its name, and how to take it."""

    name: str
    look: Callable[[], Seen]


def killers(mutant: CoreMutant) -> Iterator[Killer]:
    """All that may see this mutant: quick looks first, and then, for whatever is left, everything to its end."""
    of_engine = mutant.module.startswith("engine")
    of_policy = mutant.module in ("publisher", "reclaimer", "repairer")
    graph, boxes = (graph_of_agent, AGENT_BOXES) if of_engine else (graph_of_registry, REGISTRY_BOXES)
    boxes = [] if of_policy else boxes
    kinds = touched(mutant)
    own, *others = test_files(mutant)
    for limit in (FIRST, SECOND):
        for name in boxes:
            yield Killer(f"golden {name} {limit}", partial(graph, name, kinds, limit))
    for name in [] if of_policy or of_engine else EXPLORED:
        yield Killer(f"box {name} {SEARCHED}", partial(explored, name, kinds, SEARCHED))
    yield Killer(own, partial(tested, [own]))
    yield Killer("the other tests", partial(tested, others))
    for name in boxes:
        yield Killer(f"golden {name} {ALL}", partial(graph, name, kinds, ALL))


def again(mutant: CoreMutant, name: str) -> Killer:
    """The killer that saw the mutant the last time."""
    if name.endswith(".py") or "::" in name:
        return Killer(name, partial(tested, [name]))
    what, _, rest = name.partition(" ")
    box, _, limit = rest.rpartition(" ")
    look = explored if what == "box" else graph_of_agent if box in AGENT_BOXES else graph_of_registry
    return Killer(name, partial(look, box, touched(mutant), int(limit)))


def read_all(limits: Iterable[int] = (FIRST, SECOND, SEARCHED)) -> None:
    """Whatever these looks need, while the core is as it was written; children share it."""
    for limit in sorted(limits):
        for name in EXPLORED if limit == SEARCHED else ():
            searched(name, limit)
        for name in REGISTRY_BOXES if limit != SEARCHED else ():
            golden(name), registries(name, limit)
        for name in AGENT_BOXES if limit != SEARCHED else ():
            golden(name), agents(name, limit)
    calls()


OWN_TESTS = {
    **dict.fromkeys(("publisher", "reclaimer", "repairer"), "test_policies"),
    **dict.fromkeys(("load", "unload", "requests", "inspect", "records", "answers"), "test_agent_stories"),
    "view": "test_sessions",
    "progress": "test_targets",
    "report": "test_agent_report",
    "step": "test_publication",
    "settle": "test_reclaim",
    "answer": "test_publication",
}


def test_files(mutant: CoreMutant) -> list[str]:
    """The quick tests of the core, those of the mutant's own module first."""
    stem = mutant.module.split(".")[-1]
    found = [path for path in sorted((ROOT / "tests" / "core").glob("test_*.py")) if path.stem not in SLOW_TESTS]
    own = OWN_TESTS.get(stem, f"test_{stem}")
    agent = mutant.module.startswith("engine")

    def order(name: str) -> tuple[bool, bool, str]:
        return name != own, ("agent" in name) is not agent, name

    found.sort(key=lambda path: order(path.stem))
    return [path.relative_to(ROOT).as_posix() for path in found]

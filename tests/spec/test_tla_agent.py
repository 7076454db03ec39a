"""Net 1 for the engine's agent: its graph in each box is the golden one, in both directions; `make check` holds
EngineAgent.tla to the same file.  No Java is needed here."""

from collections.abc import Callable
from functools import cache

import pytest
from attrs import evolve

from lorafsm.engine import Agent, AgentStep, agent_step
from lorafsm.engine import orders as inputs
from lorafsm.engine.actions import PhysicalUnload
from lorafsm.engine.answers import Cleaned as Answered
from lorafsm.engine.answers import Pending
from lorafsm.engine.orders import INPUTS, Input
from lorafsm.orders import Begin, Cleanup, TakeInventory
from lorafsm_tla.agent_boxes import NEVER, AgentBox, TwoFaced, read_agent_box, walk_agent
from lorafsm_tla.golden import LIMIT, actions_of, decoded, encoded, first_difference, read_golden
from lorafsm_tla.manifest import folder, read_manifest
from lorafsm_tla.values import Graph

TLA = folder()
MODELS = {m.name: m for m in read_manifest(TLA / "manifest.toml") if m.golden and m.module == "MCEngineAgent"}
FEWEST_TRANSITIONS = 50_000
SILENT = {TakeInventory, inputs.ReceiveBucket}
"""These change nothing, and their answers are not compared."""
ANSWERS = {"Cleaned", "Unloaded", "StrayGone"}
"""Answers to orders that are done; they have names of their own."""


@cache
def golden(name: str) -> Graph:
    return read_golden(TLA / MODELS[name].golden)


def box(name: str) -> AgentBox:
    return read_agent_box(TLA / MODELS[name].cfg)


@pytest.mark.parametrize("name", MODELS)
def test_the_agent_acts_as_specified(name: str):
    difference = first_difference(walk_agent(box(name)), golden(name))
    if difference is not None:
        pytest.fail(difference.told("the core", "the specification"))


def test_the_boxes_are_large_enough():
    assert sum(golden(name).transitions for name in MODELS) >= FEWEST_TRANSITIONS


@pytest.mark.parametrize("name", MODELS)
def test_what_may_come_in_a_box_has_an_effect_and_mistakes_have_none(name: str):
    assert actions_of([golden(name)]) == frozenset(box(name).Happens)
    assert NEVER not in box(name).Happens


def test_every_input_is_compared():
    assert actions_of(map(golden, MODELS)) == {kind.__name__ for kind in INPUTS if kind not in SILENT} | ANSWERS


@pytest.mark.parametrize("name", MODELS)
def test_a_golden_graph_is_small_and_canonical(name: str):
    data = (TLA / MODELS[name].golden).read_bytes()
    assert len(data) <= LIMIT
    assert encoded(golden(name))[10:] == data[10:]  # but for gzip's own header
    assert decoded(data).transitions == golden(name).transitions


def difference_of(name: str, step: Callable[[Agent, Input], AgentStep]) -> tuple[set[str], set[str]]:
    """Which actions only the core takes, and which only the specification, where the two part first."""
    found = first_difference(walk_agent(box(name), step), golden(name))
    assert found is not None
    return {action for action, _ in found.only_left}, {action for action, _ in found.only_right}


def test_an_agent_that_forgets_to_fence_is_seen():
    """A cleanup of a number that never came here must be remembered."""

    def forgetful(a: Agent, item: Input) -> AgentStep:
        done = agent_step(a, item)
        nothing_here = isinstance(item, Cleanup) and item.number not in a.works and not done.actions
        return evolve(done, agent=a) if nothing_here else done

    assert difference_of("agent buckets", forgetful) == (set(), {"Cleanup"})


def test_an_agent_that_obeys_an_order_for_another_incarnation_is_seen():
    def obedient(a: Agent, item: Input) -> AgentStep:
        mine = evolve(item, incarnation=a.incarnation) if isinstance(item, Begin) else item
        return agent_step(a, mine)

    assert difference_of("agent buckets", obedient) == ({NEVER}, set())


def test_an_agent_that_asks_for_another_unload_is_seen():
    """What a step asks for is compared, where no state of the agent shows it."""

    def careless(a: Agent, item: Input) -> AgentStep:
        done = agent_step(a, item)
        actions = tuple(evolve(x, number=0) if isinstance(x, PhysicalUnload) else x for x in done.actions)
        return evolve(done, actions=actions)

    assert difference_of("agent buckets", careless) == ({"Counted"}, {"Counted"})


def test_an_agent_that_says_cleaned_too_early_is_seen():
    def hasty(a: Agent, item: Input) -> AgentStep:
        done = agent_step(a, item)
        waits = isinstance(item, Cleanup) and isinstance(done.answer, Pending)
        return evolve(done, answer=Answered(number=item.number)) if waits else done

    assert difference_of("agent answers", hasty) == ({"Cleaned"}, set())


def test_a_dropped_field_that_matters_is_seen():
    """The digest of a work's plan is dropped by the map; an agent that acted on it would be found out."""

    def choosy(a: Agent, item: Input) -> AgentStep:
        done = agent_step(a, item)
        work = a.works.get(getattr(item, "number", 0))
        dislikes = work is not None and work.plan is not None and work.plan.digest.startswith("e")
        return evolve(done, agent=a, actions=()) if dislikes and isinstance(item, inputs.ArmBucket) else done

    with pytest.raises(TwoFaced):
        walk_agent(box("agent buckets"), choosy)

"""Net 1 for the whole protocol: the composed system of `lorafsm.system`, walked with the constants of each .cfg, is the
golden graph, in both directions; `make check` holds LoraProtocol.tla to the same file.  No Java is needed here."""

import re
from functools import cache
from typing import get_args

import pytest
from attrs import evolve

from lorafsm.events import CloseAndRelease, Event
from lorafsm.records import Registry
from lorafsm.registry import Step, step
from lorafsm.system import actions as do
from lorafsm.system.model import Model
from lorafsm.system.rules import Rules
from lorafsm.system.weak import WEAK
from lorafsm_tla.golden import LIMIT, actions_of, decoded, encoded, first_difference, read_golden
from lorafsm_tla.manifest import folder, read_manifest
from lorafsm_tla.system_boxes import NAMED_OTHERWISE, TwoFaced, read_system_box, walk_system
from lorafsm_tla.system_state import SystemNames, system_as_tla
from lorafsm_tla.values import Graph, state_of

TLA = folder()
ALL = [m for m in read_manifest(TLA / "manifest.toml") if m.name.startswith("protocol ")]
MODELS = {m.name: m for m in ALL if m.golden}
QUICK = [name for name, m in MODELS.items() if m.tier == "ci"]
FEWEST_TRANSITIONS = 80_000
OUTSIDE = {do.Finish: {"FinishesWell", "FinishesBadly"}}
"""A result that is a fault has a name of its own."""


@cache
def golden(name: str) -> Graph:
    return read_golden(TLA / MODELS[name].golden)


def walked(name: str, rules: Rules | None = None) -> Graph:
    box, numbers = read_system_box(TLA / MODELS[name].cfg)
    return walk_system(box, numbers) if rules is None else walk_system(box, numbers, rules)


@pytest.mark.parametrize("name", MODELS)
def test_the_composed_system_acts_as_specified(name: str):
    difference = first_difference(walked(name), golden(name))
    if difference is not None:
        pytest.fail(difference.told("the core", "the specification"))


def test_the_boxes_are_large_enough():
    assert sum(golden(name).transitions for name in MODELS) >= FEWEST_TRANSITIONS


def test_every_action_is_compared():
    names = {NAMED_OTHERWISE.get(kind, kind.__name__) for kind in get_args(do.Action) if kind not in OUTSIDE}
    everything = names.union(*OUTSIDE.values())
    assert actions_of(map(golden, QUICK)) == everything


@pytest.mark.parametrize("name", MODELS)
def test_a_golden_graph_is_small_and_canonical(name: str):
    data = (TLA / MODELS[name].golden).read_bytes()
    assert len(data) <= LIMIT
    assert encoded(golden(name))[10:] == data[10:]  # but for gzip's own header
    assert decoded(data).transitions == golden(name).transitions


def test_a_registry_that_keeps_a_ref_is_seen():
    """The comparison says where the two part, and which side does what."""

    def keeps(r: Registry, event: Event) -> Step:
        done = step(r, event)
        if not isinstance(event, CloseAndRelease) or done.registry is r:
            return done
        return evolve(done, registry=evolve(done.registry, versions=r.versions))

    difference = first_difference(walked("protocol life", Rules(registry=keeps)), golden("protocol life"))
    assert difference is not None
    assert {action for action, _ in difference.only_left} == {"Close"}
    assert "only the specification: Close" in difference.told("the core", "the specification")


def test_a_driver_that_does_not_wait_is_seen():
    hasty = walked("protocol buckets", WEAK["broadcast_before_arming"].rules)
    difference = first_difference(hasty, golden("protocol buckets"))
    assert difference is not None
    assert {action for action, _ in difference.only_left} == {"Authorize"}


def test_a_dropped_field_that_matters_is_seen():
    """Why a version failed is dropped by the map; a registry that acted on it would be found out."""

    def superstitious(r: Registry, event: Event) -> Step:
        version = r.versions.get(getattr(event, "key", None))  # type: ignore[arg-type]
        if event.name == "artifact_stored" and version is not None and version.failure == "TARGET_FAILED":
            return Step(r, step(r, event).outcome)
        return step(r, event)

    with pytest.raises(TwoFaced):
        walked("protocol handover", Rules(registry=superstitious))


def test_a_box_that_is_too_large_is_refused():
    box, numbers = read_system_box(TLA / MODELS["protocol restart"].cfg)
    with pytest.raises(ValueError, match="more than 100 states"):
        walk_system(box, numbers, max_states=100)


def test_what_nothing_is_known_of_is_the_specifications_first_state():
    box, numbers = read_system_box(TLA / MODELS["protocol opening"].cfg)
    model = Model(box)
    first = state_of(system_as_tla(model.start(), SystemNames(model.world, numbers)))
    assert golden("protocol opening").initial == {first}


FAIR = re.compile(r"^(Fair\w+)(?:\(who\))? +== ", re.MULTILINE)


def test_every_condition_of_fairness_is_needed():
    """For each there is a model that leaves it out and must break a promise of liveness."""
    stated = set(FAIR.findall((TLA / "LoraProtocol.tla").read_text()))
    left_out = {
        line.split(" <- ")[0].strip()
        for m in ALL
        if m.name.startswith("protocol without ")
        for line in (TLA / m.cfg).read_text().splitlines()
        if line.strip().startswith("Fair")
    }
    assert stated - {"Fairness"} == left_out
    assert all(m.exit == 13 for m in ALL if m.name.startswith("protocol without "))


def test_every_weak_variant_is_a_mistake_of_the_specification_too():
    """One named bug for each tempting mistake of `lorafsm.system.weak`, and one that the search of both found."""
    assert len([m for m in ALL if m.name.startswith("protocol bug ")]) == len(WEAK) + 1
    assert all(m.exit in (12, 13) and m.violates for m in ALL if m.name.startswith("protocol bug "))

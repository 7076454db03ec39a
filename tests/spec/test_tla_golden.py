"""Net 1: the core's graph of each box is the golden one, in both directions; `make check` holds the specification's to
the same file.  No Java is needed here."""

from collections.abc import Callable
from functools import cache

import pytest
from attrs import evolve

from lorafsm.events import EVENTS, Commit, Event
from lorafsm.records import Registry
from lorafsm.registry import Step, step
from lorafsm_tla.golden import actions_of, decoded, encoded, first_difference, read_golden
from lorafsm_tla.manifest import read_manifest
from lorafsm_tla.values import Graph, read_value, tla_text
from tests.spec.tla_boxes import TLA, TwoFaced, read_box, walk

MODELS = {m.name: m for m in read_manifest(TLA / "manifest.toml") if m.golden and m.module == "MCLoraRegistry"}
FEWEST_TRANSITIONS = 50_000


@cache
def golden(name: str) -> Graph:
    return read_golden(TLA / MODELS[name].golden)


@pytest.mark.parametrize("name", MODELS)
def test_the_core_acts_as_specified(name: str):
    difference = first_difference(walk(read_box(name)), golden(name))
    if difference is not None:
        pytest.fail(difference.told("the core", "the specification"))


def test_the_boxes_are_large_enough():
    assert sum(golden(name).transitions for name in MODELS) >= FEWEST_TRANSITIONS


@pytest.mark.parametrize("name", MODELS)
def test_what_may_happen_in_a_box_happens(name: str):
    assert actions_of([golden(name)]) - {"TakeoverOfSilent"} == frozenset(read_box(name).Happens)


def test_every_event_is_compared():
    assert actions_of(map(golden, MODELS)) == {event.__name__ for event in EVENTS} | {
        "EngineRestarted",
        "TakeoverOfSilent",
    }


@pytest.mark.parametrize("name", MODELS)
def test_a_golden_graph_is_small_and_canonical(name: str):
    data = (TLA / MODELS[name].golden).read_bytes()
    assert len(data) <= 1 << 20
    assert encoded(golden(name))[10:] == data[10:]  # but for gzip's own header
    assert decoded(data).transitions == golden(name).transitions


def wrong(change: Callable[[Registry, Event, Step], Registry]) -> Callable[[Registry, Event], Step]:
    def mistaken(r: Registry, event: Event) -> Step:
        done = step(r, event)
        return evolve(done, registry=change(r, event, done))

    return mistaken


def test_a_core_that_forgets_to_commit_is_seen():
    """The comparison says where, and which side does what."""
    forgetful = wrong(lambda r, event, done: r if isinstance(event, Commit) else done.registry)
    difference = first_difference(walk(read_box("lag"), step=forgetful), golden("lag"))
    assert difference is not None
    assert [action for action, _ in difference.only_right] == ["Commit"]
    assert "only the specification: Commit" in difference.told("the core", "the specification")


def test_a_core_that_does_more_is_seen():
    """A guard that is missing in the core shows as a step that the specification lacks."""

    def lenient(r: Registry, event: Event, done: Step) -> Registry:
        if event.name == "engine_dead" and done.registry is r and event.engine in r.engines:
            return evolve(r, engines=r.engines.set(event.engine, evolve(r.engines[event.engine], seq=9)))
        return done.registry

    difference = first_difference(walk(read_box("reclaim"), step=wrong(lenient)), golden("reclaim"))
    assert difference is not None
    assert {action for action, _ in difference.only_left} == {"MistakenEngineDead"}


def test_a_dropped_field_that_matters_is_seen():
    """`Engine.reason` is dropped by the map; a core that acted on it would be found out."""

    def superstitious(r: Registry, event: Event, done: Step) -> Registry:
        if done.registry is r or event.name != "engine_lost":
            return done.registry
        engine = done.registry.engines[event.engine]
        if engine.reason:
            return r
        return evolve(done.registry, engines=done.registry.engines.set(event.engine, evolve(engine, reason="once")))

    with pytest.raises(TwoFaced):
        walk(read_box("fleet"), step=wrong(superstitious))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-1", -1),
        ('"a\\"b"', 'a"b'),
        ("TRUE", True),
        ("{}", []),
        ("<<>>", {}),
        ("{2, 1}", [1, 2]),
        ("<<5, 6>>", {"1": 5, "2": 6}),
        ("(0 :> 5 @@ 1 :> {})", {"0": 5, "1": []}),
        ('[a |-> 1, b |-> <<"x">>]', {"a": 1, "b": {"1": "x"}}),
    ],
)
def test_values_of_tlc_are_read(text: str, value: object):
    assert read_value(text) == value
    assert read_value(tla_text(value)) == value


@pytest.mark.parametrize("text", ["", "1 2", "{1", "[a -> 1]", "<<", "(1 :> 2", "?"])
def test_what_is_no_value_is_refused(text: str):
    with pytest.raises(ValueError):
        read_value(text)

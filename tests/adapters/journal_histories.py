"""Histories that Hypothesis makes: the events of a registry that goes on from where it is, and some that miss."""

from __future__ import annotations

from typing import Any

from attrs import evolve
from hypothesis import strategies as st

from lorafsm.events import EngineJoin, OwnerUp
from lorafsm.records import Config, Registry, new_registry
from lorafsm.registry import step
from tests.core.likely import KINDS, at, field_names, likely, wrong_values
from tests.core.story import EPOCH

CONFIG = Config(require_artifact=False)
BIRTH = (
    *(EngineJoin(engine=name, incarnation=1, seq=1, base_fingerprint="") for name in ("E0", "E1")),
    OwnerUp(owner="o1", now=10),
    OwnerUp(owner="o2", now=10),
)


@st.composite
def histories(draw: st.DrawFn, most: int = 40) -> list[Any]:
    """Events for a registry of `EPOCH` and `CONFIG`: mostly such as bring something on."""
    registry, events = new_registry(EPOCH, CONFIG), list(BIRTH)
    for event in BIRTH:
        registry = step(registry, event).registry
    for fresh in range(draw(st.integers(0, most))):
        event = _next(draw, registry, 100 + fresh)
        events.append(event)
        registry = step(registry, event).registry
    return events


def _next(draw: st.DrawFn, registry: Registry, fresh: int) -> Any:
    found = [event for kind in KINDS for event in likely(registry, kind, fresh)]
    onward = [event for event in found if step(registry, event).registry is not registry]
    event = draw(st.sampled_from(onward if onward and draw(st.integers(0, 4)) else found))
    event = at(event, registry.now + draw(st.sampled_from([0, 1, 1_000, 40_000])))
    if draw(st.integers(0, 9)) == 0:
        name = draw(st.sampled_from(field_names(event)))
        event = evolve(event, **{name: draw(st.sampled_from(wrong_values(registry, fresh)[name]))})
    return event


def states(events: list[Any]) -> list[Registry]:
    """The registry before the first event and after each."""
    found = [new_registry(EPOCH, CONFIG)]
    for event in events:
        found.append(step(found[-1], event).registry)
    return found

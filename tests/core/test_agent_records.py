"""What an agent remembers: the two changes that are spelt out change nothing else."""

from __future__ import annotations

import pytest
from attrs import evolve, fields
from immutables import Map

from lorafsm.engine import new_agent
from lorafsm.engine.lifecycle import AdapterState, WorkState
from lorafsm.engine.records import Adapter, Agent, Work
from lorafsm.errors import InvalidField
from lorafsm.identity import VersionKey
from lorafsm.records import Resident, Stray

KEY, DIGEST, NAME = VersionKey("e1", 1), "a" * 64, "relax_policy_lora@e1-1-aaaaaaaaaaaa"
ADAPTER = Adapter(NAME, Resident(KEY, DIGEST, 2), AdapterState.DRAINING, 3)
FULL = Agent(
    engine="E0",
    incarnation=5,
    epoch="e1",
    base_fingerprint="b" * 64,
    slots=4,
    seq=6,
    fence=7,
    tombstones=frozenset({8}),
    works=Map({2: Work(2, KEY, DIGEST, NAME, None, WorkState.READY)}),
    adapters=Map({NAME: ADAPTER, "visitor": Adapter("visitor", None)}),
    closed=Map({KEY: "r1"}),
    strays=Map({"k1": Stray(NAME, 2)}),
    requests=Map({"rid-1": NAME}),
    sealed=Map({"rid-2": KEY}),
)


def test_every_field_here_differs_from_a_new_agents():
    new = new_agent("E1", 0, "e2")
    assert [f.name for f in fields(Agent) if getattr(FULL, f.name) == getattr(new, f.name)] == []
    other = Adapter("visitor", None)
    assert [f.name for f in fields(Adapter) if getattr(ADAPTER, f.name) == getattr(other, f.name)] == []


def test_the_count_of_an_adapter_changes_and_nothing_else():
    assert ADAPTER.with_refs(4) == evolve(ADAPTER, refs=4)


def test_the_requests_change_and_nothing_else():
    requests, less = FULL.requests.set("rid-3", NAME), ADAPTER.with_refs(2)
    after = FULL.with_requests(requests, less)
    assert after == evolve(FULL, requests=requests, adapters=FULL.adapters.set(NAME, less))
    assert after != FULL


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("engine", "E 0"),
        ("incarnation", -1),
        ("epoch", ""),
        ("slots", -1),
        ("slots", 0),
        ("slots", True),
        ("base_fingerprint", 7),
    ],
)
def test_an_agent_with_a_malformed_argument_is_not_made(field: str, value: object):
    given = {"engine": "E0", "incarnation": 1, "epoch": "e1", field: value}
    with pytest.raises(InvalidField) as caught:
        new_agent(**given)
    assert caught.value.field == field

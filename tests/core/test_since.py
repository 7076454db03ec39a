"""`since` says when a record came into its state: it moves with the state, to the time of the event."""

from collections.abc import Iterator
from typing import Any

import pytest
from attrs import evolve

from lorafsm.box import registry_moves
from lorafsm.boxes import BOXES
from lorafsm.explore import explore, registry_step
from lorafsm.records import Registry
from lorafsm.registry import step

STATES = 60
LATER = 1_000


def records(r: Registry) -> Iterator[tuple[object, Any]]:
    """Every record that has a `since` and a state that events move."""
    yield from r.versions.items()
    yield from r.engines.items()
    for owner in r.owners.values():
        yield from (((owner.owner, sequence), session) for sequence, session in owner.sessions.items())


def first_states(name: str) -> list[Registry]:
    found: dict[Registry, None] = {}

    def known(r: Registry) -> tuple[str, ...]:
        found[r] = None
        return ()

    box = BOXES[name]
    explore(box.start(), registry_moves(box), known, step=registry_step, max_states=STATES)
    return list(found)


def faults(before: Registry, after: Registry, now: int) -> list[str]:
    was, wrong = dict(records(before)), []
    for name, record in records(after):
        known = was.get(name)
        moved = known is None or known.state is not record.state
        if moved and record.since != now:
            wrong.append(f"{name} is {record.state} since {record.since}, now is {now}")
        if not moved and record.since not in (known.since, now):
            wrong.append(f"{name} stayed {record.state} and is so since {record.since}, not {known.since}")
    new = [reclaim for name, reclaim in after.reclaims.items() if name not in before.reclaims]
    return wrong + [f"reclaim {reclaim.reclaim_id} is since {reclaim.since}" for reclaim in new if reclaim.since != now]


@pytest.mark.parametrize("name", [name for name in BOXES if name != "a full fleet"])
def test_a_state_is_as_old_as_its_event(name: str):
    moves = registry_moves(evolve(BOXES[name], illegal=False))
    for r in first_states(name):
        for event in moves(r):
            later = evolve(event, now=r.now + LATER)
            after = step(r, later).registry
            assert after is r or after.now == later.now
            assert faults(r, after, later.now) == [], later

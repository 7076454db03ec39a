"""The inductive invariant: it holds in the beginning, and every event keeps it from whatever state it holds in.

`python -m tests.core.test_inductive all` takes every state of one engine, two versions and one session;
`python -m tests.core.test_inductive random 1000000` that many random states of more.
"""

import random
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from time import monotonic

import pytest
from attrs import evolve

from lorafsm import inductive, invariants
from lorafsm.box import ALL_EVENTS, Box, registry_moves
from lorafsm.boxes import BOXES
from lorafsm.events import Event
from lorafsm.explore import explore, registry_step
from lorafsm.records import Registry, new_registry
from lorafsm.registry import step
from tests.core.inductive_states import DIGEST, EPOCH, NOW, Size, drawn, every

SMALL = Size()
LARGER = Size(engines=2, versions=3, sessions=3, buckets=2, capacity=3, rich=True)
DRAWN, KINDS, EVENTS = 500, 3, 8
"""States that a test draws; kinds of event, and events, for each."""


def events_of(r: Registry, size: Size, kinds: frozenset[str] = ALL_EVENTS) -> list[Event]:
    """Every event of these kinds that may come, wrong ones too, in time and late."""
    box = Box(
        config=r.config,
        epoch=EPOCH,
        events=kinds,
        engines=tuple(f"E{number}" for number in range(size.engines)),
        incarnations=(1, 2, 3),
        versions=tuple(range(1, size.versions + 1)),
        digests=(DIGEST, "b" * 64),
        tokens=(*sorted(r.tokens), "fresh"),
        buckets=1,
        numbers=r.next_number + 1,
        sequences=tuple(range(size.sessions + 1)),
        reclaim_ids=("r1", "fresh"),
        seqs=(0, 1, 2, 3),
        nows=(NOW + 200,),
    )
    return list(registry_moves(box)(r))


def some_events(r: Registry, size: Size, rng: random.Random) -> list[Event]:
    """A few of them."""
    events = events_of(r, size, frozenset(rng.sample(sorted(ALL_EVENTS), KINDS)))
    return rng.sample(events, min(EVENTS, len(events)))


def broken_by(r: Registry, events: Iterable[Event]) -> Iterator[str]:
    """What these events break, from a state in which the invariant holds."""
    for event in events:
        after = step(r, event).registry
        if after is not r:
            wrong = inductive.broken(after) + invariants.check_change(r, event, after)
            if wrong:
                yield f"{event}\nfrom {r}\nbreaks {wrong}"


def allowed(states: Iterable[Registry]) -> Iterator[Registry]:
    return (r for r in states if not inductive.broken(r))


def test_it_holds_in_the_beginning():
    assert inductive.broken(new_registry(EPOCH)) == ()


@pytest.mark.parametrize("size", [SMALL, LARGER], ids=["small", "larger"])
def test_every_step_keeps_it(size: Size):
    """Here in states drawn at random; the whole small space, and a million larger ones, are a matter of a command."""
    rng, tried = random.Random(2), 0
    for r in islice(allowed(drawn(size, rng)), DRAWN):
        tried += 1
        for wrong in broken_by(r, some_events(r, size, rng)):
            pytest.fail(wrong)
    assert tried == DRAWN


def test_the_small_space_is_taken_in_turn():
    """No state comes twice, and what is picked is picked in each way."""
    states = list(islice(every(SMALL), 2_000))
    assert len(set(states)) == len(states)


@pytest.mark.parametrize("name", ["one bucket", "revoked by policy", "reclaim and restarts", "repair, twice refused"])
def test_reachable_states_have_it(name: str):
    """An invariant that held nowhere would be kept as well."""
    box = BOXES[name]
    found = explore(box.start(), registry_moves(box), inductive.broken, step=registry_step, max_states=400)
    assert found.violations == ()


def test_a_state_that_only_the_promises_allow_is_not_kept():
    """The conjuncts beside the promises are needed: without them a step may break a promise."""
    [r] = islice((r for r in drawn(LARGER, random.Random(3)) if r.unresolved and not inductive.broken(r)), 1)
    attempt = r.attempts[r.unresolved]
    version = r.versions[attempt.key]
    torn = evolve(r, versions=r.versions.set(version.key, evolve(version, reclaim_id="nobody's")))
    assert inductive.broken(torn)


def main(how: str, count: int, seed: int) -> None:
    """Look at all small states, or at so many random ones, and say what was found."""
    began, states, steps, rng = monotonic(), 0, 0, random.Random(seed)
    source, size = (every(SMALL), SMALL) if how == "all" else (drawn(LARGER, rng), LARGER)
    for r in allowed(source):
        chosen = events_of(r, size) if how == "all" else some_events(r, size, rng)
        for wrong in broken_by(r, chosen):
            sys.exit(wrong)
        states, steps = states + 1, steps + len(chosen)
        if states % 10_000 == 0:
            print(f"{states:,} states, {steps:,} steps, {monotonic() - began:.0f} s", flush=True)
        if how != "all" and states == count:
            break
    print(f"{states:,} states, {steps:,} steps: the invariant is kept ({monotonic() - began:.0f} s)")


if __name__ == "__main__":
    main(sys.argv[1], *(map(int, (*sys.argv[2:], 0, 1)[:2])))

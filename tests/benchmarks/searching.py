"""How fast the explorer goes through the states of one box, invariants checked in each."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from time import process_time

from lorafsm import invariants
from lorafsm.box import registry_moves
from lorafsm.boxes import BOXES
from lorafsm.explore import explore, registry_step
from tests.benchmarks.figures import Figure, Goal
from tests.benchmarks.sizes import Sizes

GOALS: dict[str, Goal] = {}
BOX = "sessions and leases"


def figures(sizes: Sizes) -> Iterator[Figure]:
    """Distinct states, and steps taken, per second of processor time: the median of whole searches."""
    box, seconds = BOXES[BOX], []
    for _ in range(sizes.searches):
        start = process_time()
        seen = explore(
            box.start(),
            registry_moves(box),
            invariants.check,
            step=registry_step,
            check_change=invariants.check_change,
            max_states=sizes.states,
        )
        seconds.append(process_time() - start)
    assert not seen.violations
    yield Figure("explore.states_per_s", seen.states / median(seconds), "states/s")
    yield Figure("explore.steps_per_s", seen.transitions / median(seconds), "steps/s")

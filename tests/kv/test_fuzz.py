"""More than 10^5 random operations on caches of every kind, all invariants after each."""

from __future__ import annotations

import pytest

from tests.kv.fuzz import Life

LIVES, STEPS = 350, 300


@pytest.mark.parametrize("part", range(7))
def test_no_invariant_is_violated(part: int):
    done = 0
    for seed in range(part * LIVES // 7, (part + 1) * LIVES // 7):
        life = Life(seed)
        assert life.run(STEPS) == [], f"Life({seed})"
        done += len(life.done)
    assert done == LIVES * STEPS // 7


def test_there_are_enough_of_them():
    assert LIVES * STEPS >= 100_000

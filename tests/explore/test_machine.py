"""Hypothesis plays the composed system in worlds too large to search: two or three engines, every kind of fault.

After each action the invariants hold.  A failing life prints as its actions in words.  That rest stays within reach is
asked of every state of the boxes that are searched to their end (`test_boxes.py`).
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from lorafsm.system import Model
from lorafsm.system import actions as do
from lorafsm.system.boxes import LARGE
from lorafsm.system.words import in_words

_UNDER_WAY = (do.Finish, do.Deliver)  # taken half of the time, so that lives get somewhere


def machine_of(name: str) -> type[RuleBasedStateMachine]:
    """The machine of one large box."""
    model = Model(LARGE[name])

    class Life(RuleBasedStateMachine):
        """One life: any action that may happen, one after the other."""

        @initialize()
        def begin(self) -> None:
            self.state: Any = model.start()

        @rule(choice=st.integers(0, 10_000), progress=st.booleans())
        def act(self, choice: int, progress: bool) -> None:
            moves = list(model.moves(self.state))
            under_way = [m for m in moves if isinstance(m, _UNDER_WAY)]
            moves = under_way if progress and under_way else moves
            if not moves:
                return
            action = moves[choice % len(moves)]
            note(in_words(action))
            self.state = model.step(self.state, action).state

        @invariant()
        def nothing_is_broken(self) -> None:
            if hasattr(self, "state"):
                assert model.check(self.state) == ()

    return Life


@pytest.mark.parametrize("name", LARGE)
def test_any_life_keeps_the_invariants(name: str):
    run_state_machine_as_test(machine_of(name), settings=settings(stateful_step_count=60))

"""The composed system in its small worlds: every state seen, every invariant kept, rest always within reach."""

from random import Random

import pytest

from lorafsm.box import ALL_EVENTS
from lorafsm.boxes import BOXES as REGISTRY_BOXES
from lorafsm.explore import simulate
from lorafsm.outcomes import Code
from lorafsm.system import FAULTS, Model, SystemBox
from lorafsm.system.boxes import BOXES, LARGE
from lorafsm.system.words import as_program, in_words
from tests.explore.searches import searched
from tests.spec.walks import walk

ACTIONS = {
    "lose": "lose",
    "duplicate": "duplicate",
    "crash": "CrashEngine",
    "dead": "DeclareDead",
    "publisher": "CrashPublisher",
    "silence": "Hush",
    "lost": "LoseEngine",
    "deadline": "GiveUp",
    "owner": "EndOwner",
    "doubt": "Doubt",
    "reserve": "RepeatReserve",
    "bind": "RepeatBind",
    "inventory": "Report",
    "rollback": "RollBack",
    "retry": "Reserve",
}
FAILING = {
    "load": ("finish StartLoad", "failed"),
    "bucket": ("finish PostReceive", "failed"),
    "slow": ("finish PhysicalUnload", "failed"),
    "count": ("finish CountRequests", "failed"),
    "corrupt": ("finish StartLoad", "corrupt"),
}
# What an owner's guard says, and not the registry; and what its boxes, which have one epoch, leave out.
OF_THE_SYSTEM = {Code.RETRY_UNSAFE, Code.NO_BINDING, Code.OTHER_EPOCH}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in BOXES])
def test_a_box_is_searched_to_its_end_and_nothing_is_broken(name: str):
    found = searched(name)
    for violation in found.violations:
        pytest.fail("\n".join((*violation.sentences, as_program(violation.path, f"box {name}"))))
    assert found.frontier == 0


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_three_boxes_have_a_hundred_thousand_states():
    large = {name: searched(name).states for name in BOXES if searched(name).states >= 100_000}
    assert len(large) >= 3, large


@pytest.mark.timeout(600)
@pytest.mark.slow
@pytest.mark.parametrize("kind", FAULTS)
def test_every_kind_of_fault_happens(kind: str):
    taken = {pair for name, box in BOXES.items() if kind in box.budgets for pair in searched(name).taken}
    if kind in FAILING:
        assert FAILING[kind] in taken
    else:
        assert ACTIONS[kind] in {action for action, _ in taken}


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_every_event_and_every_refusal_happens_in_some_box():
    taken = {pair for name in REGISTRY_BOXES for pair in walk(name).exploration.taken}
    assert {event for event, code in taken if code == "OK"} == ALL_EVENTS
    composed = {code for name in BOXES for _, code in searched(name).taken}
    codes = {code for _, code in taken}
    assert set(Code) - codes <= OF_THE_SYSTEM
    assert composed >= OF_THE_SYSTEM


def test_a_box_names_only_known_faults():
    with pytest.raises(ValueError, match="there is no fault 'los'"):
        SystemBox(budgets={"los": 1})


@pytest.mark.parametrize("name", LARGE)
def test_random_walks_through_a_large_box_break_nothing(name: str):
    model = Model(LARGE[name])
    seen = simulate(
        model.start(),
        model.moves,
        model.check,
        step=model.explored,
        choose=Random(7).randrange,
        walks=20,
        length=150,
    )
    assert seen.violations == ()
    assert seen.frontier == 1


def test_a_walk_is_the_same_for_the_same_seed():
    box = LARGE["large: every fault"]

    def walked(seed: int) -> tuple[int, ...]:
        model = Model(box)
        seen = simulate(
            model.start(),
            model.moves,
            model.check,
            step=model.explored,
            choose=Random(seed).randrange,
            walks=3,
            length=100,
        )
        return seen.states, seen.changes, seen.depth

    assert walked(3) == walked(3)
    assert walked(3) != walked(4)


def test_every_action_has_words():
    for name in ("large: every fault",):
        model = Model(LARGE[name])
        state, draw = model.start(), Random(1)
        for _ in range(400):
            moves = list(model.moves(state))
            if not moves:
                state = model.start()
                continue
            assert all(in_words(action).endswith(".") for action in moves)
            state = model.step(state, draw.choice(moves)).state

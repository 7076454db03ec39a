"""The explorer on systems whose answers are known, and a counterexample that runs when pasted."""

from collections.abc import Iterator

import pytest
from attrs import evolve

from lorafsm import events as ev
from lorafsm.box import Box, registry_moves
from lorafsm.boxes import BOXES
from lorafsm.explore import Path, as_program, explore, registry_step
from lorafsm.records import Registry, new_registry
from lorafsm.registry import step
from tests.spec.walks import program


def counter(limit: int):
    """Counts up and down between 0 and a limit; refuses to leave it."""

    def act(state: int, event: str) -> tuple[int, str]:
        after = state + (1 if event == "up" else -1)
        return (after, "OK") if 0 <= after <= limit else (state, "LIMIT")

    return act


def both(state: int) -> Iterator[str]:
    yield from ("up", "down")


def nothing(state: object) -> tuple[str, ...]:
    return ()


def test_a_line_of_states_is_counted_exactly():
    found = explore(0, both, nothing, step=counter(10), max_states=100)
    assert (found.states, found.transitions, found.changes, found.depth) == (11, 22, 20, 10)
    assert found.complete
    assert found.outcomes() == {"OK": 20, "LIMIT": 2}
    assert sum(found.events().values()) == 22


def test_a_search_that_was_cut_says_what_is_left():
    found = explore(0, both, nothing, step=counter(10), max_states=5)
    assert found.states == 5
    assert not found.complete
    assert found.frontier >= 1


def test_the_shortest_path_to_a_bad_state():
    found = explore(3, both, lambda n: ("too low",) if n == 0 else (), step=counter(10), max_states=100)
    [violation] = found.violations
    assert violation.sentences == ("too low",)
    assert violation.path == Path(3, ("down", "down", "down"))


def test_a_bad_step_is_found_though_its_states_are_good():
    def check_change(before: int, event: str, after: int) -> tuple[str, ...]:
        return ("fell from 4",) if (before, after) == (4, 3) else ()

    found = explore(0, both, nothing, step=counter(10), max_states=100, check_change=check_change)
    [violation] = found.violations
    assert violation.path.events == ("up", "up", "up", "up", "down")


def test_a_bad_initial_state_has_the_empty_path():
    found = explore(0, both, lambda n: ("zero",) if n == 0 else (), step=counter(3), max_states=100)
    assert found.violations[0].path.events == ()


@pytest.mark.parametrize("name", ["one bucket", "sessions and leases", "repair, twice refused"])
def test_two_searches_of_a_box_are_the_same(name: str):
    box = BOXES[name]
    one, two = (
        explore(box.start(), registry_moves(box), nothing, step=registry_step, max_states=500) for _ in range(2)
    )
    assert one == two
    assert one.complete or one.states >= 500


def test_a_counterexample_runs_when_it_is_pasted(capsys: pytest.CaptureFixture[str]):
    box = BOXES["restart during a publication"]

    def check(r: Registry) -> tuple[str, ...]:
        return ("somebody restarted",) if any(e.incarnation > 1 and e.residents for e in r.engines.values()) else ()

    def check_default(r: Registry) -> tuple[str, ...]:
        return ("published",) if r.default is not None else check(r)

    found = explore(box.start(), registry_moves(box), check_default, step=registry_step, max_states=5_000)
    [violation] = found.violations
    names: dict[str, object] = {}
    exec(program(box, violation.path), names)
    state = names["state"]
    assert isinstance(state, Registry)
    assert check_default(state)
    assert len(capsys.readouterr().out.splitlines()) == len(box.story) + len(violation.path.events)


def test_a_path_from_a_state_that_is_no_beginning_is_printed_whole():
    text = as_program(Path(7, ("up",)), step="tests.spec.test_explore:counter")
    assert "state = 7" in text
    assert "'up'," in text


def test_times_of_a_box_are_never_past():
    box = Box(events=frozenset({"owner_up"}), nows=(0, 5, 9))
    early, late = new_registry("e1"), evolve(new_registry("e1"), now=7)
    assert [event.now for event in registry_moves(box)(early)] == [0, 5, 9]
    assert [event.now for event in registry_moves(box)(late)] == [7, 9]


def test_a_story_is_what_happened():
    """No event of a story is refused: a box starts where its story says."""
    for name, box in BOXES.items():
        r = new_registry(box.epoch, box.config)
        for event in box.story:
            done = step(r, event)
            assert done.outcome.ok, (name, event, done.outcome)
            assert done.registry is not r, (name, event)
            r = done.registry
        assert r == box.start()


def test_every_box_that_publishes_reaches_what_it_is_about():
    assert ev.Commit.name in BOXES["one bucket"].events
    found = explore(
        BOXES["one bucket"].start(), registry_moves(BOXES["one bucket"]), nothing, step=registry_step, max_states=20_000
    )
    assert found.taken["commit", "OK"]
    assert found.taken["authorize_bucket", "ALREADY_AUTHORIZED"]

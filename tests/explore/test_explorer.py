"""The explorer itself: it finds what is unreachable, and says no where rest is out of reach."""

from random import Random

from lorafsm.explore import explore, simulate


def moves(state: int):
    return (1, 2) if state < 6 else ()


def step(state: int, event: int):
    return state + event, "OK"


def none(state: int) -> tuple[str, ...]:
    return ()


def test_every_state_that_can_rest_is_no_violation():
    found = explore(0, moves, none, step=step, max_states=100, rests=lambda s: s in (6, 7))
    assert (found.states, found.frontier, found.violations) == (8, 0, ())


def test_the_nearest_state_that_cannot_rest_is_a_violation():
    found = explore(0, moves, none, step=step, max_states=100, rests=lambda s: s == 6)
    [violation] = found.violations
    assert violation.sentences == ("liveness: without a further fault nothing leads to rest from here",)
    assert sum(violation.path.events) == 7


def test_unfair_steps_do_not_lead_to_rest():
    found = explore(
        0, moves, none, step=step, max_states=100, rests=lambda s: s >= 6, is_fair=lambda before, after: before != 3
    )
    assert sum(found.violations[0].path.events) == 3


def test_an_incomplete_search_says_nothing_about_rest():
    found = explore(0, moves, none, step=step, max_states=3, rests=lambda s: False)
    assert found.frontier > 0
    assert found.violations == ()


def test_a_simulation_is_never_complete_and_stops_at_a_violation():
    def check(state: int) -> tuple[str, ...]:
        return ("five",) if state == 5 else ()

    seen = simulate(0, moves, check, step=step, choose=Random(1).randrange, walks=50, length=10)
    assert seen.frontier == 1
    assert seen.violations[0].sentences == ("five",)
    assert sum(seen.violations[0].path.events) == 5

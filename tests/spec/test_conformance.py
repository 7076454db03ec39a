"""The core against the tables: every step of every box is a row, and every row is a step of some box."""

from functools import cache

import pytest

from lorafsm.box import ALL_EVENTS
from lorafsm.boxes import BOXES
from lorafsm_cli.tables import NAMES, Row, Table, accepts, machine_of, read_table
from tests.spec.observer import Seen
from tests.spec.walks import program, walk

TABLES = {name: read_table(name) for name in NAMES}


@cache
def oracle(lifecycle: str):
    return machine_of(TABLES[lifecycle])


def is_a_row(seen: Seen) -> bool:
    return accepts(oracle(seen.lifecycle), seen.state, seen.trigger, seen.kind, seen.value)


def acts_out(seen: Seen, table: Table, row: Row) -> bool:
    return (seen.lifecycle, seen.state, seen.trigger, seen.kind, seen.value) == (
        table.lifecycle,
        row.state,
        row.trigger,
        row.kind,
        row.value,
    )


@pytest.mark.parametrize("name", BOXES)
def test_a_box_is_searched_to_its_end(name: str):
    found = walk(name).exploration
    assert found.complete, f"{found.frontier} states of {found.states} were not expanded"


@pytest.mark.parametrize("name", BOXES)
def test_every_step_is_a_row(name: str):
    assert [str(seen) for seen in sorted(walk(name).seen) if not is_a_row(seen)] == []


@pytest.mark.parametrize("name", BOXES)
def test_a_refusal_changes_nothing(name: str):
    """The registry of a refused step is the very object that went in."""
    assert walk(name).changed_by_refusals == ()


@pytest.mark.parametrize("name", BOXES)
def test_the_invariants_hold_in_every_state_and_step(name: str):
    for violation in walk(name).exploration.violations:
        pytest.fail(f"{violation.sentences}\n{program(BOXES[name], violation.path)}")


@pytest.mark.parametrize("lifecycle", NAMES)
def test_every_row_is_reached(lifecycle: str):
    seen = frozenset().union(*(walk(name).seen for name in BOXES))
    table = TABLES[lifecycle]
    reached = {(s.state, s.trigger, s.kind, s.value) for s in seen if s.lifecycle == lifecycle}
    rows = {(row.state, row.trigger, row.kind, row.value): row for row in table.rows}
    assert [str(row) for key, row in rows.items() if key not in reached] == []


def test_every_event_is_accepted_and_refused_somewhere():
    taken = {pair for name in BOXES for pair in walk(name).exploration.taken}
    assert {event for event, code in taken if code == "OK"} == ALL_EVENTS
    never_refused = ALL_EVENTS - {event for event, code in taken if code not in ("OK", "ALREADY_CLOSED")}
    assert never_refused == {"recovered"}


def test_the_oracle_says_no():
    """A machine that accepted everything would prove nothing."""
    version = oracle("version")
    assert accepts(version, "LOADING", "commit", "next", "PUBLISHED")
    assert not accepts(version, "LOADING", "commit", "next", "RETIRED")
    assert not accepts(version, "RECLAIMED", "reserve", "next", "LOADING")
    assert not accepts(version, "LOADING", "commit", "refusal", "NOT_RETIRED")
    assert not accepts(version, "LOADING", "commit", "stored", "")
    assert not accepts(version, "LOADING", "no such event", "next", "PUBLISHED")
    assert not accepts(oracle("session"), "CLOSED", "bind_first", "next", "BOUND")

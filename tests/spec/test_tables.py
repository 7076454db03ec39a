"""The tables of spec/ are whole, and say what the core's own tables say."""

from importlib import import_module

import pytest

from lorafsm.box import ALL_EVENTS
from lorafsm.outcomes import Code
from lorafsm_cli.tables import ABSENT, NAMES, Table, read_table

TABLES = {name: read_table(name) for name in NAMES}


def named(path: str):
    module, name = path.split(":")
    return getattr(import_module(module), name)


@pytest.fixture(params=NAMES)
def table(request: pytest.FixtureRequest) -> Table:
    return TABLES[request.param]


def test_the_core_has_the_same_changes(table: Table):
    ours: dict[str, dict[str, set[str]]] = {state: {} for state in table.states}
    for row in table.changes():
        ours[row.state].setdefault(row.event, set()).add(row.value)
    core = {
        ABSENT if state is None else str(state): {event: {str(n) for n in nexts} for event, nexts in events.items()}
        for state, events in named(table.states_of).items()
    }
    assert ours == core


def test_the_states_are_those_of_the_record(table: Table):
    [absent, *states] = table.states
    assert absent == ABSENT
    kind = type(next(state for state in named(table.states_of) if state is not None))
    assert states == [str(state) for state in kind]
    assert all(words for words in table.states.values())


def test_every_named_event_has_a_row_in_every_state(table: Table):
    own = {(row.state, row.event) for row in table.rows if not row.of}
    expected = {(state, event) for event in table.events for state in table.finds.get(event, table.states)}
    assert own == expected


def test_rows_speak_of_known_things(table: Table):
    for row in table.rows:
        assert row.event in ALL_EVENTS, row
        assert row.state in table.states, row
        assert row.clause.startswith(("RFC ", "rule ", "rules ", "protocol ")), row
        if row.kind == "refusal":
            assert row.value in set(Code), row
        if row.kind == "next":
            assert row.value in table.states, row
        if row.of:
            assert row.kind == "next", row
            assert row.value != row.state, row


def test_no_row_is_said_twice(table: Table):
    keys = [(row.state, row.trigger, row.kind, row.value) for row in table.rows]
    assert sorted(keys) == sorted(set(keys))


def test_a_row_of_several_says_when(table: Table):
    """Where an event has several results in a state, at most one of them is without a condition."""
    silent: dict[tuple[str, str], int] = {}
    for row in table.rows:
        silent[row.state, row.trigger] = silent.get((row.state, row.trigger), 0) + (not row.when)
    assert [pair for pair, count in silent.items() if count > 1] == []


def test_every_event_names_some_record():
    assert set().union(*(table.events for table in TABLES.values())) == ALL_EVENTS

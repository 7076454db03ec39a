"""Read the tables of `spec/` and build a `transitions` machine from each: the oracle, and what diagrams show.

A table's machine knows three kinds of row.  `next` moves the record; `refusal` and `stored` leave it alone, and are
internal transitions.  Which row is meant is said when the machine is asked: `accepts(machine, row)`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attrs import frozen
from transitions import Machine

ABSENT = "-"  # the state of a record that does not exist
NAMES = ("version", "attempt", "target", "owner", "session", "reclaim", "unload", "repair", "engine")


@frozen
class Row:
    """One row: in `state`, `event` has the result `kind` (next, refusal or stored) with `value`.

    `of` says whose event it is when it is not the record's own: "its engine", "another version".
    """

    state: str
    event: str
    of: str
    kind: str
    value: str
    when: str
    clause: str

    @property
    def trigger(self) -> str:
        """The machine's name of the event: own events and others' are two triggers."""
        return f"{self.event} of others" if self.of else self.event

    def __str__(self) -> str:
        whose = f" of {self.of}" if self.of else ""
        return f"{self.state} --{self.event}{whose}--> {self.kind} {self.value}".rstrip()


@frozen
class Table:
    """One lifecycle as spec/ has it."""

    lifecycle: str
    record: str  # module:class
    states_of: str  # module:table of the core
    states: dict[str, str]  # each with a sentence
    events: dict[str, str]  # events that name the record, and by which field
    finds: dict[str, tuple[str, ...]]  # events that can find the record in these states only
    rows: tuple[Row, ...]

    def changes(self) -> Iterator[Row]:
        """The rows that change the state."""
        return (row for row in self.rows if row.kind == "next" and row.value != row.state)


def spec_dir() -> Path:
    """Where the tables lie: in the package when installed from a wheel, else in the checkout."""
    packed = Path(__file__).parent / "spec"
    return packed if packed.is_dir() else Path(__file__).parents[2] / "spec"


def read_table(lifecycle: str, where: Path | None = None) -> Table:
    """The table of one lifecycle; KeyError names a field that its file lacks."""
    data = tomllib.loads(((where or spec_dir()) / f"{lifecycle}.toml").read_text(encoding="utf-8"))
    return Table(
        data["lifecycle"],
        data["record"],
        data["states_of"],
        data["states"],
        data["events"],
        {event: tuple(states) for event, states in data.get("finds", {}).items()},
        tuple(_row(row) for row in data["table"]["rows"]),
    )


def _row(row: dict[str, Any]) -> Row:
    [kind] = {"next", "refusal", "stored"} & set(row)
    value = "" if kind == "stored" else row[kind]
    return Row(row["state"], row["event"], row.get("of", ""), kind, value, row.get("when", ""), row["clause"])


class Record:
    """What a machine moves; its `state` may be set to ask about any state."""

    state: str
    trigger: Any  # added by the machine


def machine_of(table: Table) -> Any:
    """The table as a machine; it says no (False) to what no row allows."""
    machine = Machine(
        model=Record(),
        states=list(table.states),
        initial=ABSENT,
        auto_transitions=False,
        send_event=True,
        ignore_invalid_triggers=True,
    )
    for row in table.rows:
        dest = row.value if row.kind == "next" else None
        machine.add_transition(row.trigger, row.state, dest, conditions=_asked_for(row))
    return machine


def _asked_for(row: Row) -> Any:
    return lambda asked: (asked.kwargs["kind"], asked.kwargs["value"]) == (row.kind, row.value)


def accepts(machine: Any, state: str, trigger: str, kind: str, value: str) -> bool:
    """Whether the machine, in `state`, takes this event with this result, and where that leads is `value`."""
    if trigger not in machine.events:
        return False
    record = machine.model
    machine.set_state(state, record)
    taken = bool(record.trigger(trigger, kind=kind, value=value))
    return taken and record.state == (value if kind == "next" else state)

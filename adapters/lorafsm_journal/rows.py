"""One row of the journal: its texts, the chain of checks through them, and what it says."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from attrs import frozen

from lorafsm.events import Event
from lorafsm.outcomes import Outcome, Refusal
from lorafsm_journal.codec import decode_event, decode_outcome, encode_event, encode_events, encode_outcomes
from lorafsm_journal.errors import Undecodable

REFUSED = '{"Refusal":'
"""How the text of every refusal begins."""


@frozen
class Malformed:
    """Stands for a refused event with a field that has no form: what was wrong, not what was in it."""

    text: str


@frozen
class Row:
    """One row: its number (from 1), the event and its outcome."""

    number: int
    event: Event | Malformed
    outcome: Outcome

    def __str__(self) -> str:
        answer = str(self.outcome) if isinstance(self.outcome, Refusal) else type(self.outcome).__name__
        return f"{self.number} {type(self.event).__name__} -> {answer}"


def write_texts(events: Sequence[Event], outcomes: Sequence[Outcome]) -> tuple[list[str], list[str]]:
    """The texts of rows: events, and outcomes.  An event without a form is Undecodable, unless it was refused."""
    if len(events) != len(outcomes):
        raise ValueError(f"{len(events)} events and {len(outcomes)} outcomes; every event has one")
    try:
        event_texts = encode_events(events)
    except Undecodable:
        event_texts = [_write_event(*row) for row in zip(events, outcomes, strict=True)]
    return event_texts, encode_outcomes(outcomes)


def _write_event(event: Event, outcome: Outcome) -> str:
    try:
        return encode_event(event)
    except Undecodable as error:
        if not isinstance(outcome, Refusal):
            raise
        return json.dumps({"Malformed": {"text": str(error)}}, separators=(",", ":"))


def read_texts(number: int, event_text: str, outcome_text: str) -> Row:
    """The row that the texts say; raises Undecodable."""
    outcome = decode_outcome(outcome_text)
    if isinstance(outcome, Refusal) and event_text.startswith('{"Malformed":'):
        return Row(number, Malformed(json.loads(event_text)["Malformed"]["text"]), outcome)
    return Row(number, decode_event(event_text), outcome)


def link(before: str, *texts: str) -> str:
    """The check of a commit: SHA-256 over the check of the one before, the texts of its events and those of its
    outcomes.  A line break parts them, which no text of a journal holds."""
    return hashlib.sha256("\n".join((before, *texts)).encode("utf-8", "surrogatepass")).hexdigest()

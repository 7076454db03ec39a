"""One row of the journal: its texts, the chain of checks through them, and what it says."""

from __future__ import annotations

import hashlib
import json

from attrs import frozen

from lorafsm.events import Event
from lorafsm.outcomes import Outcome, Refusal
from lorafsm_journal.codec import decode_event, decode_outcome, encode_event, encode_outcome
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


def write_texts(event: Event, outcome: Outcome) -> tuple[str, str]:
    """The texts of a row.  An event without a form is Undecodable, unless it was refused."""
    try:
        event_text = encode_event(event)
    except Undecodable as error:
        if not isinstance(outcome, Refusal):
            raise
        event_text = json.dumps({"Malformed": {"text": str(error)}}, separators=(",", ":"))
    return event_text, encode_outcome(outcome)


def read_texts(number: int, event_text: str, outcome_text: str) -> Row:
    """The row that the texts say; raises Undecodable."""
    outcome = decode_outcome(outcome_text)
    if isinstance(outcome, Refusal) and event_text.startswith('{"Malformed":'):
        return Row(number, Malformed(json.loads(event_text)["Malformed"]["text"]), outcome)
    return Row(number, decode_event(event_text), outcome)


def link(before: str, event_text: str, outcome_text: str) -> str:
    """The check of a row: SHA-256 over the check of the row before it and both texts; the lengths say where each
    begins."""
    text = f"{len(before)},{len(event_text)}:{before}{event_text}{outcome_text}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

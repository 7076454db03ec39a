"""How events and outcomes travel between a client and the actor: as the journal's own texts, one a line.

A tenth of the time that pickle takes for the records, and the actor builds nothing but the protocol's classes from it.
An event that has no text, because it is malformed, travels as an object: what is wrong with it is for `step` to say.
"""

from __future__ import annotations

from collections.abc import Sequence

from lorafsm.errors import LoraFsmError
from lorafsm.events import Event
from lorafsm.outcomes import Outcome
from lorafsm_journal.codec import (
    decode_event,
    decode_events,
    decode_outcome,
    decode_outcomes,
    encode_events,
    encode_outcomes,
)
from lorafsm_journal.errors import Undecodable


def write_events(events: Sequence[Event]) -> str | None:
    """The text of at least one event; None if one of them has no text."""
    try:
        return "\n".join(encode_events(events))
    except Undecodable:
        return None


def read_events(text: str) -> list[Event]:
    """Raises Undecodable naming the field."""
    lines = text.split("\n")
    events = decode_events(lines)
    return events if events is not None else [decode_event(line) for line in lines]


def write_outcomes(outcomes: Sequence[Outcome]) -> str:
    """The text of the outcomes of one call."""
    return "\n".join(encode_outcomes(outcomes))


def read_outcomes(text: str, count: int) -> tuple[Outcome, ...]:
    """The outcomes of `count` events; raises Undecodable, or LoraFsmError (WRONG_ANSWER) if there are not so many."""
    lines = text.split("\n")
    if len(lines) != count:
        raise LoraFsmError(
            "WRONG_ANSWER", f"the registry answered {len(lines)} of {count} events; is it of this version?"
        )
    outcomes = decode_outcomes(lines)
    return tuple(outcomes if outcomes is not None else [decode_outcome(line) for line in lines])

"""What one single-shot generate call proves: done, version missing, refused, or unknown (RFC 4.2, rule 10).

A versioned request is sent once.  Whoever calls an HTTP helper that repeats by itself takes the repeating out; what
the one answer means is decided here, from its status and body, whatever client sent it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from attrs import frozen

from lorafsm.errors import LoraFsmError


class Verdict(StrEnum):
    """What is known after the one call."""

    DONE = "DONE"  # the engine ran the request to its end
    VERSION_MISSING = "VERSION_MISSING"  # this engine does not serve exactly that version; nothing ran
    REFUSED = "REFUSED"  # the engine said no; nothing runs
    UNKNOWN = "UNKNOWN"  # it may run, or may still start; settle the rid before anything else is sent


@frozen
class Call:
    """The end of one call: `status` is the HTTP status, 0 where none came; `body` is its JSON; `sent` is false only
    where no connection was made, so that nobody can have seen the request."""

    status: int
    body: Any = None
    sent: bool = True


class GenerateFailed(LoraFsmError):
    """A generate call that did not end with an answer; `code` is the verdict.

    VERSION_MISSING and REFUSED: nothing runs, the agent layer may send a new attempt.  UNKNOWN: it must not, before
    the request is settled (RETRY_UNSAFE).
    """

    def __init__(self, verdict: Verdict, message: str) -> None:
        super().__init__(str(verdict), message)
        self.verdict = verdict

    def __reduce__(self) -> tuple[type[GenerateFailed], tuple[Verdict, str]]:
        return type(self), (self.verdict, self.message)


_NOT_SERVED = frozenset({"VERSION_MISSING", "VERSION_CLOSED", "VERSION_GONE"})
# A rid is used once, so this says that its first sending arrived: the request may be running.
_SENT_TWICE = "DUPLICATE_RID"
# A time-out that the engine reports is no refusal: the work may have been started.
_UNDECIDED = frozenset({408, 425})


def classify(call: Call) -> Verdict:
    """Judge a finished call.  Only an answer, or a 4xx, proves something; everything else is UNKNOWN."""
    if not call.sent:
        return Verdict.REFUSED
    if 200 <= call.status < 300:
        return Verdict.DONE if isinstance(call.body, Mapping) and "meta_info" in call.body else Verdict.UNKNOWN
    code = code_in(call.body)
    if not 400 <= call.status < 500 or call.status in _UNDECIDED or code == _SENT_TWICE:
        return Verdict.UNKNOWN
    return Verdict.VERSION_MISSING if code in _NOT_SERVED else Verdict.REFUSED


def code_in(body: Any) -> str:
    """The code in front of an engine's message ("VERSION_MISSING: ..."), wherever a route puts it; "" for none."""
    return message_in(body).partition(":")[0]


def message_in(body: Any) -> str:
    """The engine's own words in the JSON of a refusal."""
    if isinstance(body, Mapping):
        error = body.get("error", body)
        found = error.get("message") or error.get("detail") if isinstance(error, Mapping) else error
        return str(found or "")
    return str(body or "")

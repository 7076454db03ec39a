"""What an actor knows beyond the core's state: what happened last, how often, and where it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from attrs import asdict, frozen

from lorafsm.events import Event
from lorafsm.outcomes import Outcome
from lorafsm.status import Status

LAST_EVENTS = 32


@frozen
class Happened:
    """One event as the ring of the last ones shows it; no token, no payload."""

    at: int  # ms, by the actor's clock
    event: str
    code: str


@frozen
class Seen:
    """What a hook is told: the event as it was applied (its `now` is the actor's), its outcome, and whether the
    registry is another one afterwards."""

    event: Event
    outcome: Outcome
    changed: bool


Hook: TypeAlias = Callable[[Seen], Any]
"""Called in the actor after the journal and before the reply, so it must be quick; what it raises is counted and
otherwise ignored."""


@frozen(kw_only=True)
class Live:
    """A running registry at a glance.  Counts are since the actor's process began; requests in flight are not
    here: each engine counts its own."""

    name: str
    status: Status
    last: tuple[Happened, ...]  # the oldest first
    counts: tuple[tuple[str, str, int], ...]  # (event, code, how often)
    accepted: int  # the number that `changed` waits for
    hook_errors: int
    journal: str
    level: str
    rows: int
    pid: int
    node: str
    since: int  # ms since 1970, by the actor's clock
    metrics_port: int | None

    def as_dict(self) -> dict[str, Any]:
        """The same as plain JSON types; the status as `Status.as_dict`."""
        plain = asdict(self, filter=lambda field, _: field.name not in ("status", "counts"))
        counts = [{"event": event, "code": code, "count": count} for event, code, count in self.counts]
        return {"registry": plain.pop("name"), **self.status.as_dict(), "live": {**plain, "counts": counts}}

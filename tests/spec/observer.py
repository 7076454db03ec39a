"""What a step did to each record, in the words of the tables: (lifecycle, state, event, aside, kind, value).

A record that the event names is its subject (`aside` is false): it changes (`next`), is refused (`refusal`), or
nothing at all changes (`stored`).  A record that the event does not name appears only when its state changes.
"""

from collections.abc import Iterator
from typing import NamedTuple

from lorafsm import events as ev
from lorafsm.events import Event
from lorafsm.identity import SessionKey
from lorafsm.records import Registry
from lorafsm.registry.view import session_state

NONE = "-"  # the record does not exist
ANSWERED = ("OK", "ALREADY_CLOSED")  # every other code is a refusal


class Seen(NamedTuple):
    """One row of a table, as the core acted it out."""

    lifecycle: str
    state: str
    event: str
    aside: bool  # the record is not the event's subject
    kind: str  # next, refusal or stored
    value: str  # the next state or the code; empty when stored

    @property
    def trigger(self) -> str:
        """The name of the event in the table's machine."""
        return f"{self.event} of others" if self.aside else self.event

    def __str__(self) -> str:
        return f"{self.lifecycle}: {self.state} --{self.trigger}--> {self.kind} {self.value}".rstrip()


def state_of(r: Registry, lifecycle: str, name: object) -> str:
    """The state of a record, or `-`."""
    match lifecycle, name:
        case "version", key:
            record = r.versions.get(key)
        case "attempt", number:
            record = r.attempts.get(number)
        case "target", (number, engine):
            attempt = r.attempts.get(number)
            record = attempt.targets.get(engine) if attempt is not None else None
        case "owner", owner:
            record = r.owners.get(owner)
        case "session", key:
            return session_state(r, key) or NONE
        case "reclaim", reclaim_id:
            record = r.reclaims.get(reclaim_id)
        case "unload", (reclaim_id, engine):
            reclaim = r.reclaims.get(reclaim_id)
            record = reclaim.unloads.get(engine) if reclaim is not None else None
        case "repair", number:
            record = r.repairs.get(number)
        case "engine", engine:
            record = r.engines.get(engine)
        case _:
            raise AssertionError(lifecycle)
    return NONE if record is None else str(record.state)


def subjects(r: Registry, e: Event) -> list[tuple[str, object]]:
    """The records that an event names: the closest one where a name leads through several."""
    match e:
        case ev.Reserve():
            return [("version", e.key), ("attempt", r.tokens.get(e.token, r.next_number))]
        case ev.ArtifactStored():
            return [("version", e.key)]
        case ev.Commit() | ev.Abort():
            return [("version", e.key), ("attempt", r.tokens.get(e.token, 0))]
        case ev.Takeover():
            return [("version", e.key), ("attempt", r.versions[e.key].number if e.key in r.versions else 0)]
        case ev.AuthorizeBucket():
            return [("attempt", e.number)]
        case ev.Prepared() | ev.BucketDone() | ev.Ready() | ev.TargetFailed() | ev.TargetUnknown() | ev.Cleaned():
            return [("target", (e.number, e.engine))]
        case ev.Rollback():
            return [("version", e.key)]
        case ev.OwnerUp() | ev.Heartbeat() | ev.OwnerExpired() | ev.OwnerGone():
            return [("owner", e.owner)]
        case ev.Recovered():
            return [("owner", owner) for owner in r.owners]
        case ev.Open() | ev.BindFirst() | ev.BeginClose() | ev.CloseAndRelease():
            return [("session", e.session)]
        case ev.ClaimReclaim():
            return [("version", e.key), ("reclaim", e.reclaim_id)]
        case ev.ConfirmReclaim() | ev.ReclaimUnknown():
            return [("unload", (e.reclaim_id, e.engine))]
        case ev.OrderRepair():
            engine = r.engines.get(e.engine)
            pending = engine.repairs.get(e.key) if engine is not None else None
            return [("version", e.key), ("engine", e.engine), ("repair", pending or r.next_number)]
        case ev.RepairReady() | ev.RepairFailed():
            return [("repair", e.number)]
        case _:
            return [("engine", e.engine)]


def seen_in(before: Registry, e: Event, after: Registry, code: str, sessions: list[SessionKey]) -> Iterator[Seen]:
    """Every row that this step acted out.  `sessions` are those to look at."""
    named = subjects(before, e)
    refused = code not in ANSWERED
    for lifecycle, name in named:
        state = state_of(before, lifecycle, name)
        if refused:
            yield Seen(lifecycle, state, e.name, False, "refusal", str(code))
        elif after is before:
            yield Seen(lifecycle, state, e.name, False, "stored", "")
        else:
            yield Seen(lifecycle, state, e.name, False, "next", state_of(after, lifecycle, name))
    if after is not before:
        for lifecycle, name in _touched(before, after, sessions):
            was, now = state_of(before, lifecycle, name), state_of(after, lifecycle, name)
            if was != now and (lifecycle, name) not in named:
                yield Seen(lifecycle, was, e.name, True, "next", now)


def _touched(before: Registry, after: Registry, sessions: list[SessionKey]) -> Iterator[tuple[str, object]]:
    if after.versions is not before.versions:
        yield from (("version", key) for key in after.versions)
    if after.attempts is not before.attempts:
        for number, attempt in after.attempts.items():
            yield "attempt", number
            yield from (("target", (number, engine)) for engine in attempt.targets)
    if after.owners is not before.owners:
        yield from (("owner", owner) for owner in after.owners)
        yield from (("session", session) for session in sessions)
    if after.reclaims is not before.reclaims:
        for reclaim_id, reclaim in after.reclaims.items():
            yield "reclaim", reclaim_id
            yield from (("unload", (reclaim_id, engine)) for engine in reclaim.unloads)
    if after.repairs is not before.repairs:
        yield from (("repair", number) for number in after.repairs)
    if after.engines is not before.engines:
        yield from (("engine", engine) for engine in after.engines)

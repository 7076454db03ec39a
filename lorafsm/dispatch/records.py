"""What the guard in an owner's process remembers, hears and answers.  Times: ms of the owner's monotonic clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import ClassVar, TypeAlias, get_args

from attrs import fields, frozen
from immutables import Map

from lorafsm.errors import InvalidField
from lorafsm.forms import FORMS as EVENT_FORMS
from lorafsm.identity import SessionKey, VersionKey, fault_in_count, fault_in_epoch, fault_in_identifier
from lorafsm.identity import fault_in_version_key as _fault_in_key
from lorafsm.outcomes import Binding, Code


class DispatchCode(StrEnum):
    """Codes of refusals that only the guard gives; the others are `lorafsm.outcomes.Code`."""

    LEASE_STALE = "LEASE_STALE"  # renew the lease; until then another process may have ended this one's sessions
    ATTEMPT_IN_FLIGHT = "ATTEMPT_IN_FLIGHT"  # one backend attempt at a time
    UNKNOWN_SESSION = "UNKNOWN_SESSION"  # never opened here, or closed and dropped


class Admission(StrEnum):
    """What is known of a backend attempt (RFC 4.2)."""

    SENT = "SENT"  # on its way
    RUNNING = "RUNNING"  # an engine admitted it
    UNKNOWN = "UNKNOWN"  # an engine may have admitted it; nothing may be sent until that is settled


class Verdict(StrEnum):
    """What a settle answered about a rid."""

    TERMINAL = "TERMINAL"
    RUNNING = "RUNNING"
    ABSENT = "ABSENT"


@frozen
class BackendAttempt:
    """One request to an engine, by its request id, which is never used twice."""

    rid: str
    admission: Admission = Admission.SENT


@frozen
class GuardedSession:
    """What the guard knows of one live session."""

    binding: Binding | None = None
    finalizing: bool = False
    attempt: BackendAttempt | None = None
    attempts: int = 0  # how many were started; the next one must name the next number


@frozen
class Guard:
    """One owner's guard.  Made by `new_guard`, changed only by `dispatch_step`."""

    epoch: str
    owner: str
    margin: int  # taken off every lease, for clocks that drift
    lease_until: int = 0  # by this process's clock, margin taken off
    lost: bool = False  # the registry ended this owner; for ever
    revoked: frozenset[VersionKey] = frozenset()
    sessions: Map[int, GuardedSession] = Map()
    next_sequence: int = 0  # sequences are opened in order; one below this is live or closed for ever


def new_guard(epoch: str, owner: str, *, margin: int = 1_000) -> Guard:
    """A guard without a lease; raises InvalidField naming the argument."""
    faults = (
        ("epoch", fault_in_epoch(epoch)),
        ("owner", fault_in_identifier(owner)),
        ("margin", fault_in_count(margin)),
    )
    for name, fault in faults:
        if fault:
            raise InvalidField(name, fault)
    return Guard(epoch, owner, margin)


@frozen(kw_only=True)
class LeaseRenewed:
    """The registry answered a heartbeat that was sent at `sent`: a lease of `lease` ms from then, and revocations."""

    sent: int
    lease: int
    revoked: frozenset[VersionKey] = frozenset()


@frozen(kw_only=True)
class LeaseLost:
    """The registry said that this owner has expired or is gone."""


@frozen(kw_only=True)
class Opened:
    """The owner opened its next session."""

    session: SessionKey


@frozen(kw_only=True)
class Bound:
    """The registry answered the session's first bind."""

    session: SessionKey
    binding: Binding


@frozen(kw_only=True)
class StartAttempt:
    """Send backend attempt number `attempt` (1, 2, ...) of this session under a fresh `rid`."""

    session: SessionKey
    rid: str
    attempt: int
    now: int


@frozen(kw_only=True)
class Admitted:
    """An engine admitted the request."""

    session: SessionKey
    rid: str


@frozen(kw_only=True)
class Finished:
    """The request reached its end: answered, refused, failed or aborted, and the engine said so."""

    session: SessionKey
    rid: str


@frozen(kw_only=True)
class AdmissionUnknown:
    """The reply was lost: an engine may be running the request, or may start it yet."""

    session: SessionKey
    rid: str


@frozen(kw_only=True)
class Settled:
    """The engine was asked about the rid; `absent` only from an engine that sealed it in the same step."""

    session: SessionKey
    rid: str
    verdict: Verdict


@frozen(kw_only=True)
class BeginClose:
    """No new request of this session (RFC 4.3)."""

    session: SessionKey


@frozen(kw_only=True)
class Drop:
    """The registry closed the session: forget it (RFC 4.3)."""

    session: SessionKey


Event: TypeAlias = (
    LeaseRenewed
    | LeaseLost
    | Opened
    | Bound
    | StartAttempt
    | Admitted
    | Finished
    | AdmissionUnknown
    | Settled
    | BeginClose
    | Drop
)
EVENTS: tuple[type[Event], ...] = get_args(Event)


@frozen
class SealRid:
    """Every engine that the request may have been sent to must refuse this rid from now on."""

    rid: str
    key: VersionKey


@frozen
class AbortRequest:
    """The session is closing: stop what was sent; its end comes back as Finished or Settled."""

    rid: str


Action: TypeAlias = SealRid | AbortRequest


@frozen
class Refused:
    """No.  The guard is unchanged; `reason` is one sentence that says what to do."""

    ok: ClassVar[bool] = False
    code: Code | DispatchCode
    reason: str
    field: str | None = None

    def __str__(self) -> str:
        return f"{self.code}: {self.reason}"


@frozen
class Noted:
    """Yes, and there is nothing more to say."""

    ok: ClassVar[bool] = True
    code: ClassVar[Code] = Code.OK


Outcome: TypeAlias = Binding | Noted | Refused


@frozen
class DispatchStep:
    """The guard after the event (the same object when nothing changed), the outcome, and what is to be done."""

    guard: Guard
    outcome: Outcome
    actions: tuple[Action, ...] = ()


def _fault_in_revoked(value: object) -> str | None:
    if type(value) is not frozenset or any(_fault_in_key(item) for item in value):
        return "must be a frozenset of VersionKey(epoch, version_id)"
    return None


def _fault_in_binding(value: object) -> str | None:
    return None if type(value) is Binding else "must be a Binding"


FORMS: Mapping[str, Callable[[object], str | None]] = {
    **EVENT_FORMS,
    "sent": fault_in_count,
    "lease": fault_in_count,
    "attempt": fault_in_count,
    "rid": fault_in_identifier,
    "verdict": lambda value: None if type(value) is Verdict else "must be a Verdict",
    "revoked": _fault_in_revoked,
    "binding": _fault_in_binding,
}
_CHECKS = {event: tuple((f.name, FORMS[f.name]) for f in fields(event)) for event in EVENTS}


def fault_in(event: Event) -> tuple[str, str] | None:
    """The first malformed field of an event and what it must be, or None."""
    for name, fault_of in _CHECKS[type(event)]:
        if fault := fault_of(getattr(event, name)):
            return name, fault
    return None

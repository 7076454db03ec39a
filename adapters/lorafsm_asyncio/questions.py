"""Questions that a process asks of a registry which lives elsewhere: data in, data out, nothing changed.

The registry answers where it is (`answer`), so that not the state but only the answer travels.
"""

from __future__ import annotations

from typing import Any, Generic, TypeAlias, TypeVar

from attrs import frozen

from lorafsm import publisher, reclaimer, repairer
from lorafsm.events import Abort, ClaimReclaim, Commit, Event
from lorafsm.identity import SessionKey, VersionKey
from lorafsm.lifecycle import AttemptState, EngineState, OwnerState, SessionState, VersionState
from lorafsm.orders import Order
from lorafsm.outcomes import Aborted, Committed
from lorafsm.records import Config, Registry, Version
from lorafsm.registry import view
from lorafsm.status import Status, status

T = TypeVar("T")

Decision: TypeAlias = Commit | Abort | ClaimReclaim


@frozen
class Question(Generic[T]):
    """Something to ask; the answer's type is `T`.  `now` is in ms, by the asker's clock;
    a registry with a clock of its own (`lorafsm_ray`) puts its time there."""


@frozen
class PublisherOrders(Question[tuple[Order | Commit | Abort, ...]]):
    """What the holder of this token does next (`lorafsm.publisher`)."""

    token: str
    now: int


@frozen
class Driven:
    """Where an attempt stands for the one who drives it."""

    orders: tuple[Order | Commit | Abort, ...]
    outcome: Committed | Aborted | None  # as `AttemptOutcome`
    clean: bool  # nothing is left of it on any engine, or another attempt has taken its place


@frozen
class DrivenAttempt(Question[Driven]):
    """What the holder of this token does next, and whether the attempt has ended: one call a round."""

    key: VersionKey
    number: int
    token: str
    now: int


@frozen
class ReclaimerOrders(Question[tuple[Order | ClaimReclaim, ...]]):
    """What a reclaimer does next (`lorafsm.reclaimer`)."""

    now: int


@frozen
class RepairerOrders(Question[tuple[Order | Event, ...]]):
    """What a repairer does next (`lorafsm.repairer`)."""

    now: int


@frozen
class AttemptOutcome(Question[Committed | Aborted | None]):
    """How an attempt ended, the same for whoever asks (RFC 6); None: it is open or there is none."""

    number: int


@frozen
class VersionOf(Question[Version | None]):
    """One version's record; None: it was never reserved."""

    key: VersionKey


@frozen
class DefaultVersion(Question[tuple[VersionKey | None, int]]):
    """The default and its revision."""


@frozen
class Routable(Question[tuple[str, ...]]):
    """Engines that may serve this version (rule 15)."""

    key: VersionKey


@frozen
class SessionStateOf(Question[SessionState | None]):
    """Where a session stands; None: never heard of."""

    session: SessionKey


@frozen
class StatusAt(Question[Status]):
    """Where everything stands, ages counted to `now`."""

    now: int


@frozen
class ConfigOf(Question[Config]):
    """What is fixed for the life of the registry, the owners' lease among it."""


@frozen
class Unresolved:
    """The attempt that is OPEN, or ABORTED and not clean.  Its token is its driver's, and does not travel."""

    key: VersionKey
    number: int
    state: AttemptState
    driver_lease: int  # ms until another publisher may take over; 0: now


@frozen
class UnresolvedAttempt(Question[Unresolved | None]):
    """What a standby publisher has to look after (rules 4, 5); None: nothing."""

    now: int


@frozen
class ExpiredOwners(Question[tuple[str, ...]]):
    """Owners whose lease has run out and whom nobody has expired yet (rule 9)."""

    now: int


@frozen
class Member:
    """One engine as the registry knows it."""

    engine: str
    incarnation: int
    state: EngineState
    seq: int


@frozen
class Fleet(Question[tuple[Member, ...]]):
    """The members, dead ones included, removed ones not (rule 14)."""


def answer(r: Registry, question: Question[T]) -> T:
    """The answer of this registry.  Raises TypeError for what is no question."""
    found: Any
    asked: Any = question  # what a question's type says of its answer holds case by case, beyond a checker
    match asked:
        case PublisherOrders(token=token, now=now):
            found = publisher.next_orders(r, token, now)
        case DrivenAttempt():
            orders = publisher.next_orders(r, asked.token, asked.now)
            found = Driven(orders, view.attempt_outcome(r, asked.number), _is_clean(r, asked.key, asked.number))
        case ReclaimerOrders(now=now):
            found = reclaimer.next_orders(r, now)
        case RepairerOrders(now=now):
            found = repairer.next_orders(r, now)
        case AttemptOutcome(number=number):
            found = view.attempt_outcome(r, number)
        case VersionOf(key=key):
            found = r.versions.get(key)
        case DefaultVersion():
            found = (r.default, r.default_revision)
        case Routable(key=key):
            found = view.routable(r, key)
        case SessionStateOf(session=session):
            found = view.session_state(r, session)
        case StatusAt(now=now):
            found = status(r, now)
        case ConfigOf():
            found = r.config
        case UnresolvedAttempt(now=now):
            found = _unresolved(r, max(r.now, now))
        case ExpiredOwners(now=now):
            at = max(r.now, now)
            live = (owner for _, owner in sorted(r.owners.items()) if owner.state is OwnerState.LIVE)
            found = tuple(owner.owner for owner in live if at > owner.lease_until)
        case Fleet():
            found = tuple(
                Member(engine=m.engine, incarnation=m.incarnation, state=m.state, seq=max(m.seq, m.inventory.seq))
                for m in view.members(r)
            )
        case _:
            raise TypeError(f"{type(question).__name__} is not a question to a registry")
    result: T = found
    return result


def _is_clean(r: Registry, key: VersionKey, number: int) -> bool:
    version = r.versions.get(key)
    return version is None or version.number != number or version.state is VersionState.FAILED_CLEAN


def _unresolved(r: Registry, now: int) -> Unresolved | None:
    attempt = r.attempts.get(r.unresolved)
    if attempt is None:
        return None
    left = max(0, attempt.driver_until - now) if attempt.state is AttemptState.OPEN else 0
    return Unresolved(attempt.key, attempt.number, attempt.state, left)

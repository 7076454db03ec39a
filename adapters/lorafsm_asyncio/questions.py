"""Questions that a process asks of a registry which lives elsewhere: data in, data out, nothing changed.

The registry answers where it is (`answer`), so that not the state but only the answer travels.
"""

from __future__ import annotations

from typing import Any, Generic, TypeAlias, TypeVar

from attrs import frozen

from lorafsm import publisher, reclaimer, repairer
from lorafsm.events import Abort, ClaimReclaim, Commit, Event
from lorafsm.identity import SessionKey, VersionKey
from lorafsm.lifecycle import SessionState
from lorafsm.orders import Order
from lorafsm.outcomes import Aborted, Committed
from lorafsm.records import Registry, Version
from lorafsm.registry import view
from lorafsm.status import Status, status

T = TypeVar("T")

Decision: TypeAlias = Commit | Abort | ClaimReclaim


@frozen
class Question(Generic[T]):
    """Something to ask; the answer's type is `T`.  `now` is in ms, by the asker's clock."""


@frozen
class PublisherOrders(Question[tuple[Order | Commit | Abort, ...]]):
    """What the holder of this token does next (`lorafsm.publisher`)."""

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


def answer(r: Registry, question: Question[T]) -> T:
    """The answer of this registry.  Raises TypeError for what is no question."""
    found: Any
    asked: Any = question  # what a question's type says of its answer holds case by case, beyond a checker
    match asked:
        case PublisherOrders(token=token, now=now):
            found = publisher.next_orders(r, token, now)
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
        case _:
            raise TypeError(f"{type(question).__name__} is not a question to a registry")
    result: T = found
    return result

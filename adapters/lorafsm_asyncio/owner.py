"""One owner of sessions in this process: its guard, its lease, its sequence numbers (protocol rules 9, 10).

The id is made at the start of the owner and never again: a restarted process is a new owner.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any

from lorafsm.dispatch import Guard, dispatch_step, may_dispatch, new_guard
from lorafsm.dispatch import records as guard
from lorafsm.dispatch.records import GuardedSession
from lorafsm.errors import InvalidField
from lorafsm.events import Heartbeat, OwnerUp
from lorafsm.identity import SessionKey, fault_in_identifier
from lorafsm.outcomes import Binding, Code, Lease, Refusal
from lorafsm_asyncio.client import RegistryClient
from lorafsm_asyncio.refusals import as_error, require

_LONGEST_PREFIX = 96
_ENDED = (Code.SESSION_EXPIRED, Code.UNKNOWN_OWNER)


def monotonic_ms() -> int:
    """This process's monotonic clock in ms: it drifts, but never jumps."""
    return time.monotonic_ns() // 1_000_000


def new_owner_id(prefix: str) -> str:
    """An id that was never used: `prefix` says who it is, the rest is random."""
    if fault_in_identifier(prefix) or len(prefix) > _LONGEST_PREFIX:
        raise InvalidField("prefix", f"must be an identifier of at most {_LONGEST_PREFIX} characters")
    return f"{prefix}.{secrets.token_hex(8)}"


class Owner:
    """The guard of one owner id and its dealings with the registry; changed by one event loop only."""

    def __init__(self, client: RegistryClient, epoch: str, name: str, clock: Callable[[], int], margin: int) -> None:
        self.name = name
        self.lease = 0  # ms, as the registry's config has it
        self._client = client
        self._clock = clock
        self._guard: Guard = new_guard(epoch, name, margin=margin)

    @property
    def lost(self) -> bool:
        """Whether the registry ended this owner, for ever."""
        return self._guard.lost

    async def register(self, lease: int) -> None:
        """Make the owner known and get its first lease, of `lease` ms.

        The lease counts from a heartbeat of its own: a repeated OwnerUp answers the lease that was granted first.
        """
        self.lease = lease
        require(await self._client.apply(OwnerUp(owner=self.name, now=self._clock())), Lease)
        await self.beat()

    async def beat(self) -> bool:
        """One heartbeat: renew the lease, take in revocations; False when the registry ended this owner.

        The lease counts from before the heartbeat was sent, whenever its reply comes.
        """
        sent = self._clock()
        outcome = await self._client.apply(Heartbeat(owner=self.name, now=sent))
        if isinstance(outcome, Refusal) and outcome.code in _ENDED:
            self.tell(guard.LeaseLost())
            return False
        revoked = frozenset(require(outcome, Lease).revoked)
        self.tell(guard.LeaseRenewed(sent=sent, lease=self.lease, revoked=revoked))
        return True

    def open(self) -> SessionKey:
        """The next session of this owner."""
        session = SessionKey(self._guard.epoch, self.name, self._guard.next_sequence)
        self.tell(guard.Opened(session=session))
        return session

    def tell(self, event: Any) -> tuple[guard.Action, ...]:
        """Give the guard an event; its actions.  A refusal is raised as `Refused`."""
        done = dispatch_step(self._guard, event)
        if isinstance(done.outcome, guard.Refused):
            raise as_error(done.outcome)
        self._guard = done.guard
        return done.actions

    def may_dispatch(self, session: SessionKey) -> Binding:
        """The binding under which a request may be sent now, or `Refused` (rule 10)."""
        return require(may_dispatch(self._guard, session, self._clock()), Binding)

    def known(self, session: SessionKey) -> GuardedSession | None:
        """What the guard knows of a session; None once it was closed and dropped, or never opened here."""
        own = (session.epoch, session.owner) == (self._guard.epoch, self._guard.owner)
        return self._guard.sessions.get(session.sequence) if own else None

    def was_opened(self, session: SessionKey) -> bool:
        """Whether this sequence was ever given out."""
        return session.sequence < self._guard.next_sequence

    @property
    def live(self) -> int:
        """How many sessions are not dropped yet."""
        return len(self._guard.sessions)

"""The session side of one asyncio process: bind once, dispatch one attempt at a time, close once (RFC 4).

A `SessionBinder` belongs to one event loop.  What may be sent is judged here, by the owner's guard
(`lorafsm.dispatch`); what is bound and released is decided by the registry.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Self

from lorafsm.dispatch import records as guard
from lorafsm.dispatch.records import Admission, DispatchCode, GuardedSession, Verdict
from lorafsm.errors import InvalidField, LoraFsmError
from lorafsm.events import BeginClose, BindFirst, CloseAndRelease, Open, OwnerGone
from lorafsm.identity import SessionKey, fault_in_text
from lorafsm.outcomes import Binding, Closed, Code, Done, SessionStatus
from lorafsm_asyncio.attempt import Attempt
from lorafsm_asyncio.client import RegistryClient
from lorafsm_asyncio.notices import Notice, Notify, log_notice
from lorafsm_asyncio.owner import Owner, monotonic_ms, new_owner_id
from lorafsm_asyncio.questions import ConfigOf
from lorafsm_asyncio.refusals import Refused, require
from lorafsm_asyncio.settling import AskAboutRequest

_BEATS_PER_LEASE = 3
_RETRY_S = 1.0  # after a heartbeat without an answer


async def _nobody_knows(rid: str, key: object) -> Verdict | None:
    return None


class SessionBinder:
    """Made by `SessionBinder.start`; `run` keeps its lease, `stop` gives everything back.

    Waiting for the registry is bounded by the client's deadline: `RegistryUnavailable`, after which any call may be
    made again; nothing is bound twice and nothing released twice (rules 7, 8).
    """

    def __init__(
        self,
        client: RegistryClient,
        epoch: str,
        prefix: str,
        *,
        clock: Callable[[], int] = monotonic_ms,
        margin_ms: int = 1_000,
        ask: AskAboutRequest = _nobody_knows,
        notify: Notify = log_notice,
    ) -> None:
        self.client = client
        self._epoch = epoch
        self._prefix = prefix
        self._clock = clock
        self._margin = margin_ms
        self._ask = ask
        self._notify = notify
        self._owner = self._new_owner()
        self._owners = {self._owner.name: self._owner}
        self._labels: dict[SessionKey, str] = {}
        self._binding: dict[SessionKey, asyncio.Task[Binding]] = {}
        self._closing: dict[SessionKey, asyncio.Task[Closed]] = {}
        self._unreleased: set[SessionKey] = set()  # a close was asked for and is not confirmed
        self._closed: set[SessionKey] = set()  # confirmed; a backend attempt is not over yet
        self._turns: dict[SessionKey, asyncio.Lock] = {}
        self._held: dict[SessionKey, Attempt] = {}
        self._rids: dict[SessionKey, set[str]] = {}

    @classmethod
    async def start(
        cls,
        client: RegistryClient,
        epoch: str,
        prefix: str,
        *,
        clock: Callable[[], int] = monotonic_ms,
        margin_ms: int = 1_000,
        ask: AskAboutRequest = _nobody_knows,
        notify: Notify = log_notice,
    ) -> Self:
        """Register a new owner, named `prefix` and random digits, and take its first lease.

        `clock` is monotonic, in ms; `margin_ms` is taken off every lease for clocks that drift; `ask` says where a
        request stands whose reply was lost (`ask_engines`).  Raises RegistryUnavailable; then start again.
        """
        binder = cls(client, epoch, prefix, clock=clock, margin_ms=margin_ms, ask=ask, notify=notify)
        await binder._register(binder._owner)
        return binder

    @property
    def owner(self) -> str:
        """The id under which new sessions are opened."""
        return self._owner.name

    @property
    def lost(self) -> bool:
        """Whether the registry ended the present owner; `renew` starts a new one."""
        return self._owner.lost

    @property
    def unreleased(self) -> frozenset[SessionKey]:
        """Sessions whose close was asked for and is not confirmed; `renew` asks again."""
        return frozenset(self._unreleased)

    @property
    def live(self) -> int:
        """Sessions that this process still remembers."""
        return sum(owner.live for owner in self._owners.values())

    # -- open and bind (RFC 4.1) ------------------------------------------------------------------------

    def open(self, label: str = "") -> SessionKey:
        """A new session; nothing is asked of the registry and nothing is bound before its first generation.

        `label` is for people (`lorafsm status`).  A label that is opened again is a new session.
        """
        if fault := fault_in_text(label):
            raise InvalidField("label", fault)
        if self._owner.lost:
            raise Refused(Code.SESSION_EXPIRED, f"owner {self.owner} was ended; wait for a new lease")
        session = self._owner.open()
        if label:
            self._labels[session] = label
        return session

    async def ensure(self, session: SessionKey) -> Binding:
        """The session's version, bound at the first call; call it after admission, right before the first generation.

        All callers wait for one task.  Cancelling one of them cancels nothing else; a task that failed is forgotten,
        and the next call asks again.  Raises Refused (NO_PUBLISHED_VERSION, SESSION_CLOSED, SESSION_EXPIRED,
        VERSION_GONE...) and RegistryUnavailable.
        """
        owner, known = self._require(session)
        if known.binding is not None:
            return known.binding
        if known.finalizing:
            raise Refused(Code.SESSION_CLOSED, f"session {session} is closing")
        if owner.lost:
            raise Refused(Code.SESSION_EXPIRED, f"owner {owner.name} was ended; open a new session")
        task = self._binding.get(session)
        if task is None:
            task = asyncio.create_task(self._bind(owner, session), name=f"bind {session}")
            self._binding[session] = task
            task.add_done_callback(lambda done: self._bound(session, done))
        return await asyncio.shield(task)

    async def _bind(self, owner: Owner, session: SessionKey) -> Binding:
        now, label = self._clock(), self._labels.get(session)
        bind = BindFirst(session=session, now=now)
        if label is None:
            outcome = await self.client.apply(bind)
        else:
            opened = Open(session=session, label=label, now=now)
            outcome = (await self.client.apply_all((opened, bind)))[-1]
        if outcome.code is Code.SESSION_EXPIRED:
            owner.tell(guard.LeaseLost())
        binding = require(outcome, Binding)
        owner.tell(guard.Bound(session=session, binding=binding))  # refused when the session began to close meanwhile
        return binding

    def _bound(self, session: SessionKey, task: asyncio.Task[Binding]) -> None:
        del self._binding[session]
        if not task.cancelled():
            task.exception()  # a failure is told to those who wait; nobody may be left

    def binding(self, session: SessionKey) -> Binding | None:
        """The binding that the session has by now; None: not bound, closed, or not of this process."""
        owner = self._owners.get(session.owner)
        known = None if owner is None else owner.known(session)
        return None if known is None else known.binding

    # -- dispatch (RFC 4.2) -----------------------------------------------------------------------------

    def may_dispatch(self, session: SessionKey) -> Binding:
        """The binding under which a request may be sent now; else Refused with the reason as its code (rule 10)."""
        return self._of(session).may_dispatch(session)

    @asynccontextmanager
    async def attempt(self, session: SessionKey, rid: str) -> AsyncIterator[Attempt]:
        """One backend attempt: binds if need be, waits for the session's turn, and asks the guard.

        `rid` names this one sending and is never used twice in a session.  Say `heard(...)` inside: an attempt that is
        left without a word, by an exception or a cancellation, is UNKNOWN, and the next one is RETRY_UNSAFE until
        `settle`.
        """
        self._require(session)
        async with self._turns.setdefault(session, asyncio.Lock()):
            binding = await self.ensure(session)
            owner, known = self._require(session)
            used = self._rids.setdefault(session, set())
            if rid in used:
                raise Refused(Code.OPERATION_CONFLICT, f"rid {rid} was used before; take a new one", "rid")
            now, number = self._clock(), known.attempts + 1
            owner.tell(guard.StartAttempt(session=session, rid=rid, attempt=number, now=now))
            used.add(rid)
            attempt = Attempt(binding, rid, lambda: owner.tell(guard.Admitted(session=session, rid=rid)))
            self._held[session] = attempt
            try:
                yield attempt
            finally:
                del self._held[session]
                over = guard.Finished if attempt.over else guard.AdmissionUnknown
                owner.tell(over(session=session, rid=rid))
                self._drop_if_closed(owner, session)

    def in_doubt(self, session: SessionKey) -> bool:
        """Whether a request of this session was left without a word, so that `settle` is called for."""
        known = self._of(session).known(session)
        return known is not None and known.attempt is not None and session not in self._held

    async def settle(self, session: SessionKey) -> Verdict | None:
        """Ask where the attempt in doubt stands; None: it cannot be said yet and stays RETRY_UNSAFE.

        TERMINAL also when nothing is in doubt.  After ABSENT the engines refuse the late original, and a new attempt
        may be sent; after RUNNING abort the request and settle again.
        """
        owner, known = self._of(session), self._of(session).known(session)
        if known is None or known.attempt is None or known.binding is None:
            return Verdict.TERMINAL
        rid = known.attempt.rid
        if session in self._held:
            raise Refused(DispatchCode.ATTEMPT_IN_FLIGHT, f"somebody waits for request {rid}; let it end")
        if known.attempt.admission is not Admission.UNKNOWN:  # found running before; nobody listens to it any more
            owner.tell(guard.AdmissionUnknown(session=session, rid=rid))
        verdict = await self._ask(rid, known.binding.key)
        after = owner.known(session)
        if verdict is None or after is None or after.attempt is None or after.attempt.rid != rid:
            return verdict
        if after.attempt.admission is Admission.UNKNOWN:
            owner.tell(guard.Settled(session=session, rid=rid, verdict=verdict))
        self._drop_if_closed(owner, session)
        return verdict

    # -- close (RFC 4.3) --------------------------------------------------------------------------------

    async def begin_close(self, session: SessionKey) -> tuple[str, ...]:
        """No new dispatch from here on, and no late bind; the rids that are still out and should be aborted.

        Takes effect here at once, whether or not the registry answers (RegistryUnavailable).
        """
        owner, known = self._of(session), self._of(session).known(session)
        if known is None:
            return ()
        owner.tell(guard.BeginClose(session=session))
        outcome = await self.client.apply(BeginClose(session=session, now=self._clock()))
        if not isinstance(outcome, Closed):
            require(outcome, SessionStatus)
        return () if known.attempt is None else (known.attempt.rid,)

    async def close_and_release(self, session: SessionKey) -> Closed:
        """The end of the session: its ref is dropped, once, and the session is forgotten once that is confirmed.

        First waits for the shared binding task.  Callers share one task here too; after RegistryUnavailable the
        session is kept, and a later call or `renew` asks again.  A request that is still out is the engine's to
        protect; this process remembers the session until that is over as well.
        """
        owner = self._of(session)
        if owner.known(session) is None or session in self._closed:
            return Closed(session, Code.ALREADY_CLOSED)
        task = self._closing.get(session)
        if task is None:
            task = asyncio.create_task(self._close(owner, session), name=f"close {session}")
            self._closing[session] = task
            task.add_done_callback(lambda done: self._closing_ended(session, done))
        return await asyncio.shield(task)

    async def _close(self, owner: Owner, session: SessionKey) -> Closed:
        owner.tell(guard.BeginClose(session=session))
        self._unreleased.add(session)
        if binding := self._binding.get(session):
            await asyncio.wait((binding,))  # however it ends, nothing of it can come after the release
        outcome = await self.client.apply(CloseAndRelease(session=session, now=self._clock()))
        closed = require(outcome, Closed)
        self._unreleased.discard(session)
        self._closed.add(session)
        self._drop_if_closed(owner, session)
        return closed

    def _closing_ended(self, session: SessionKey, task: asyncio.Task[Closed]) -> None:
        del self._closing[session]
        if not task.cancelled():
            task.exception()

    def _drop_if_closed(self, owner: Owner, session: SessionKey) -> None:
        known = owner.known(session)
        if session not in self._closed or known is None or known.attempt is not None:
            return
        owner.tell(guard.Drop(session=session))
        self._closed.discard(session)
        for kept in (self._labels, self._turns, self._rids):
            kept.pop(session, None)

    # -- the lease (rules 9, 10) ------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep the lease until cancelled: `renew` three times a lease, sooner after a failure."""
        while True:
            try:
                await self.renew()
                pause = self._owner.lease / _BEATS_PER_LEASE / 1000
            except LoraFsmError as error:
                self._notify(Notice(error.code, f"owner {self.owner}: {error.message}"))
                pause = min(_RETRY_S, self._owner.lease / _BEATS_PER_LEASE / 1000)
            await asyncio.sleep(pause)

    async def renew(self) -> None:
        """One heartbeat, and whatever was left over: unconfirmed closes, closed sessions with a request in doubt.

        An owner that the registry ended is replaced by a new one; its sessions stay refused (rule 9).
        """
        if self._owner.lost or not await self._owner.beat():
            ended, fresh = self._owner, self._new_owner()
            self._notify(Notice("OWNER_LOST", f"owner {ended.name} was ended with {ended.live} session(s)"))
            await self._register(fresh)
            self._owner = self._owners[fresh.name] = fresh  # the old one stays, to answer late calls
        for session in tuple(self._unreleased):
            await self.close_and_release(session)
        for session in tuple(self._closed - self._held.keys()):
            await self.settle(session)

    async def stop(self) -> None:
        """Leave: the registry ends the owner and its sessions, and every ref returns at once (rule 9).

        Raises RegistryUnavailable; the lease then ends it.
        """
        self._owner.tell(guard.LeaseLost())
        require(await self.client.apply(OwnerGone(owner=self.owner, now=self._clock())), Done)

    def _new_owner(self) -> Owner:
        return Owner(self.client, self._epoch, new_owner_id(self._prefix), self._clock, self._margin)

    async def _register(self, owner: Owner) -> None:
        config = await self.client.ask(ConfigOf())
        if config.owner_lease <= self._margin:
            raise InvalidField("margin_ms", f"must be smaller than the owner's lease of {config.owner_lease} ms")
        await owner.register(config.owner_lease)

    # -- who is asked -----------------------------------------------------------------------------------

    def _of(self, session: SessionKey) -> Owner:
        owner = self._owners.get(session.owner)
        if owner is None:
            raise Refused(DispatchCode.UNKNOWN_SESSION, f"session {session} was not opened here", "session")
        return owner

    def _require(self, session: SessionKey) -> tuple[Owner, GuardedSession]:
        owner = self._of(session)
        known = owner.known(session)
        if known is None:
            if owner.was_opened(session):
                raise Refused(Code.SESSION_CLOSED, f"session {session} is closed")
            raise Refused(DispatchCode.UNKNOWN_SESSION, f"session {session} was not opened here", "session")
        return owner, known

"""The session side of one `AgenticSessionShard`: Relax's session ids in, bindings out (RFC 4)."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from lorafsm.identity import SessionKey
from lorafsm.outcomes import Binding, Closed, Code
from lorafsm_asyncio.attempt import Attempt
from lorafsm_asyncio.binder import SessionBinder
from lorafsm_asyncio.client import RegistryClient, RegistryUnavailable
from lorafsm_asyncio.notices import Notice, Notify, log_notice
from lorafsm_asyncio.refusals import Refused
from lorafsm_relax.generate import sample_fields

Connect: TypeAlias = Callable[[], RegistryClient | Awaitable[RegistryClient]]
"""Connects to the registry, for example `functools.partial(lorafsm_ray.connect, name)`."""


class VersionedShard:
    """One shard's sessions by Relax's session id; made in the shard's constructor, starts itself at the first use.

    A session id is one lifecycle: it is opened when its record is made, and closed for ever before the record is
    dropped.  `prefix` names the shard; the owner's id is new in each process.
    """

    def __init__(
        self, connect: Connect, epoch: str, prefix: str, *, notify: Notify = log_notice, **binder: Any
    ) -> None:
        self._connect = connect
        self._epoch = epoch
        self._prefix = prefix
        self._notify = notify
        self._more = binder
        self._starting: asyncio.Task[SessionBinder] | None = None
        self._lease: asyncio.Task[None] | None = None
        self._sessions: dict[str, SessionKey | None] = {}

    async def binder(self) -> SessionBinder:
        """The binder of this process, started once; a start that failed is tried again by the next caller."""
        if self._starting is None or _failed(self._starting):
            self._starting = asyncio.create_task(self._start(), name=f"start {self._prefix}")
        return await asyncio.shield(self._starting)

    async def _start(self) -> SessionBinder:
        found = self._connect()
        client = await found if inspect.isawaitable(found) else found
        binder = await SessionBinder.start(client, self._epoch, self._prefix, notify=self._notify, **self._more)
        self._lease = asyncio.create_task(binder.run(), name=f"lease of {binder.owner}")
        return binder

    def open(self, session_id: str) -> None:
        """The session's record was made.  Nothing is bound and nobody is asked (RFC 4.1)."""
        if session_id in self._sessions:
            raise Refused(Code.OPERATION_CONFLICT, f"session {session_id} is open; a new session has a new id")
        self._sessions[session_id] = None

    async def ensure(self, session_id: str) -> Binding:
        """`_run_ir`, after the permit: the session's version, bound at its first generation (RFC 4.1)."""
        binder, session = await self._key(session_id)
        return await binder.ensure(session)

    def binding(self, session_id: str) -> Binding | None:
        """The binding that a session has by now, without asking anybody."""
        session = self._sessions.get(session_id)
        if session is None or self._starting is None or not self._starting.done() or _failed(self._starting):
            return None
        return self._starting.result().binding(session)

    def sample_fields(self, session_id: str) -> dict[str, str]:
        """What a sample's metadata says of its version: key, digest, name; empty for a session that never generated."""
        found = self.binding(session_id)
        return {} if found is None else sample_fields(found)

    @asynccontextmanager
    async def attempt(self, session_id: str, rid: str) -> AsyncIterator[Attempt]:
        """Around one `generate`: one backend attempt at a time, RETRY_UNSAFE after one in doubt (RFC 4.2).

        A session's earlier attempt that is in doubt is settled first, if the engines can say where it stands.
        """
        binder, session = await self._key(session_id)
        if binder.in_doubt(session):
            await binder.settle(session)
        async with binder.attempt(session, rid) as attempt:
            yield attempt

    async def begin_close(self, session_id: str) -> None:
        """`_finish_session_once`, first: no new dispatch, no late bind (RFC 4.3).

        A registry that does not answer delays this by the client's deadline and stops nothing: it holds here at once.
        """
        session = self._sessions.get(session_id)
        if session is not None:
            await self._unless_out(session_id, (await self.binder()).begin_close(session))

    async def close_and_release(self, session_id: str) -> Closed | None:
        """`_finish_session_once`, before the record is dropped: release the session's ref, once (RFC 4.3).

        None when the registry does not answer; the ref is then released as soon as it does, and the record may go.
        """
        session = self._sessions.get(session_id)
        if session is None:
            self._sessions.pop(session_id, None)  # it never generated: the registry has not heard of it
            return None
        closed: Closed | None = await self._unless_out(session_id, (await self.binder()).close_and_release(session))
        self._sessions.pop(session_id, None)
        return closed

    async def stop(self) -> None:
        """The shard shuts down: every ref returns at once; without an answer, when the lease ends."""
        starting, self._starting = self._starting, None
        if starting is None:
            return
        [started] = await asyncio.gather(starting, return_exceptions=True)
        if self._lease is not None:
            self._lease.cancel()
            await asyncio.gather(self._lease, return_exceptions=True)
        if isinstance(started, SessionBinder):
            await self._unless_out(self._prefix, started.stop())

    async def _key(self, session_id: str) -> tuple[SessionBinder, SessionKey]:
        self._require(session_id)
        binder = await self.binder()
        self._require(session_id)  # it may have closed while the binder started
        session = self._sessions[session_id]
        if session is None:
            session = self._sessions[session_id] = binder.open(session_id)
        return binder, session

    def _require(self, session_id: str) -> None:
        if session_id not in self._sessions:
            raise Refused(Code.SESSION_CLOSED, f"session {session_id} is closed, or was never opened")

    async def _unless_out(self, about: str, call: Awaitable[Any]) -> Any:
        try:
            return await call
        except RegistryUnavailable as error:
            self._notify(Notice(error.code, f"{about}: {error.message}"))
            return None


@asynccontextmanager
async def versioned_attempt(shard: VersionedShard | None, session_id: str, rid: str) -> AsyncIterator[Attempt | None]:
    """`shard.attempt`, or nothing at all where the switch is off (`shard` is None)."""
    if shard is None:
        yield None
        return
    async with shard.attempt(session_id, rid) as attempt:
        yield attempt


def _failed(task: asyncio.Task[Any]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)

"""The load of the online experiment: sessions that arrive at a fixed rate, and some that are held (RFC 7.3).

An arriving session takes its tool turns and closes.  A held one goes on until it is let go, so that its version is in
use all the time; like an agent whose context is full, it drops the middle of what it has said.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from attrs import define, field

from gpu_e2e.conversation import Answer, Cast, Conversation, RequestFailed, token_ids
from gpu_e2e.experiment.plan import Load as LoadPlan
from lorafsm.errors import LoraFsmError

_FULL = 640  # tokens of a held session, from which on it keeps its opening and the end
_KEPT = 128
_TOOL_S = 0.1  # of a held session, between its turns: engines that never rest would measure the machine
_MOST = 16  # sessions at a time; an arrival beyond that is turned away, as a router does, before it is a session


@define
class Held:
    """One held session and the task that takes its turns."""

    person: Conversation
    task: asyncio.Task[None]
    leave: asyncio.Event


@define
class Load:
    """Sessions over `engines`, in turn.  What fails is in `cast.failures`; nothing here is tried again.

    `closed_to` are engines that get no new session: one that is about to be taken down.
    """

    cast: Cast
    plan: LoadPlan
    engines: Sequence[str]
    request_s: float
    closed_to: set[str] = field(factory=set)
    arrived: int = 0
    turned_away: int = 0
    _sessions: set[asyncio.Task[None]] = field(factory=set)
    _arrivals: asyncio.Task[None] | None = None

    def start(self) -> None:
        """From now on sessions arrive, each `1 / arrival_per_s` seconds, whether or not the others are done."""
        self._arrivals = asyncio.create_task(self._arrive(), name="arrivals")

    async def stop(self) -> None:
        """No more arrivals; returns when the sessions that are there have ended."""
        if self._arrivals is not None:
            self._arrivals.cancel()
            await asyncio.gather(self._arrivals, return_exceptions=True)
            self._arrivals = None
        await asyncio.gather(*self._sessions)

    def drop(self, held: Sequence[Held] = ()) -> None:
        """End all of it at once; requests that are out are left to their engines."""
        for task in (*self._sessions, *(each.task for each in held), *((self._arrivals,) if self._arrivals else ())):
            task.cancel()

    async def _arrive(self) -> None:
        loop = asyncio.get_running_loop()
        began, first = loop.time(), self.arrived
        while True:
            open_ = [engine for engine in self.engines if engine not in self.closed_to]
            if len(self._sessions) < _MOST:
                self._joined(open_[self.arrived % len(open_)])
            else:
                self.turned_away += 1
            self.arrived += 1
            await asyncio.sleep(max(0.0, began + (self.arrived - first) / self.plan.arrival_per_s - loop.time()))

    def _joined(self, engine: str) -> None:
        name = f"n{self.arrived}"
        task = asyncio.create_task(self._session(name, engine), name=name)
        self._sessions.add(task)
        task.add_done_callback(self._sessions.discard)

    async def _session(self, name: str, engine: str) -> None:
        person = Conversation(self.cast, name, engine, token_ids(name, self.plan.prompt_tokens))
        for _ in range(self.plan.turns):
            if not await self.turn(person):
                break
        await self._close(person)

    async def turn(self, person: Conversation, new_tokens: int = 0) -> Answer | None:
        """One tool turn (of the plan's length, where none is given); None where it failed, which is noted."""
        try:
            async with asyncio.timeout(self.request_s):
                said = await person.turn(new_tokens or self.plan.new_tokens, tool_tokens=self.plan.tool_tokens)
        except RequestFailed:
            return None  # noted where it happened
        except (TimeoutError, LoraFsmError) as error:
            self._note(person, f"{type(error).__name__}: {error}")
            return None
        if isinstance(said, Answer):
            return said
        self._note(person, str(said))
        return None

    def _note(self, person: Conversation, why: str) -> None:
        self.cast.failures.append(f"{person.name} turn {person.turns + 1} on {person.engine}: {why}"[:300])

    async def _close(self, person: Conversation) -> None:
        try:
            await person.close()
        except LoraFsmError as error:
            self._note(person, f"close: {error}")

    # -- held sessions ----------------------------------------------------------------------------------

    async def hold(self, name: str, engine: str, opening: Sequence[int] = ()) -> Held:
        """A session that goes on until it is let go; returns after its first turn, when it is bound."""
        person = Conversation(self.cast, name, engine, list(opening) or token_ids(name, self.plan.prompt_tokens))
        await self.turn(person)
        leave = asyncio.Event()
        return Held(person, asyncio.create_task(self._go_on(person, leave), name=name), leave)

    async def _go_on(self, person: Conversation, leave: asyncio.Event) -> None:
        while not leave.is_set():
            if await self.turn(person) is None:
                return
            if len(person.history) > _FULL:
                person.history = person.history[: self.plan.prompt_tokens] + person.history[-_KEPT:]
            await asyncio.sleep(_TOOL_S)

    async def let_go(self, held: Sequence[Held], *, close: bool = True) -> None:
        """The turns under way end, no other begins; then the sessions close, unless they are wanted for more."""
        for each in held:
            each.leave.set()
        await asyncio.gather(*(each.task for each in held))
        if close:
            await asyncio.gather(*(self._close(each.person) for each in held))

"""The watcher: an engine's silence, end and return become events, so that repairs follow (rules 14, 15).

Silence proves nothing (EngineLost).  A process that is proved to have ended is dead (EngineDead).  A new process
attests a larger incarnation and brings its inventory (EngineUp); one that the registry never heard of joins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Protocol

from attrs import define, fields, frozen

from lorafsm.errors import LoraFsmError
from lorafsm.events import EngineDead, EngineJoin, EngineLost, EngineUp, Event
from lorafsm.lifecycle import ALIVE, EngineState
from lorafsm.orders import Order, TakeInventory
from lorafsm.outcomes import Refusal
from lorafsm_asyncio.client import RegistryClient
from lorafsm_asyncio.errands import Executor
from lorafsm_asyncio.notices import Notice, Notify, log_notice
from lorafsm_asyncio.owner import monotonic_ms
from lorafsm_asyncio.questions import Fleet, Member
from lorafsm_asyncio.rounds import Told, untold

_EVIDENCE_CHARS = 200


class Attested(Protocol):
    """What an engine proves of itself."""

    @property
    def incarnation(self) -> int:
        """Larger in each later process."""


class Engine(Protocol):
    """A client of one engine's process (`lorafsm_sglang.guard.GuardedEngine`)."""

    async def attest(self) -> Attested:
        """The engine's proof; a LoraFsmError where there is none."""

    async def carry_out(self, order: Order) -> Event | None:
        """As `Executor`."""

    async def aclose(self) -> None:
        """Close the connections."""


def _never() -> str | None:
    return None


@frozen
class Seat:
    """Where one member of the fleet runs, process after process.

    `connect(incarnation)` makes a client of the process there (0: of whichever answers).  `exited()` is the proof that
    the process which last ran there has ended, in words, or None; whoever started it can tell.
    """

    engine: str
    connect: Callable[[int], Engine]
    exited: Callable[[], str | None] = _never


@define
class _Watch:
    """What is known of one seat since this watcher started."""

    seat: Seat
    probe: Engine
    heard: int  # when it last answered, ms
    exited: bool = False  # the process to which the probe talks has ended
    client: Engine | None = None
    incarnation: int = 0
    told: EngineUp | None = None  # the last inventory that the registry took in
    listed: int = 0  # when that was


class Watcher:
    """Looks at every seat each `poll_s` seconds, at each for itself, and keeps `engines` pointing at live processes.

    An engine that is silent for `lost_after_ms` is told LOST.  Inventories are taken every `inventory_every_ms` as
    well, so that an adapter which vanished or came by a side door is seen (S50, S52).
    """

    def __init__(
        self,
        client: RegistryClient,
        epoch: str,
        seats: Sequence[Seat],
        engines: MutableMapping[str, Executor],
        *,
        poll_s: float = 1.0,
        answer_within_s: float = 5.0,
        lost_after_ms: int = 10_000,
        inventory_every_ms: int = 30_000,
        clock: Callable[[], int] = monotonic_ms,
        notify: Notify = log_notice,
        told: Told = untold,
    ) -> None:
        self.client = client
        self.engines = engines
        self._epoch = epoch
        self._poll_s = poll_s
        self._within_s = answer_within_s
        self._lost_after = lost_after_ms
        self._inventory_every = inventory_every_ms
        self._clock = clock
        self._notify = notify
        self._told = told
        self._watches = [_Watch(seat, seat.connect(0), clock()) for seat in seats]

    async def run(self) -> None:
        """Until cancelled; then closes the clients that it made."""
        try:
            async with asyncio.TaskGroup() as group:
                for watch in self._watches:
                    group.create_task(self._keep_looking(watch), name=f"watch {watch.seat.engine}")
        finally:
            await self.aclose()

    async def look(self) -> None:
        """Look at every seat once (raises RegistryUnavailable)."""
        await asyncio.gather(*(self._look(watch) for watch in self._watches))

    async def aclose(self) -> None:
        """Close the clients that this watcher made; their executors leave `engines`."""
        for watch in self._watches:
            await self._let_go(watch)
            await watch.probe.aclose()

    async def _keep_looking(self, watch: _Watch) -> None:
        while True:
            try:
                await self._look(watch)
            except LoraFsmError as error:  # the registry does not answer; look again
                self._notify(Notice(error.code, error.message, watch.seat.engine))
            except Exception as error:  # one engine's client must not stop the watch of all the others
                self._notify(Notice("WATCH_FAILED", f"{type(error).__name__}: {error}", watch.seat.engine))
            await asyncio.sleep(self._poll_s)

    async def _look(self, watch: _Watch) -> None:
        engine = watch.seat.engine
        evidence = watch.seat.exited()
        if watch.exited and not evidence:  # another process runs there now, perhaps at another address
            await watch.probe.aclose()
            watch.probe = watch.seat.connect(0)
        watch.exited = bool(evidence)
        found = None if evidence else await self._answered(watch.probe.attest())
        fleet = await self.client.ask(Fleet())
        member = next((m for m in fleet if m.engine == engine), None)
        if evidence:
            await self._ended(watch, member, evidence)
        elif found is None:
            await self._silent(watch, member)
        else:
            watch.heard = self._clock()
            await self._there(watch, member, found.incarnation)

    async def _answered(self, call: Awaitable[Any]) -> Any:
        """What the engine answers; None where it does not, or proves nothing."""
        try:
            async with asyncio.timeout(self._within_s):
                return await call
        except (TimeoutError, LoraFsmError):
            return None

    async def _ended(self, watch: _Watch, member: Member | None, evidence: str) -> None:
        await self._let_go(watch)
        if member is None or member.state is EngineState.DEAD:
            return
        words = "".join(c if c.isprintable() else "?" for c in evidence)[:_EVIDENCE_CHARS]
        await self._tell(
            EngineDead(engine=member.engine, incarnation=member.incarnation, evidence=words, now=self._clock())
        )

    async def _silent(self, watch: _Watch, member: Member | None) -> None:
        if member is None or member.state not in ALIVE or self._clock() - watch.heard < self._lost_after:
            return
        await self._tell(EngineLost(engine=member.engine, incarnation=member.incarnation, now=self._clock()))

    async def _there(self, watch: _Watch, member: Member | None, incarnation: int) -> None:
        if member is not None and (
            incarnation < member.incarnation or (incarnation == member.incarnation and member.state is EngineState.DEAD)
        ):
            text = f"{member.engine} answers as incarnation {incarnation}, which is dead; stop that process"
            self._notify(Notice("STALE_INCARNATION", text, member.engine))
            return
        if watch.client is None or watch.incarnation != incarnation:
            await self._let_go(watch)
            watch.client, watch.incarnation, watch.told = watch.seat.connect(incarnation), incarnation, None
            self.engines[watch.seat.engine] = watch.client
        news = member is None or member.incarnation != incarnation or member.state is EngineState.LOST
        if not news and watch.told is not None and self._clock() - watch.listed < self._inventory_every:
            return
        await self._list(watch, member, news)

    async def _list(self, watch: _Watch, member: Member | None, news: bool) -> None:
        """Take an inventory, and tell the registry what it does not know yet."""
        assert watch.client is not None
        order = TakeInventory(epoch=self._epoch, engine=watch.seat.engine, incarnation=watch.incarnation)
        up = await self._answered(watch.client.carry_out(order))
        if not isinstance(up, EngineUp):
            return  # not ready yet, or silent: looked at again
        watch.listed = self._clock()
        if not news and watch.told is not None and _says_the_same(up, watch.told):
            return
        event = up if member is not None else EngineJoin(**{f.name: getattr(up, f.name) for f in fields(EngineUp)})
        if await self._tell(event):
            watch.told = up

    async def _tell(self, event: Event) -> bool:
        outcome = await self.client.apply(event)
        self._told(event, outcome)
        if isinstance(outcome, Refusal):
            self._notify(Notice(str(outcome.code), f"{event.name}: {outcome.reason}", getattr(event, "engine", "")))
        return outcome.ok

    async def _let_go(self, watch: _Watch) -> None:
        if watch.client is None:
            return
        client, watch.client = watch.client, None
        if self.engines.get(watch.seat.engine) is client:
            del self.engines[watch.seat.engine]
        await client.aclose()


def _says_the_same(a: EngineUp, b: EngineUp) -> bool:
    return (a.residents, a.foreign, a.base_fingerprint) == (b.residents, b.foreign, b.base_fingerprint)

"""One service's round, again and again: ask its policy, submit decisions, give orders, feed the answers back.

A round keeps nothing that the registry does not know, but for answers that it could not deliver yet.  While the
registry does not answer, it waits and tries again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from lorafsm.events import EVENTS, Event
from lorafsm.orders import Order
from lorafsm.outcomes import Outcome
from lorafsm_asyncio.client import RegistryClient, RegistryUnavailable
from lorafsm_asyncio.errands import Errands
from lorafsm_asyncio.notices import Notice, Notify
from lorafsm_asyncio.refusals import EngineSilent

Wanted: TypeAlias = Callable[[], Awaitable[Sequence[Any]]]
"""The policy's answer now: orders for engines, and events to submit to the registry."""

Told: TypeAlias = Callable[[Event, Outcome], None]
"""Called with every event that a service told the registry, and its outcome: for records and metrics."""

_TICK_S = 1.0  # between looks while nothing happens: leases and back-offs end without an event
_GATHER_S = 0.02  # after a wake-up by others' events, which may come by the thousand
_OUTAGE_S = 0.5
_SILENT_NOTICES = frozenset(2**n for n in range(2, 16))


def untold(event: Event, outcome: Outcome) -> None:
    """Nobody listens (the default)."""


class Rounds:
    """The loop of one service over its errands."""

    def __init__(self, client: RegistryClient, errands: Errands, notify: Notify, told: Told = untold) -> None:
        self.client = client
        self.errands = errands
        self._notify = notify
        self._told = told
        self._unsaid: deque[Event] = deque()  # answers that the registry has not taken in yet
        self._seen = -1
        self._changed: asyncio.Task[int] | None = None

    async def go(
        self, wanted: Wanted, is_done: Callable[[], Awaitable[bool]] | None = None, patience: int | None = None
    ) -> None:
        """Until `is_done`, or for ever; everything that is under way is dropped at the end.

        `is_done` is asked after `wanted` in the same round, about what that saw.
        With `patience`, raises EngineSilent when an order's result was not learnt that many times in a row; without,
        a notice says so and the order is repeated for ever (rule 16).
        """
        try:
            while True:
                try:
                    if await self._round(wanted, is_done):
                        return
                    self._look_for_silence(patience)
                except RegistryUnavailable as error:
                    self._notify(Notice(error.code, error.message))
                    await asyncio.sleep(_OUTAGE_S)
        finally:
            await self._stop()

    async def _round(self, wanted: Wanted, is_done: Callable[[], Awaitable[bool]] | None) -> bool:
        """One look, and the wait for the next reason to look; True when done."""
        if self._unsaid:
            await self._tell_all(tuple(self._unsaid))
            self._unsaid.clear()
        orders, decided = [], False
        for item in await wanted():
            if isinstance(item, EVENTS):
                decided = (await self._tell(item)).ok or decided
            else:
                orders.append(item)
        self._give(orders)
        if decided:
            return False
        if is_done is not None and await is_done():
            return True
        await self._wait()
        return False

    def _give(self, orders: Sequence[Order]) -> None:
        self.errands.give(orders)

    async def _tell(self, event: Event) -> Outcome:
        outcome = await self.client.apply(event)
        self._told(event, outcome)
        return outcome

    async def _tell_all(self, events: Sequence[Event]) -> None:
        for event, outcome in zip(events, await self.client.apply_all(events), strict=True):
            self._told(event, outcome)

    async def _wait(self) -> None:
        if self._changed is None:
            self._changed = asyncio.create_task(self._look(self._seen))
        await self._first_of(self._changed)
        if self._changed.done():
            changed, self._changed = self._changed, None
            self._seen = changed.result()
            if not self._unsaid:
                await self._first_of(timeout_s=_GATHER_S)  # an errand that ends meanwhile is told at once

    async def _first_of(self, *others: asyncio.Task[int], timeout_s: float | None = None) -> None:
        """Wait for one of these or an errand, and take what came of the errands."""
        tasks = [*others, *(errand.task for errand in self.errands.running.values())]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        elif timeout_s is not None:
            await asyncio.sleep(timeout_s)
        self._unsaid.extend(self.errands.finished())

    async def _look(self, seen: int) -> int:
        return await self.client.changed(seen, _TICK_S)

    def _look_for_silence(self, patience: int | None) -> None:
        for name, times in self.errands.silent.items():
            if patience is not None and times > patience:
                raise EngineSilent(f"{name.engine} does not say how {name} ended, asked {times} times")
            if patience is None and times in _SILENT_NOTICES:
                self.errands.silent[name] += 1  # said once for each of these
                text = f"{name.engine} does not say how {name} ended, asked {times} times; its slot stays held"
                self._notify(Notice("ENGINE_SILENT", text, name.engine))

    async def _stop(self) -> None:
        if self._changed is not None:
            self._changed.cancel()
            await asyncio.gather(self._changed, return_exceptions=True)
            self._changed = None
        await self.errands.stop()

"""A fault injector between a service and its registry: it loses, doubles and delays, and it can be out."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import Any, TypeVar

from lorafsm.events import Event
from lorafsm.outcomes import Outcome
from lorafsm_asyncio import RegistryClient, RegistryUnavailable
from lorafsm_asyncio.questions import Question

T = TypeVar("T")

DEADLINE_S = 2.0  # after which the client gives up, as a real one does


class Fault(Enum):
    """What happens to one call."""

    REQUEST_LOST = "it never arrives, and the deadline passes"
    REPLY_LOST = "it is applied, and the deadline passes"
    DOUBLED = "it arrives twice; the second answer comes back"
    LATE = "it arrives a while later"
    REPLY_LATE = "it is applied at once, the answer takes a while"


class FaultInjectingClient:
    """A `RegistryClient` over another one.  `faults` are used up one a call of `apply` or `apply_all`.

    `late` events (copies that the network kept) are delivered by `deliver_late`.
    """

    def __init__(self, inner: RegistryClient, faults: Sequence[Fault | None] = ()) -> None:
        self.inner = inner
        self.faults: deque[Fault | None] = deque(faults)
        self.out = False
        self.at: dict[type[Any], Fault] = {}  # what happens to the next call with an event of this kind
        self.late: list[Sequence[Event]] = []
        self.applied: list[tuple[Event, Outcome]] = []
        self.asked: list[Question[Any]] = []

    async def apply(self, event: Event) -> Outcome:
        return (await self._call((event,)))[0]

    async def apply_all(self, events: Sequence[Event]) -> tuple[Outcome, ...]:
        return await self._call(tuple(events))

    async def ask(self, question: Question[T]) -> T:
        await self._require_up()
        self.asked.append(question)
        return await self.inner.ask(question)

    async def changed(self, seen: int, timeout_s: float) -> int:
        await self._require_up()
        return await self.inner.changed(seen, timeout_s)

    async def deliver_late(self) -> None:
        """What the network kept back arrives now, in any order that it was kept in."""
        for events in self.late:
            await self._apply(events)
        self.late.clear()

    async def _call(self, events: Sequence[Event]) -> tuple[Outcome, ...]:
        await self._require_up()
        named = [self.at.pop(type(event)) for event in events if type(event) in self.at]
        match named[0] if named else self.faults.popleft() if self.faults else None:
            case Fault.REQUEST_LOST:
                self.late.append(events)
                await self._give_up("the request was lost")
            case Fault.REPLY_LOST:
                await self._apply(events)
                await self._give_up("the reply was lost")
            case Fault.DOUBLED:
                await self._apply(events)
            case Fault.LATE:
                await asyncio.sleep(DEADLINE_S / 2)
            case Fault.REPLY_LATE:
                answer = await self._apply(events)
                await asyncio.sleep(DEADLINE_S / 2)
                return answer
        return await self._apply(events)

    async def _apply(self, events: Sequence[Event]) -> tuple[Outcome, ...]:
        outcomes = await self.inner.apply_all(events)
        self.applied += zip(events, outcomes, strict=True)
        return outcomes

    async def _require_up(self) -> None:
        if self.out:
            await self._give_up("the registry is out")

    async def _give_up(self, why: str) -> None:
        await asyncio.sleep(DEADLINE_S)
        raise RegistryUnavailable(f"no answer after {DEADLINE_S} s: {why}")

    def outcomes_of(self, kind: type[Any]) -> list[Outcome]:
        """What the registry answered to events of this kind, doubled ones included."""
        return [outcome for event, outcome in self.applied if isinstance(event, kind)]

"""The registry as a process elsewhere sees it: an async client, and a blocking one for trainer ranks.

Both repeat a call whose answer was lost, with the same event and so with the same token or id, until their deadline.
That is safe for every event, because the registry answers a repeated one as the first time (rules 1, 3, 7, 8, 11).
Two answers to a repeat are meant to differ from the first: a bucket whose permission was lost is ALREADY_AUTHORIZED,
for it must never be sent twice (rule 6; the attempt aborts), and a close whose reply was lost is ALREADY_CLOSED
(rule 8).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, TypeVar, cast

from lorafsm.events import Event
from lorafsm.outcomes import Outcome
from lorafsm_asyncio.client import RegistryUnavailable
from lorafsm_asyncio.questions import Question
from lorafsm_ray.calls import Calls, Lost, RayCalls
from lorafsm_ray.coalesce import Coalescer
from lorafsm_ray.live import Live
from lorafsm_ray.patience import PATIENT, Patience, Tries
from lorafsm_ray.wire import read_outcomes, write_events

T = TypeVar("T")


class AsyncClient:
    """`RegistryClient` for one event loop.  Concurrent callers share calls (`Coalescer`); each has its own outcome.

    Refusals are values.  Raises RegistryUnavailable after the deadline, and JournalError when the registry cannot
    write (nothing was changed then).
    """

    def __init__(self, calls: Calls, name: str, patience: Patience = PATIENT, *, coalesce: bool = True) -> None:
        self.name = name
        self._calls = calls
        self._patience = patience
        self._coalescer = Coalescer(self._send) if coalesce else None

    async def apply(self, event: Event) -> Outcome:
        """As `RegistryClient`."""
        [outcome] = await self.apply_all((event,))
        return outcome

    async def apply_all(self, events: Sequence[Event]) -> tuple[Outcome, ...]:
        """As `RegistryClient`."""
        if not events:
            return ()
        if self._coalescer is None:
            return await self._send(tuple(events))
        try:  # the deadline holds for this caller, also while others' calls are before it
            async with asyncio.timeout(self._patience.deadline_s):
                return await self._coalescer.apply_all(events)
        except TimeoutError as error:
            raise RegistryUnavailable(
                f"registry {self.name}: no answer within {self._patience.deadline_s:g} s; it may have been applied: "
                "ask again with the same event"
            ) from error

    async def ask(self, question: Question[T]) -> T:
        """As `RegistryClient`; the registry's clock takes the place of the question's `now`."""
        return cast(T, await self._call("ask", question))

    async def changed(self, seen: int, timeout_s: float) -> int:
        """As `RegistryClient`: a long poll, of which the registry holds the other end."""
        return cast(int, await self._call("changed", seen, timeout_s, extra_s=timeout_s))

    async def live(self) -> Live:
        """Status, last events and counts."""
        return cast(Live, await self._call("live"))

    async def _send(self, events: tuple[Event, ...]) -> tuple[Outcome, ...]:
        if (text := write_events(events)) is None:
            return cast(tuple[Outcome, ...], await self._call("apply_all", events))
        return read_outcomes(await self._call("apply_text", text), len(events))

    async def _call(self, method: str, *args: Any, extra_s: float = 0.0) -> Any:
        tries = Tries(self._patience, f"registry {self.name}", extra_s)
        while True:
            try:
                return await self._calls.call(method, *args, timeout_s=tries.timeout())
            except Lost as lost:
                await asyncio.sleep(tries.pause(str(lost)))


class BlockingClient:
    """The same without an event loop, for a trainer rank; any number of threads may share one."""

    def __init__(self, calls: RayCalls, patience: Patience = PATIENT) -> None:
        self.name = calls.name
        self._calls = calls
        self._patience = patience

    def apply(self, event: Event) -> Outcome:
        """As `RegistryClient`."""
        [outcome] = self.apply_all((event,))
        return outcome

    def apply_all(self, events: Sequence[Event]) -> tuple[Outcome, ...]:
        """As `RegistryClient`."""
        if not events:
            return ()
        if (text := write_events(events)) is None:
            return cast(tuple[Outcome, ...], self._call("apply_all", tuple(events)))
        return read_outcomes(self._call("apply_text", text), len(events))

    def ask(self, question: Question[T]) -> T:
        """As `RegistryClient`; the registry's clock takes the place of the question's `now`."""
        return cast(T, self._call("ask", question))

    def changed(self, seen: int, timeout_s: float) -> int:
        """As `RegistryClient`."""
        return cast(int, self._call("changed", seen, timeout_s, extra_s=timeout_s))

    def live(self) -> Live:
        """Status, last events and counts."""
        return cast(Live, self._call("live"))

    def _call(self, method: str, *args: Any, extra_s: float = 0.0) -> Any:
        tries = Tries(self._patience, f"registry {self.name}", extra_s)
        while True:
            try:
                return self._calls.call_and_block(method, *args, timeout_s=tries.timeout())
            except Lost as lost:
                time.sleep(tries.pause(str(lost)))

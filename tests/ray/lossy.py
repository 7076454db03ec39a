"""Faults on the way to a registry, at the will of a test: losses, duplicates, delays, and a process that ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from enum import StrEnum
from itertools import chain, repeat
from typing import Any, Protocol

from lorafsm_ray.calls import Calls, Lost, meaning


class Fault(StrEnum):
    """What happens to one call."""

    NONE = "none"
    CALL_LOST = "call lost"  # it never arrives
    REPLY_LOST = "reply lost"  # it is carried out, and nobody hears of it
    TWICE = "twice"  # it is carried out twice, and the second answer is heard
    LATE = "late"  # it is given up, and carried out after the calls that came meanwhile
    RESTART = "restart"  # it is carried out, then the registry's process ends, before the reply


class Ends(Protocol):
    """Makes the registry's process end; it comes back from its journal."""

    def __call__(self) -> Awaitable[None]: ...


class LossyCalls:
    """A `Calls` that does to each call what the next fault says, after waiting the next number of turns of the loop.

    Once the faults are used up nothing goes wrong any more.
    """

    def __init__(
        self, calls: Calls, faults: Iterable[Fault] = (), turns: Iterable[int] = (), restart: Ends | None = None
    ) -> None:
        self._calls = calls
        self._faults: Iterator[Fault] = chain(faults, repeat(Fault.NONE))
        self._turns: Iterator[int] = chain(turns, repeat(0))
        self._restart = restart
        self._late: list[asyncio.Task[Any]] = []
        self.made = 0

    async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        fault = next(self._faults)
        self.made += 1
        for _ in range(next(self._turns)):
            await asyncio.sleep(0)

        def once() -> Awaitable[Any]:
            return self._calls.call(method, *args, timeout_s=timeout_s)

        if fault is Fault.CALL_LOST:
            raise Lost("the test lost the call")
        if fault is Fault.LATE:
            self._late.append(asyncio.create_task(self._later(once, 1 + 7 * next(self._turns))))
            raise Lost("the test keeps the call back")
        answer = await once()
        if fault is Fault.REPLY_LOST:
            raise Lost("the test lost the reply")
        if fault is Fault.RESTART and self._restart is not None:
            await self._restart()
            raise Lost("the test ended the process")
        return await once() if fault is Fault.TWICE else answer

    async def settle(self) -> None:
        """Wait for the calls that were kept back."""
        await asyncio.gather(*self._late)

    @staticmethod
    async def _later(once: Callable[[], Awaitable[Any]], turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        try:
            await once()
        except Lost:
            return  # the process it was meant for has ended: a late call may be lost as well


class LocalCalls:
    """The way to an actor's class in this process; `replace` puts another in its place, as a restart does."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor

    async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        actor = self.actor
        try:
            answer = await getattr(actor, method)(*args)
        except Exception as error:
            raise meaning(error) from error
        if actor is not self.actor:
            raise Lost("the process has ended")
        return answer

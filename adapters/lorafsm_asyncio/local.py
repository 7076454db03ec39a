"""The registry in this process: `RegistryClient` over a `JournaledRegistry`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from lorafsm.events import Event
from lorafsm.outcomes import Outcome
from lorafsm_asyncio.questions import Question, answer
from lorafsm_journal import JournaledRegistry

T = TypeVar("T")


class LocalClient:
    """One event loop's view of a registry that it hosts itself; nobody else may write to `host`."""

    def __init__(self, host: JournaledRegistry) -> None:
        self.host = host
        self._accepted = 0
        self._moved = asyncio.Event()

    async def apply(self, event: Event) -> Outcome:
        """As `RegistryClient`; raises JournalError when the row could not be written (nothing is changed)."""
        [outcome] = await self.apply_all((event,))
        return outcome

    async def apply_all(self, events: Sequence[Event]) -> tuple[Outcome, ...]:
        """As `RegistryClient`; one commit for all of them, so after a JournalError none has happened."""
        before, seen = self.host.registry, self._accepted
        steps = self.host.step_all(events)
        for step in steps:
            self._accepted += step.registry is not before
            before = step.registry
        if self._accepted > seen:
            self._moved.set()
            self._moved = asyncio.Event()
        return tuple([step.outcome for step in steps])

    async def ask(self, question: Question[T]) -> T:
        """As `RegistryClient`."""
        return answer(self.host.registry, question)

    async def changed(self, seen: int, timeout_s: float) -> int:
        """As `RegistryClient`."""
        if self._accepted <= seen:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._moved.wait()
            except TimeoutError:
                pass
        return self._accepted

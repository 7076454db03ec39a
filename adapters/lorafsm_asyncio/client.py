"""The registry as an asyncio process sees it, wherever it runs: in this process or in a Ray actor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from lorafsm.errors import LoraFsmError
from lorafsm.events import Event
from lorafsm.outcomes import Outcome
from lorafsm_asyncio.questions import Question

T = TypeVar("T")


class RegistryUnavailable(LoraFsmError):
    """No answer within the deadline; whether the event was applied is unknown until the registry is asked again."""

    def __init__(self, message: str) -> None:
        super().__init__("REGISTRY_UNAVAILABLE", message)

    def __reduce__(self) -> tuple[type[RegistryUnavailable], tuple[str]]:
        return type(self), (self.message,)


class RegistryClient(Protocol):
    """What binder, publisher, reclaimer and repairer need of a registry.

    Every event of the protocol may be given again (rules 1, 3, 7, 8, 11: the stored outcome comes back), so a
    client repeats one whose reply was lost until its deadline.  Refusals are values.  Raises RegistryUnavailable
    after the deadline.
    """

    async def apply(self, event: Event) -> Outcome:
        """Apply one event, journaled before the answer (rule 18)."""

    async def apply_all(self, events: Sequence[Event]) -> tuple[Outcome, ...]:
        """Apply several in this order in one call; each has its own outcome, a refusal does not end the row."""

    async def ask(self, question: Question[T]) -> T:
        """The registry's answer to a question."""

    async def changed(self, seen: int, timeout_s: float) -> int:
        """Wait until more than `seen` events were accepted, or `timeout_s` seconds; the number accepted by now."""

"""The one place of this package where a refusal, which is a value, becomes an exception with the same code."""

from __future__ import annotations

from typing import Any, TypeVar

from lorafsm.dispatch import records as guard
from lorafsm.errors import LoraFsmError
from lorafsm.outcomes import Refusal

T = TypeVar("T")


class Refused(LoraFsmError):
    """The registry, or the owner's own guard, said no; `code` is theirs and the message says what to do."""

    def __reduce__(self) -> tuple[type[Refused], tuple[str, str, str | None]]:
        return type(self), (self.code, self.message, self.field)


class EngineSilent(LoraFsmError):
    """An order was repeated until patience ran out and its result is still unknown (ENGINE_SILENT).

    Nothing is concluded from it: the registry holds the slot until the engine answers or is proved dead (rule 16),
    and a standby service goes on asking.
    """

    def __init__(self, message: str) -> None:
        super().__init__("ENGINE_SILENT", message)

    def __reduce__(self) -> tuple[type[EngineSilent], tuple[str]]:
        return type(self), (self.message,)


def as_error(refusal: Refusal | guard.Refused) -> Refused:
    """The exception that carries this refusal."""
    return Refused(str(refusal.code), refusal.reason, refusal.field)


def require(outcome: Any, kind: type[T]) -> T:
    """The outcome, if it is of this kind; a refusal is raised as `Refused`."""
    if isinstance(outcome, kind):
        return outcome
    if isinstance(outcome, Refusal | guard.Refused):
        raise as_error(outcome)
    raise TypeError(f"{outcome!r:.200} is no {kind.__name__}")

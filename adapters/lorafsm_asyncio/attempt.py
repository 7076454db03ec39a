"""One backend attempt as its sender sees it: the exact name to send, and what came of it (RFC 4.2)."""

from __future__ import annotations

from collections.abc import Callable

from attrs import define, field

from lorafsm.outcomes import Binding
from lorafsm_asyncio.generate import Call, GenerateFailed, Verdict, classify, message_in


@define
class Attempt:
    """Given by `SessionBinder.attempt`; `binding.lora_name` is the request's `lora_path`, `rid` its id."""

    binding: Binding
    rid: str
    _admit: Callable[[], object]
    over: bool = field(default=False, init=False)  # the engine said how it ended; nothing runs any more

    @property
    def lora_path(self) -> str:
        """The exact name that the request carries; nothing may stand in for it."""
        return self.binding.lora_name

    def admitted(self) -> None:
        """The first token came: an engine runs the request."""
        self._admit()

    def heard(self, call: Call) -> Call:
        """Take in how the one call ended; the call again if it is an answer.

        Raises GenerateFailed: VERSION_MISSING and REFUSED end the attempt, UNKNOWN leaves it in doubt.
        """
        verdict = classify(call)
        self.over = verdict is not Verdict.UNKNOWN
        if verdict is Verdict.DONE:
            return call
        raise GenerateFailed(verdict, message_in(call.body)[:300] or f"status {call.status}")

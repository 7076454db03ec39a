"""The one exception class of the project, and its form for malformed input.

The core itself never raises these from `step`: a refusal there is a value.  They are raised by
constructors of identities and manifests, and by the adapters, which turn refusals into exceptions.
"""

from __future__ import annotations


class LoraFsmError(Exception):
    """A refusal or a fault with a stable `code`, the offending `field` (or None) and a message that says what to do.

    Picklable and subclassable, so that it crosses process boundaries unchanged.
    """

    def __init__(self, code: str, message: str, field: str | None = None) -> None:
        super().__init__(code, message, field)
        self.code = code
        self.message = message
        self.field = field

    def __str__(self) -> str:
        where = f" [{self.field}]" if self.field else ""
        return f"{self.code}{where}: {self.message}"


class InvalidField(LoraFsmError, ValueError):
    """Input from outside that does not have the required form; `field` names it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__("BAD_INPUT", message, field)

    def __reduce__(self) -> tuple[type[InvalidField], tuple[str, str]]:
        return type(self), (self.field or "", self.message)

"""What a person may want to know of a service: a stable code and one sentence, handed to a callback."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

from attrs import frozen

_LOG = logging.getLogger("lorafsm_asyncio")


@frozen
class Notice:
    """One notice.  `engine` names the engine that it is about, where there is one; it never holds a token."""

    code: str
    text: str
    engine: str = ""

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"


Notify: TypeAlias = Callable[[Notice], None]
"""Called in the event loop; it must not block."""


def log_notice(notice: Notice) -> None:
    """Write the notice to the logger `lorafsm_asyncio` (the default)."""
    _LOG.warning("%s", notice)

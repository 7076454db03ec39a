"""A session's life in the smallest vocabulary that every library can speak."""

from __future__ import annotations

from typing import Protocol

VERSION = "v1"


class Lives(Protocol):
    """Sessions by number.  `held` is how many of them hold the version now."""

    held: int

    def open(self, number: int) -> None:
        """Register a session."""

    def bind_first(self, number: int) -> None:
        """Bind it to the version."""

    def begin_close(self, number: int) -> None:
        """Nothing more may be sent."""

    def close(self, number: int) -> None:
        """Release the version and forget the session."""

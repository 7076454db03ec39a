"""A session's life in `Automat`: inputs as a protocol, a core per session, a machine from a builder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from automat import TypeMachineBuilder

from tests.benchmarks.lives import VERSION


class SessionInputs(Protocol):
    """What may happen to a session."""

    def bind_first(self) -> None:
        """Bind it."""

    def begin_close(self) -> None:
        """Nothing more may be sent."""

    def close(self) -> None:
        """The end."""


@dataclass
class SessionCore:
    """What a session remembers."""

    lives: AutomatLives
    binding: str | None = None


_builder = TypeMachineBuilder(SessionInputs, SessionCore)
_open, _bound = _builder.state("open"), _builder.state("bound")
_finalizing, _closed = _builder.state("finalizing"), _builder.state("closed")


@_open.upon(SessionInputs.bind_first).to(_bound)
def _take_version(inputs: SessionInputs, core: SessionCore) -> None:
    core.binding = VERSION
    core.lives.held += 1


_open.upon(SessionInputs.begin_close).to(_finalizing).returns(None)
_bound.upon(SessionInputs.begin_close).to(_finalizing).returns(None)


@_finalizing.upon(SessionInputs.close).to(_closed)
def _release_version(inputs: SessionInputs, core: SessionCore) -> None:
    core.binding = None
    core.lives.held -= 1


_new_session = _builder.build()


class AutomatLives:
    """Sessions by number."""

    def __init__(self) -> None:
        self.held = 0
        self._sessions: dict[int, SessionInputs] = {}

    def open(self, number: int) -> None:
        self._sessions[number] = _new_session(SessionCore(self))

    def bind_first(self, number: int) -> None:
        self._sessions[number].bind_first()

    def begin_close(self, number: int) -> None:
        self._sessions[number].begin_close()

    def close(self, number: int) -> None:
        self._sessions.pop(number).close()

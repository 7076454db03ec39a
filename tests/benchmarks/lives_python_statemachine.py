"""A session's life in `python-statemachine`: each session an instance of one chart."""

from __future__ import annotations

from statemachine import State, StateChart

from tests.benchmarks.lives import VERSION


class SessionChart(StateChart):
    """The states and events of a session."""

    allow_event_without_transition = False  # an event out of turn is an error

    open = State(initial=True)
    bound = State()
    finalizing = State()
    closed = State(final=True)

    bind_first = open.to(bound)
    begin_close = open.to(finalizing) | bound.to(finalizing)
    close = finalizing.to(closed)

    def __init__(self, lives: PythonStatemachineLives) -> None:
        self.lives = lives
        self.binding: str | None = None
        super().__init__()

    def on_bind_first(self) -> None:
        self.binding = VERSION
        self.lives.held += 1

    def on_close(self) -> None:
        self.binding = None
        self.lives.held -= 1


class PythonStatemachineLives:
    """Sessions by number."""

    def __init__(self) -> None:
        self.held = 0
        self._sessions: dict[int, SessionChart] = {}

    def open(self, number: int) -> None:
        self._sessions[number] = SessionChart(self)

    def bind_first(self, number: int) -> None:
        self._sessions[number].bind_first()

    def begin_close(self, number: int) -> None:
        self._sessions[number].begin_close()

    def close(self, number: int) -> None:
        self._sessions.pop(number).close()

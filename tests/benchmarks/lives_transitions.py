"""A session's life in `transitions`: one machine, each session a model that is added and removed."""

from __future__ import annotations

from transitions import Machine

from tests.benchmarks.lives import VERSION


class Session:
    """A model; the machine gives it `state` and a method per trigger."""

    def __init__(self, lives: TransitionsLives) -> None:
        self.lives = lives
        self.binding: str | None = None

    def take_version(self) -> None:
        self.binding = VERSION
        self.lives.held += 1

    def release_version(self) -> None:
        self.binding = None
        self.lives.held -= 1


class TransitionsLives:
    """Sessions by number."""

    def __init__(self) -> None:
        self.held = 0
        self._sessions: dict[int, Session] = {}
        self._machine = Machine(
            model=None,
            states=["open", "bound", "finalizing", "closed"],
            initial="open",
            auto_transitions=False,
            transitions=[
                {"trigger": "bind_first", "source": "open", "dest": "bound", "after": "take_version"},
                {"trigger": "begin_close", "source": ["open", "bound"], "dest": "finalizing"},
                {"trigger": "close", "source": "finalizing", "dest": "closed", "after": "release_version"},
            ],
        )

    def open(self, number: int) -> None:
        self._sessions[number] = session = Session(self)
        self._machine.add_model(session)

    def bind_first(self, number: int) -> None:
        self._sessions[number].bind_first()

    def begin_close(self, number: int) -> None:
        self._sessions[number].begin_close()

    def close(self, number: int) -> None:
        session = self._sessions.pop(number)
        session.close()
        self._machine.remove_model(session)

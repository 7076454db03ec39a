"""A board that all training ranks write to and read from, every call of which ends by a deadline (RFC 6).

It lies on a `torch.distributed` store (a TCPStore in rank 0's process, or the launcher's).  No collective is used:
a rank that died or stands still cannot keep the others waiting.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, TypeVar

import torch.distributed as dist
from attrs import frozen

T = TypeVar("T")

Note: TypeAlias = dict[str, Any]
"""What a rank writes: plain JSON."""

_FIRST_LOOK_S = 0.002
_LONGEST_PAUSE_S = 0.05


class BoardLost(RuntimeError):
    """The store does not answer: the process that hosts it died or stands still.  The board stays lost."""


@frozen
class _Asked:
    call: Callable[[], Any]
    answer: queue.SimpleQueue[tuple[bool, Any]]


class Board:
    """One rank's access to the board of `size` ranks; `answer_s` bounds a single call of the store, in seconds.

    The store's own calls have no deadline of their own where its host stands still, so a thread makes them, and is
    left behind when it does not come back.
    """

    def __init__(self, store: dist.Store, rank: int, size: int, *, answer_s: float = 5.0) -> None:
        self.rank, self.size = rank, size
        # A connection of its own: a call that waits (the rendezvous of a group) holds up all others on the same one.
        self._store = dist.PrefixStore("lorafsm/ranks", store.clone())
        self._answer_s = answer_s
        self._asked: queue.SimpleQueue[_Asked] = queue.SimpleQueue()
        self._lost: str | None = None
        threading.Thread(target=_serve, args=(self._asked,), name="lorafsm-board", daemon=True).start()

    def post(self, turn: int, what: str, note: Note) -> None:
        """Write this rank's own note.  Raises BoardLost."""
        self._call(lambda: self._store.set(_key(turn, what, self.rank), json.dumps(note)))

    def decide(self, turn: int, note: Note) -> Note:
        """The decision of this turn: the first that any rank wrote, for everybody.  Raises BoardLost."""
        kept = self._call(lambda: self._store.compare_set(_key(turn, "decision"), "", json.dumps(note)))
        return _read(kept)

    def decision(self, turn: int, until: float) -> Note | None:
        """The decision, waited for until `until` (seconds of the monotonic clock).  Raises BoardLost."""
        return self._wait(until, lambda: self._found(_key(turn, "decision")))

    def note(self, turn: int, what: str, rank: int, until: float) -> Note | None:
        """What another rank wrote, waited for.  Raises BoardLost."""
        return self._wait(until, lambda: self._found(_key(turn, what, rank)))

    def notes(self, turn: int, what: str, ranks: Iterable[int], until: float) -> dict[int, Note]:
        """What each of these ranks wrote; those that wrote nothing until then are left out.  Raises BoardLost."""
        missing = set(ranks)
        found: dict[int, Note] = {}

        def look() -> bool | None:
            for rank in missing - found.keys():
                if (note := self._found(_key(turn, what, rank))) is not None:
                    found[rank] = note
            return True if found.keys() == missing else None

        self._wait(until, look)
        return found

    def forget(self, turn: int, whats: Iterable[str]) -> None:
        """Remove what was written in a turn that everybody has left.  Raises BoardLost."""
        keys = [_key(turn, "decision"), *(_key(turn, what, rank) for what in whats for rank in range(self.size))]
        self._call(lambda: [self._store.delete_key(key) for key in keys])

    def _found(self, key: str) -> Note | None:
        raw = self._call(lambda: self._store.get(key) if self._store.check([key]) else None)
        return None if raw is None else _read(raw)

    def _wait(self, until: float, look: Callable[[], T | None]) -> T | None:
        pause = _FIRST_LOOK_S
        while (found := look()) is None:
            left = until - time.monotonic()
            if left <= 0:
                return None
            time.sleep(min(pause, left))
            pause = min(_LONGEST_PAUSE_S, pause * 1.5)
        return found

    def _call(self, call: Callable[[], T]) -> T:
        if self._lost is not None:
            raise BoardLost(self._lost)
        answer: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
        self._asked.put(_Asked(call, answer))
        try:
            done, result = answer.get(timeout=self._answer_s)
        except queue.Empty:
            done, result = False, f"no answer within {self._answer_s:.0f} s"
        if not done:
            self._lost = f"the store of the training ranks is gone: {result}"
            raise BoardLost(self._lost)
        found: T = result
        return found


def _serve(asked: queue.SimpleQueue[_Asked]) -> None:
    while True:
        each = asked.get()
        try:
            each.answer.put((True, each.call()))
        except Exception as error:
            each.answer.put((False, f"{type(error).__name__}: {error}"[:200]))


def _key(turn: int, what: str, rank: int | None = None) -> str:
    return f"{turn}/{what}" if rank is None else f"{turn}/{what}/{rank}"


def _read(raw: bytes | str) -> Note:
    note: Note = json.loads(raw)
    return note

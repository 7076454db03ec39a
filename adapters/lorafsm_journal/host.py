"""The smallest host of a registry: one state, one journal, one writer."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from lorafsm import registry as rules
from lorafsm.errors import LoraFsmError
from lorafsm.events import Event
from lorafsm.outcomes import Outcome
from lorafsm.records import Config, Registry
from lorafsm.registry import Step
from lorafsm_journal.journal import Journal
from lorafsm_journal.writer import Level

SNAPSHOT_EVERY = 10_000
"""Accepted events after which a snapshot is due: what recovery then has to replay takes a second at most."""

_LARGE = 1 << 20  # a state of more bytes is written
_BYTES_PER_EVENT = 200  # less often, so that its snapshots cost each event no more than this


class JournaledRegistry:
    """A registry whose every outcome is in the journal before the caller sees it (protocol rule 18).

    Events are applied one at a time, in the order in which they arrive.  If the journal raises, the state is
    unchanged and the caller has no outcome.  Reads need no lock: `registry` is an immutable value.

    A snapshot is kept every `snapshot_every` accepted events (0: never) and on close.  It is a shortcut of
    recovery: one that cannot be written is in `snapshot_fault`, and nothing else is amiss.
    """

    def __init__(self, journal: Journal, snapshot_every: int = SNAPSHOT_EVERY) -> None:
        found = journal.recovered()
        self.journal = journal
        self.snapshot_fault: LoraFsmError | None = None
        self._registry = found.registry
        self._turn = threading.Lock()
        self._every = self._due = snapshot_every
        self._since = found.accepted  # accepted events that no snapshot covers
        self._closed = False

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        config: Config,
        epoch: str,
        level: Level | str = Level.PROCESS,
        *,
        epochs: str | os.PathLike[str] | None = None,
        snapshot_every: int = SNAPSHOT_EVERY,
    ) -> Self:
        """Open the journal and recover what is in it; raises JournalError (see Journal.open and recover).

        A caller that comes back then applies `Recovered(now=...)`, which grants every lease anew: time is the
        caller's, so it is not done here.
        """
        journal = Journal.open(path, config, epoch, level, epochs)
        try:
            return cls(journal, snapshot_every)
        except BaseException:
            journal.close()
            raise

    @property
    def registry(self) -> Registry:
        """The state after the last applied event."""
        return self._registry

    def step(self, event: Event) -> Step:
        """Step, write the journal, then let the new state be seen; returns it with outcome and effects.

        Effects are wake-ups and alarms, and the caller's to carry out; none is repeated after a recovery.
        """
        [done] = self.step_all((event,))
        return done

    def step_all(self, events: Sequence[Event]) -> tuple[Step, ...]:
        """Step through several events in this order, each with its own outcome, and commit their rows as one.

        The new state is seen after the commit of the batch; if that fails, no event of it has happened.
        """
        with self._turn:
            registry, steps = self._registry, []
            for event in events:
                result = rules.step(registry, event)
                registry = result.registry
                steps.append(result)
            self.journal.append_all(events, [result.outcome for result in steps])
            self._registry = registry
            self._since += sum(result.outcome.ok for result in steps)
            if 0 < self._due <= self._since:
                self._snapshot()
            return tuple(steps)

    def apply(self, event: Event) -> Outcome:
        """The outcome of an event alone, for a caller that looks at the registry anyway."""
        return self.step(event).outcome

    def apply_all(self, events: Sequence[Event]) -> tuple[Outcome, ...]:
        """The outcomes of a batch; as `step_all`."""
        return tuple(result.outcome for result in self.step_all(events))

    def compact(self) -> int:
        """Let a snapshot stand for all rows so far; returns how many were dropped.  What was told stays told, but
        the history is gone: neither `verify` nor a trace check can go behind it."""
        with self._turn:
            dropped = self.journal.compact(self._registry)
            self._since = 0
            return dropped

    def close(self) -> None:
        """Keep a snapshot and close the journal; may be called again."""
        with self._turn:
            if not self._closed and self._every and self._since:
                self._snapshot()
            self._closed = True
            self.journal.close()

    def _snapshot(self) -> None:
        try:
            size = self.journal.snapshot(self._registry)
        except LoraFsmError as error:  # the batch is in the journal: nobody may be told otherwise
            self.snapshot_fault = error
            self._due = self._since + self._every
            return
        self.snapshot_fault = None
        self._since, self._due = 0, max(self._every, size // _BYTES_PER_EVENT if size > _LARGE else 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

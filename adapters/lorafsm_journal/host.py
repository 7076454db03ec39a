"""The smallest host of a registry: one state, one journal, one writer."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from lorafsm import registry as rules
from lorafsm.events import Event
from lorafsm.outcomes import Outcome
from lorafsm.records import Config, Registry
from lorafsm.registry import Step
from lorafsm_journal.journal import Journal, Level


class JournaledRegistry:
    """A registry whose every outcome is in the journal before the caller sees it (protocol rule 18).

    Events are applied one at a time, in the order in which they arrive.  If the journal raises, the state is
    unchanged and the caller has no outcome.  Reads need no lock: `registry` is an immutable value.
    """

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._registry = journal.recover()
        self._turn = threading.Lock()

    @classmethod
    def open(cls, path: str | os.PathLike[str], config: Config, epoch: str, level: Level | str = Level.PROCESS) -> Self:
        """Open the journal and recover what is in it; raises JournalError (see Journal.open and recover).

        A caller that comes back then applies `Recovered(now=...)`, which grants every lease anew: time is the
        caller's, so it is not done here.
        """
        journal = Journal.open(path, config, epoch, level)
        try:
            return cls(journal)
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
            return tuple(steps)

    def apply(self, event: Event) -> Outcome:
        """The outcome of an event alone, for a caller that looks at the registry anyway."""
        return self.step(event).outcome

    def apply_all(self, events: Sequence[Event]) -> tuple[Outcome, ...]:
        """The outcomes of a batch; as `step_all`."""
        return tuple(result.outcome for result in self.step_all(events))

    def close(self) -> None:
        """Close the journal; may be called again."""
        with self._turn:
            self.journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

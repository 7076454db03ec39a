"""The registry behind the actor, without Ray: journal, clock, last events, counts and the hook."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from attrs import evolve

from lorafsm.events import EVENTS, Event, Recovered
from lorafsm.outcomes import Code, Outcome
from lorafsm.records import Registry
from lorafsm.status import status
from lorafsm_asyncio.questions import Question, answer
from lorafsm_journal import JournaledRegistry
from lorafsm_ray.clock import Clock
from lorafsm_ray.live import LAST_EVENTS, Happened, Live, Seen
from lorafsm_ray.settings import RegistrySettings, load_hook

T = TypeVar("T")
_KNOWN = frozenset(EVENTS)
_log = logging.getLogger(__name__)


class RegistryHost:
    """One open journal and the registry that it recovers to (protocol rule 18).

    Time is this host's: the `now` of an event or a question that comes in is replaced by `clock`, so that a process
    elsewhere whose clock is wrong can end nobody's lease.  Raises JournalError, and InvalidField for `on_event`.
    """

    def __init__(self, settings: RegistrySettings, clock: Callable[[], int] | None = None) -> None:
        self.settings = settings
        self._hook = load_hook(settings.on_event)
        self._journaled = JournaledRegistry.open(
            settings.journal, settings.config, settings.epoch, settings.level, epochs=settings.epochs
        )
        self.clock = clock if clock is not None else Clock(self._journaled.registry.now)
        self.since = self.clock()
        self.last: deque[Happened] = deque(maxlen=LAST_EVENTS)
        self.counts: Counter[tuple[str, Code]] = Counter()
        self.hook_errors = 0
        # Every accepted event has a row, so after a restart this is never less than what it was before.
        self.accepted = len(self._journaled.journal)
        if self.accepted:  # it comes back: nobody is late
            try:
                self.apply_all([Recovered()])
            except BaseException:
                self.close()
                raise

    @property
    def registry(self) -> Registry:
        """The state, an immutable value."""
        return self._journaled.registry

    @property
    def rows(self) -> int:
        """Rows of the journal."""
        return len(self._journaled.journal)

    def apply_all(self, events: Sequence[Event]) -> tuple[Outcome, ...]:
        """Apply in this order and commit as one; if the journal raises, none has happened."""
        now = self.clock()
        stamped = [evolve(event, now=now) if type(event) in _KNOWN else event for event in events]
        before = self._journaled.registry
        steps = self._journaled.step_all(stamped)
        for event, done in zip(stamped, steps, strict=True):
            changed = done.registry is not before
            before = done.registry
            self.accepted += changed
            self.counts[type(event).__name__, done.outcome.code] += 1
            if self._hook is not None:
                self._tell(Seen(event, done.outcome, changed))
        shown = [*zip(stamped, steps, strict=True)][-LAST_EVENTS:]
        self.last += [Happened(now, type(event).__name__, str(done.outcome.code)) for event, done in shown]
        return tuple([done.outcome for done in steps])

    def ask(self, question: Question[T]) -> T:
        """The answer at this host's time."""
        asked: Any = question
        if hasattr(asked, "now"):
            asked = evolve(asked, now=self.clock())
        return cast(T, answer(self._journaled.registry, asked))

    def live(self, pid: int, node: str, metrics_port: int | None) -> Live:
        """Everything that a status page shows."""
        return Live(
            name=self.settings.name,
            status=status(self._journaled.registry, self.clock()),
            last=tuple(self.last),
            counts=tuple((event, code.value, count) for (event, code), count in sorted([*self.counts.items()])),
            accepted=self.accepted,
            hook_errors=self.hook_errors,
            journal=self.settings.journal,
            level=self.settings.level.value,
            rows=self.rows,
            pid=pid,
            node=node,
            since=self.since,
            metrics_port=metrics_port,
        )

    def close(self) -> None:
        """Close the journal; may be called again."""
        self._journaled.close()

    def _tell(self, seen: Seen) -> None:
        assert self._hook is not None
        try:
            self._hook(seen)
        except Exception:
            self.hook_errors += 1
            if self.hook_errors == 1:
                _log.exception("on_event %s raised; it is counted from now on", self.settings.on_event)

"""The actor's class, which is a plain class without Ray: calls come in at once, and are committed in groups."""

from __future__ import annotations

import asyncio
import gc
import os
import platform
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from lorafsm.errors import InvalidField, LoraFsmError
from lorafsm.events import Event
from lorafsm.outcomes import Outcome
from lorafsm_asyncio.questions import Question
from lorafsm_journal import JournalCode, JournalError
from lorafsm_ray.host import RegistryHost
from lorafsm_ray.live import Live
from lorafsm_ray.settings import RegistrySettings
from lorafsm_ray.wire import read_events, write_outcomes

if TYPE_CHECKING:
    from lorafsm_ray.metrics import MetricsServer

T = TypeVar("T")
_THRESHOLDS = (50_000, 20, 100)  # of the collector, in a process that does nothing but this
_LINGER_S = 0.002  # what a call waits for company, when the calls before it had some
_REOPEN = frozenset({JournalCode.JOURNAL_UNCERTAIN, JournalCode.JOURNAL_CLOSED})


class RegistryActor:
    """The shared single writer (RFC 2).  It keeps state, changes state, and waits for nothing but its own disk.

    Everything that has arrived when the event loop comes round is one batch: stepped through in the order of
    arrival, committed as one, and only then answered.  No transition awaits.  Ray hands calls over one by one, so
    after a batch of several calls the next waits two milliseconds for more; a lone caller never waits.

    A journal that cannot be opened is a typed error to each caller and not the death of the actor; each call tries
    again.  After a commit whose fate is unknown it is opened anew, which recovers what is in it.
    """

    def __init__(
        self, settings: RegistrySettings, clock: Callable[[], int] | None = None, *, own_process: bool = False
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._host: RegistryHost | None = None
        self._metrics: MetricsServer | None = None
        self._no_metrics: InvalidField | None = None
        self._waiting: list[tuple[Sequence[Event], asyncio.Future[tuple[Outcome, ...]]]] = []
        self._company = False
        self._moved = asyncio.Event()
        self._stopped = False
        with suppress(LoraFsmError):  # a restarted actor recovers and serves metrics before anybody calls
            self._opened()
        if own_process:
            _collect_less()

    async def settings(self) -> RegistrySettings:
        """What this actor was started with."""
        return self._settings

    async def start(self) -> int:
        """The number of accepted events, once the journal is open and metrics are served.

        Raises JournalError, and InvalidField for an `on_event` or a `metrics_port` that cannot be used.
        """
        host = self._opened()
        if self._no_metrics is not None:
            raise self._no_metrics
        return host.accepted

    async def apply(self, event: Event) -> Outcome:
        """As `RegistryClient.apply`; raises JournalError when nothing was changed, or nobody knows."""
        [outcome] = await self.apply_all((event,))
        return outcome

    async def apply_all(self, events: Sequence[Event]) -> tuple[Outcome, ...]:
        """As `RegistryClient.apply_all`; the row is committed as a whole or not at all."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[tuple[Outcome, ...]] = loop.create_future()
        self._waiting.append((events, done))
        if len(self._waiting) == 1:
            loop.call_later(_LINGER_S, self._commit) if self._company else loop.call_soon(self._commit)
        return await done

    async def apply_text(self, events: str) -> str:
        """As `apply_all`; events and outcomes as `lorafsm_ray.wire` writes them."""
        return write_outcomes(await self.apply_all(read_events(events)))

    async def ask(self, question: Question[T]) -> T:
        """As `RegistryClient.ask`."""
        return self._opened().ask(question)

    async def changed(self, seen: int, timeout_s: float) -> int:
        """As `RegistryClient.changed`.  Less than `seen` is news too: power was lost, and with it what came last."""
        if self._opened().accepted == seen:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._moved.wait()
        return self._opened().accepted

    async def live(self) -> Live:
        """What `lorafsm status --registry` shows."""
        return self._live()

    async def stop(self) -> None:
        """Close the journal and answer JOURNAL_CLOSED from now on; may be called again."""
        self._stopped = True
        if self._metrics is not None:
            self._metrics.close()
        if self._host is not None:
            self._host.close()
            self._host = None
        self._moved.set()  # whoever waits for a change learns that none will come

    def _live(self) -> Live:
        port = self._metrics.port if self._metrics is not None else None
        return self._opened().live(os.getpid(), platform.node(), port)

    def _opened(self) -> RegistryHost:
        if self._stopped:
            raise JournalError(JournalCode.JOURNAL_CLOSED, f"registry {self._settings.name} was stopped; start it anew")
        if self._host is None:
            self._host = RegistryHost(self._settings, self._clock)
            self._serve_metrics()
        return self._host

    def _serve_metrics(self) -> None:
        """Numbers are a convenience: where they cannot be served, `start` says so and the registry goes on."""
        if self._settings.metrics_port is None or self._metrics is not None:
            return
        try:
            from lorafsm_ray.metrics import MetricsServer

            self._metrics = MetricsServer(self._live, self._settings.metrics_host, self._settings.metrics_port)
        except InvalidField as error:
            self._no_metrics = error
        except ImportError as error:
            self._no_metrics = InvalidField("metrics_port", f"needs the extra lorafsm[metrics]: {error}")

    def _commit(self) -> None:
        groups, self._waiting = self._waiting, []
        self._company = len(groups) > 1
        try:
            self._answer(groups)
        except Exception as error:  # told to the callers, each of whom may be to blame
            for group in groups:
                if len(groups) == 1:
                    _fail(group[1], error)
                else:
                    self._commit_alone(group)

    def _commit_alone(self, group: tuple[Sequence[Event], asyncio.Future[tuple[Outcome, ...]]]) -> None:
        try:
            self._answer([group])
        except Exception as error:
            _fail(group[1], error)

    def _answer(self, groups: list[tuple[Sequence[Event], asyncio.Future[tuple[Outcome, ...]]]]) -> None:
        host = self._opened()
        before = host.accepted
        try:
            outcomes = host.apply_all([event for events, _ in groups for event in events])
        except JournalError as error:
            if error.code in _REOPEN:
                host.close()
                self._host = None
            raise
        at = 0
        for events, done in groups:
            if not done.done():
                done.set_result(outcomes[at : at + len(events)])
            at += len(events)
        if host.accepted != before:
            self._moved.set()
            self._moved = asyncio.Event()


def _collect_less() -> None:
    """Let the collector pass over what is there, and come seldom: a registry's records hold no cycles, and looking at
    them took it half of the time of a batch of binds."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)


def _fail(done: asyncio.Future[Any], error: Exception) -> None:
    if not done.done():
        done.set_exception(error)

"""The asyncio shell around the pure policies: give orders to engines, feed the answers back as events.

It keeps nothing that the registry does not know: stopped anywhere, another driver goes on from the registry.
An order whose result stays unknown is repeated after a pause that grows, and not for ever: the driver then says
which engine does not answer, and leaves the registry as it is (an unknown result keeps its slot, rule 16).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from gpu_e2e.recording import Recorder
from lorafsm import publisher, reclaimer
from lorafsm.events import Abort, ClaimReclaim, Commit, Event, ReclaimUnknown, TargetUnknown
from lorafsm.identity import VersionKey
from lorafsm.lifecycle import VersionState
from lorafsm.orders import Order, SendBucket, Unload
from lorafsm.outcomes import Outcome, Refusal
from lorafsm.records import Registry
from lorafsm_asyncio import Send
from lorafsm_journal import JournaledRegistry

_Name: TypeAlias = tuple[str, str, str]  # kind of order, engine, number or id
_Running: TypeAlias = dict[_Name, asyncio.Task[Sequence[Event]]]

_PAUSE_S = 0.1  # before the first repeat; doubled each time, up to
_LONGEST_PAUSE_S = 2.0


class EngineSilent(RuntimeError):
    """An order was repeated until patience ran out and its result is still unknown."""


class Executor(Protocol):
    """What carries out one engine's orders (`lorafsm_sglang.StagedEngine`)."""

    async def carry_out(self, order: Order) -> Event | None:
        """The event that reports the result."""


class Driver:
    """Publishes and reclaims over the given engines until nothing is left to do."""

    def __init__(
        self,
        host: JournaledRegistry,
        engines: Mapping[str, Executor],
        recorder: Recorder,
        clock: Callable[[], int],
        *,
        send: Send | None = None,
        repeats: int = 30,
    ) -> None:
        self.host = host
        self.engines = engines
        self.recorder = recorder
        self.clock = clock
        self.send = send  # carries out SendBucket; None: engines read the artifact store themselves
        self.repeats = repeats  # of one order without a result: about a minute of pauses

    def apply(self, event: Event) -> Outcome:
        """Apply one event, journaled, and note what it changed or why it was refused."""
        before = self.host.registry
        outcome = self.host.apply(event)
        self.recorder.saw(before, self.host.registry)
        if isinstance(outcome, Refusal):
            self.recorder.refused(event.name, outcome.code, outcome.reason)
        return outcome

    async def publish(self, key: VersionKey, token: str) -> VersionState:
        """Drive the reserved version to PUBLISHED or FAILED_CLEAN; answers which (RFC 3.2-3.4).

        Raises EngineSilent when an engine's results stay unknown.
        """

        def wanted(r: Registry) -> tuple[Order | Commit | Abort, ...]:
            return publisher.next_orders(r, token, self.clock()) if r.unresolved else ()

        await self._run(wanted)
        return self.host.registry.versions[key].state

    async def reclaim(self, key: VersionKey) -> VersionState:
        """Claim the version's reclaim and drive it until every engine confirmed (RFC 5).

        Raises EngineSilent when an engine's results stay unknown.
        """

        def wanted(r: Registry) -> tuple[Order | ClaimReclaim, ...]:
            return tuple(
                order
                for order in reclaimer.next_orders(r, self.clock())
                if isinstance(order, Unload | ClaimReclaim) and order.key == key
            )

        await self._run(wanted)
        return self.host.registry.versions[key].state

    async def _run(self, wanted: Callable[[Registry], tuple[Order | Commit | Abort | ClaimReclaim, ...]]) -> None:
        running: _Running = {}
        unknown: Counter[_Name] = Counter()
        try:
            while True:
                decided = False
                for order in wanted(self.host.registry):
                    if isinstance(order, Commit | Abort | ClaimReclaim):
                        decided = self.apply(order).ok or decided
                    else:
                        self._start(running, order, unknown)
                if decided:
                    continue
                if not running:
                    return
                done, _ = await asyncio.wait(running.values(), return_when=asyncio.FIRST_COMPLETED)
                for name in [name for name, task in running.items() if task in done]:
                    events = running.pop(name).result()
                    if all(isinstance(event, TargetUnknown | ReclaimUnknown) for event in events):
                        unknown[name] += 1
                    for event in events:
                        self.apply(event)
        finally:
            await asyncio.gather(*running.values(), return_exceptions=True)

    def _start(self, running: _Running, order: Order, unknown: Counter[_Name]) -> None:
        about = getattr(order, "reclaim_id", "") or str(getattr(order, "number", ""))
        name = (type(order).__name__, getattr(order, "engine", ""), about)
        if name in running:
            return
        if unknown[name] > self.repeats:
            who = name[1] or "the transport"
            raise EngineSilent(f"{who} does not say how {name[0]} {about} ended, asked {unknown[name]} times")
        pause = min(_LONGEST_PAUSE_S, _PAUSE_S * 2 ** (unknown[name] - 1)) if unknown[name] else 0.0
        running[name] = asyncio.create_task(self._carry_out(order, pause))

    async def _carry_out(self, order: Order, pause_s: float) -> Sequence[Event]:
        await asyncio.sleep(pause_s)
        if isinstance(order, SendBucket):
            return await self.send(order) if self.send is not None else ()
        event = await self.engines[order.engine].carry_out(order)
        return () if event is None else (event,)

"""The services of `lorafsm_asyncio` around one registry, wherever it lives; what is refused goes into the record."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from attrs import define

from gpu_e2e.guarded import RecordedEngine
from gpu_e2e.recording import Recorder
from lorafsm.errors import LoraFsmError
from lorafsm.events import EngineJoin, Event
from lorafsm.identity import VersionKey
from lorafsm.lifecycle import TargetState, VersionState
from lorafsm.outcomes import Outcome, Refusal
from lorafsm.records import Version
from lorafsm_asyncio import Publisher, Reclaimer, RegistryClient, Send, SessionBinder, ask_engines
from lorafsm_asyncio.questions import StatusAt, VersionOf

PREFIX = "shard-0"  # of the owner of all sessions; random digits follow
_LOOK_S = 1.0  # the longest wait before a condition is looked at again


@define
class Services:
    """Publisher, reclaimer and session binder of one deployment.

    `clock` gives ms for events; `send` carries out SendBucket, and is None where engines read the artifact store.
    """

    client: RegistryClient
    binder: SessionBinder
    engines: Mapping[str, RecordedEngine]
    recorder: Recorder
    clock: Callable[[], int]
    send: Send | None = None

    async def apply(self, event: Event) -> Outcome:
        """Tell the registry, and note what it refuses."""
        outcome = await self.client.apply(event)
        self.told(event, outcome)
        return outcome

    def told(self, event: Event, outcome: Outcome) -> None:
        """Note a refusal; the services call this with all that they tell the registry."""
        if isinstance(outcome, Refusal):
            self.recorder.refused(event.name, str(outcome.code), outcome.reason)

    async def publish(self, key: VersionKey, token: str) -> VersionState:
        """Drive the reserved version to PUBLISHED or FAILED_CLEAN; answers which (RFC 3.2-3.4).

        Raises EngineSilent when an engine's results stay unknown.
        """
        publisher = Publisher(self.client, self.engines, send=self.send, clock=self.clock, told=self.told)
        await publisher.publish(key, token)
        return (await self.version(key)).state

    async def reclaim(self, key: VersionKey) -> VersionState:
        """Claim the version's reclaim and drive it until every engine confirmed (RFC 5).

        Raises Refused (SESSION_REFS_HELD, NOT_RETIRED), and EngineSilent when an engine's results stay unknown.
        """
        return await Reclaimer(self.client, self.engines, clock=self.clock, told=self.told).reclaim(key)

    async def version(self, key: VersionKey) -> Version:
        """The registry's record of a version that was reserved."""
        version = await self.client.ask(VersionOf(key))
        if version is None:
            raise LoraFsmError("UNKNOWN_VERSION", f"{key} was never reserved", "key")
        return version

    async def targets(self) -> dict[str, TargetState]:
        """Where each engine stands in the attempt that is not resolved yet; empty where there is none."""
        attempt = (await self.client.ask(StatusAt(self.clock()))).attempt
        return {} if attempt is None else {line.engine: line.state for line in attempt.targets}

    async def until(self, condition: Callable[[], Awaitable[bool]], deadline_s: float = 60.0) -> None:
        """Wait, with the registry's changes, until the condition holds; TimeoutError when it does not in time."""
        seen = -1
        async with asyncio.timeout(deadline_s):
            while not await condition():
                seen = await self.client.changed(seen, _LOOK_S)


@asynccontextmanager
async def attended(
    client: RegistryClient,
    epoch: str,
    engines: Mapping[str, RecordedEngine],
    recorder: Recorder,
    base: str,
    clock: Callable[[], int],
) -> AsyncIterator[Services]:
    """Join the engines, which have proved themselves, and keep an owner's lease; its sessions end with the block."""
    for name, engine in engines.items():
        incarnation = engine.guarded.incarnation
        await client.apply(EngineJoin(engine=name, incarnation=incarnation, seq=0, base_fingerprint=base, now=clock()))
    ask = ask_engines(lambda: [engine.guarded for engine in engines.values()])
    binder = await SessionBinder.start(client, epoch, PREFIX, clock=clock, ask=ask)
    lease = asyncio.create_task(binder.run(), name="lease")
    try:
        yield Services(client, binder, engines, recorder, clock)
    finally:
        lease.cancel()
        await asyncio.gather(lease, return_exceptions=True)
    await binder.stop()

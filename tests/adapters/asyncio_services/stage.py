"""The stage of these stories: a journaled registry, engines, a trainer that reserves, and services on tasks."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from lorafsm.events import ArtifactStored, EngineJoin, Reserve
from lorafsm.identity import VersionKey, lora_name
from lorafsm.invariants import check
from lorafsm.manifest import Plan, store_plan
from lorafsm.outcomes import Outcome, Reserved
from lorafsm.records import Config, Registry
from lorafsm_asyncio import Executor, LocalClient, Notice, Publisher, SessionBinder
from lorafsm_journal import JournaledRegistry
from tests.adapters.asyncio_services.agent_process import BASE, EngineHost
from tests.adapters.asyncio_services.fault_injection import FaultInjectingClient
from tests.adapters.asyncio_services.virtual_time import now_ms

EPOCH = "e1"
A, B, C, D = (VersionKey(EPOCH, number) for number in range(1, 5))

kept: list[Path] = []
"""A folder here keeps the journals of the stages that end meanwhile, for whoever put it there."""


def digest_of(key: VersionKey) -> str:
    return hashlib.sha256(str(key).encode()).hexdigest()


def name_of(key: VersionKey) -> str:
    return lora_name(key, digest_of(key))


class Stage:
    """What all players share.  Every registry that a test has seen satisfied the invariants when it ends."""

    def __init__(self, host: JournaledRegistry, engines: int) -> None:
        self.journaled = host
        self.client = FaultInjectingClient(LocalClient(host))
        self.hosts = {f"E{n}": EngineHost(f"E{n}", EPOCH, slots=host.registry.config.capacity) for n in range(engines)}
        self.executors: dict[str, Executor] = {}
        self.notices: list[Notice] = []
        self.services: set[asyncio.Task[Any]] = set()

    # -- the registry -----------------------------------------------------------------------------------

    @property
    def r(self) -> Registry:
        return self.journaled.registry

    def state(self, key: VersionKey) -> str:
        return str(self.r.versions[key].state)

    def refs(self, key: VersionKey) -> int:
        return self.r.versions[key].session_refs

    async def tell(self, event: Any) -> Outcome:
        """Without any fault between."""
        return await self.client.inner.apply(event)

    async def until(self, condition: Callable[[], bool], within_s: float = 600.0) -> None:
        """Wait in virtual time: look after every event of the registry, and now and then between."""
        pause, seen = 0.01, -1
        async with asyncio.timeout(within_s):
            while not condition():
                seen = await self.client.inner.changed(seen, pause)
                pause = min(0.25, pause * 1.1)

    # -- the fleet --------------------------------------------------------------------------------------

    def start_engines(self) -> None:
        for host in self.hosts.values():
            host.start()

    async def join_engines(self) -> None:
        """All engines run and are members, as a watcher would have made them."""
        self.start_engines()
        for name, host in self.hosts.items():
            self.executors[name] = host.connect(1)
            joined = EngineJoin(engine=name, incarnation=1, seq=0, base_fingerprint=BASE, now=now_ms())
            assert (await self.tell(joined)).ok

    # -- the trainer ------------------------------------------------------------------------------------

    async def reserve(self, key: VersionKey, token: str = "", buckets: int = 0) -> Outcome:
        plan = Plan(buckets, digest_of(key)) if buckets else store_plan()
        asked = Reserve(key=key, digest=digest_of(key), plan=plan, token=token or f"token-{key}", now=now_ms())
        outcome = await self.tell(asked)
        if isinstance(outcome, Reserved):
            assert (await self.tell(ArtifactStored(key=key, digest=digest_of(key), now=now_ms()))).ok
        return outcome

    async def publish(self, key: VersionKey) -> Outcome:
        """Reserve and drive to the end, without any fault between."""
        assert isinstance(await self.reserve(key), Reserved)
        publisher = Publisher(self.client.inner, self.executors, clock=now_ms, notify=self.notices.append)
        return await publisher.publish(key, f"token-{key}")

    # -- services ---------------------------------------------------------------------------------------

    def on(self, service: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(service)
        self.services.add(task)
        return task

    async def kill(self, task: asyncio.Task[Any]) -> None:
        """The service's process ends: nothing of it runs on."""
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        self.services.discard(task)

    async def binder(self, prefix: str = "shard-0", **more: Any) -> SessionBinder:
        more = {"clock": now_ms, "notify": self.notices.append, **more}
        return await SessionBinder.start(self.client, EPOCH, prefix, **more)

    def codes(self) -> list[str]:
        return [notice.code for notice in self.notices]


@asynccontextmanager
async def stage(*, engines: int = 2, published: VersionKey | None = A, **config: Any) -> AsyncIterator[Stage]:
    """A stage with its curtain: members joined and `published` the default, unless it is None."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Config(base_fingerprint=BASE, **config)
        journal = Path(folder) / "journal.db"
        with JournaledRegistry.open(journal, settings, EPOCH) as host:
            world = Stage(host, engines)
            if published is not None:
                await world.join_engines()
                await world.publish(published)
                world.client.applied.clear()
            try:
                yield world
                assert check(world.r) == ()
                ended = [task for task in world.services if task.done() and not task.cancelled() and task.exception()]
                assert not ended, f"a service died: {ended[0].exception()!r}"
            finally:
                for task in tuple(world.services):
                    await world.kill(task)
        for place in kept:
            shutil.copy(journal, place / f"{len(list(place.iterdir()))}.journal")

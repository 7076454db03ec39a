"""One guarded engine under a registry with all its services, and a process that is killed where a test says."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import psutil
from attrs import define, field
from safetensors.torch import save

from lorafsm import events as ev
from lorafsm.engine.answers import Pending
from lorafsm.engine.orders import ArmBucket, ReceiveBucket
from lorafsm.events import ArtifactStored, AuthorizeBucket, Event, Reserve
from lorafsm.identity import VersionKey
from lorafsm.manifest import Plan
from lorafsm.orders import Begin, End, Order, SendBucket
from lorafsm.outcomes import Aborted, Committed, Outcome, Reserved
from lorafsm_asyncio import Executor, LocalClient, Notice, Publisher, Seat, SessionBinder, ask_engines, run_services
from lorafsm_asyncio.owner import monotonic_ms
from lorafsm_asyncio.questions import Routable, answer
from lorafsm_journal import JournaledRegistry
from lorafsm_sglang.guard import GuardedEngine
from lorafsm_sglang.tiny_model import lora_fixture
from lorafsm_torch import Snapshot, freeze_snapshot
from tests.engines.guard.house import EPOCH_ID, Guarded, until

ENGINE = "E0"
WAIT_S = 120.0
BUCKETS = 2

_version_ids = iter(range(1, 1000))

Reached = Callable[[str], Awaitable[None]]
"""Told each phase of a publication right after the engine reached it."""


async def _nothing(phase: str) -> None:
    return None


@define
class Watched:
    """An executor that says which phase has been reached; its answer is lost where the engine died meanwhile."""

    inner: GuardedEngine
    house: Deployment

    async def carry_out(self, order: Order) -> Event | None:
        if isinstance(order, Begin):
            await self.house.reached("before begin")
        if isinstance(order, End) and self.house.stops_in == "loading":
            return await self._stuck_in_the_load(order)
        event = await self.inner.carry_out(order)
        if isinstance(event, ev.Prepared):
            await self.house.reached("PREPARED")
        elif isinstance(event, ev.Ready):
            await self.house.reached("READY")
        return event if self.house.guarded.process.alive() else None

    async def _stuck_in_the_load(self, order: End) -> Event | None:
        """The scheduler stands still, so the load of this order does not come back."""
        root = psutil.Process(self.house.guarded.process.pid)
        [scheduler] = [each for each in root.children(recursive=True) if "scheduler" in " ".join(each.cmdline())]
        scheduler.send_signal(signal.SIGSTOP)
        end = asyncio.create_task(self.inner.carry_out(order))
        await until(lambda: self._verified_and_loading(order), "the load has begun", WAIT_S)
        await self.house.reached("loading")
        return await end

    async def _verified_and_loading(self, order: End) -> bool:
        done = [op["op"] for op in await self.inner.operations() if op["lora_name"] == order.lora_name]
        works = (await self.inner.status()).get("works", ())
        return "verify" in done and any((w["number"], w["state"]) == (order.number, "LOADING") for w in works)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@define
class Deployment:
    """A registry in this process and its services over the engine of `guarded`."""

    guarded: Guarded
    host: JournaledRegistry
    client: LocalClient
    engines: dict[str, Executor] = field(factory=dict)
    notices: list[Notice] = field(factory=list)
    story: list[tuple[str, tuple[str, ...]]] = field(factory=list)  # event, where the default could be served after it
    stops_in: str = ""
    reached: Reached = _nothing
    snapshots: dict[VersionKey, Snapshot] = field(factory=dict)
    binder: Any = None

    # -- what the registry says -----------------------------------------------------------------------

    @property
    def r(self) -> Any:
        return self.host.registry

    def state(self, key: VersionKey) -> str:
        return str(self.r.versions[key].state)

    def name(self, key: VersionKey) -> str:
        return str(self.r.versions[key].lora_name)

    def routable(self, key: VersionKey) -> tuple[str, ...]:
        return answer(self.r, Routable(key))

    def told(self, event: Event, outcome: Outcome) -> None:
        default = self.r.default
        self.story.append((event.name, self.routable(default) if default else ()))

    async def until(self, condition: Callable[[], Any], what: str) -> None:
        """Wait for the registry to move until the condition holds."""
        seen = -1
        try:
            async with asyncio.timeout(WAIT_S):
                while not condition():
                    seen = await self.client.changed(seen, 1.0)
        except TimeoutError:
            raise AssertionError(f"after {WAIT_S:.0f} s still not: {what}; {self.notices[-5:]}") from None

    # -- publication ----------------------------------------------------------------------------------

    async def publish(self, letter: str) -> tuple[VersionKey, Committed | Aborted]:
        """The next version, in buckets over HTTP, to its commit or abort.  Repairs read the store."""
        await self.until(lambda: len(self.r.slots) < 2 and not self.r.unresolved, "a slot is free")
        key = VersionKey(EPOCH_ID, next(_version_ids))
        snapshot = self.snapshots[key] = freeze_snapshot(*reversed(lora_fixture(letter)))
        plan = Plan(BUCKETS, "d" * 64)
        token, now = f"{'t' * 31}{key.version_id}", monotonic_ms()
        reserve = Reserve(key=key, digest=snapshot.digest, plan=plan, token=token, now=now)
        reserved = await self.client.apply(reserve)
        assert isinstance(reserved, Reserved), reserved
        await asyncio.to_thread(self.guarded.store.put, key, snapshot)
        assert (await self.client.apply(ArtifactStored(key=key, digest=snapshot.digest, now=now))).ok

        async def send(order: SendBucket) -> Sequence[Event]:
            return await self._send(order, key, token)

        publisher = Publisher(self.client, self.engines, send=send, notify=self.notices.append, told=self.told)
        return key, await publisher.publish(key, token)

    async def _send(self, order: SendBucket, key: VersionKey, token: str) -> Sequence[Event]:
        """Arm, authorise, deliver: half of the tensors each."""
        engine: Any = self.engines.get(ENGINE)
        if engine is None:
            return ()
        to = {"epoch": EPOCH_ID, "engine": ENGINE, "incarnation": engine.incarnation}
        to |= {"number": order.number, "bucket": order.bucket}
        if await engine.give(ArmBucket(**to)) is None:
            return ()
        await self.reached("armed")
        allowed = AuthorizeBucket(number=order.number, token=token, bucket=order.bucket, now=monotonic_ms())
        if not (await self.client.apply(allowed)).ok:
            return ()
        snapshot = self.snapshots[key]
        half = {name: snapshot.tensors[name] for name in list(snapshot.tensors)[order.bucket :: BUCKETS]}
        config = {"config": snapshot.manifest.config_json} if order.bucket == 0 else None
        assert isinstance(await engine.give(ReceiveBucket(**to)), Pending | None)
        await engine.send_bucket(order.number, order.bucket, save(half, config))
        event = await engine.carry_out(ReceiveBucket(**to))
        if isinstance(event, ev.BucketDone):
            await self.reached("received")
        return () if event is None else (event,)

    # -- the end of a process -------------------------------------------------------------------------

    async def kill(self) -> None:
        """kill -9, the whole tree; waited for."""
        await asyncio.to_thread(self.guarded.process.kill)


@asynccontextmanager
async def deployed(guarded: Guarded, host: JournaledRegistry) -> AsyncIterator[Deployment]:
    """All services run, an owner of sessions holds its lease; nothing is left running at the end."""
    it = Deployment(guarded, host, LocalClient(host))

    def connect(incarnation: int) -> Any:
        engine = GuardedEngine(
            ENGINE, incarnation, guarded.process.url, guarded.token, monotonic_ms, wait_s=5, deadline_s=10
        )
        return Watched(engine, it) if incarnation else engine

    def exited() -> str | None:
        return None if guarded.process.alive() else "its process has ended"

    async with asyncio.TaskGroup() as group:
        services = group.create_task(
            run_services(
                it.client,
                EPOCH_ID,
                [Seat(ENGINE, connect, exited)],
                it.engines,
                notify=it.notices.append,
                told=it.told,
            )
        )
        await it.until(lambda: ENGINE in it.r.engines and ENGINE in it.engines, "the engine joins")
        it.binder = await SessionBinder.start(
            it.client, EPOCH_ID, "shard-0", ask=ask_engines(lambda: list(it.engines.values())), notify=it.notices.append
        )
        lease = group.create_task(it.binder.run())
        try:
            yield it
        finally:
            await it.binder.stop()
            for task in (lease, services):
                task.cancel()


__all__ = ["BUCKETS", "ENGINE", "Deployment", "deployed"]

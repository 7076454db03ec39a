"""The asyncio services over the real actor: its process is killed (-9) while they are at work, and so is a shard's."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import ray
from attrs import define, field, frozen

from lorafsm.events import ArtifactStored, BindFirst, CloseAndRelease, Heartbeat, Recovered, Reserve
from lorafsm.identity import SessionKey, VersionKey, lora_name
from lorafsm.lifecycle import VersionState
from lorafsm.manifest import store_plan
from lorafsm.outcomes import Binding, Closed, Code, Committed, Refusal, Reserved
from lorafsm.records import Config
from lorafsm_asyncio import (
    Call,
    Executor,
    Notice,
    Publisher,
    Reclaimer,
    Refused,
    Seat,
    SessionBinder,
    ask_engines,
    run_services,
)
from lorafsm_asyncio.questions import Fleet, VersionOf
from lorafsm_journal import Journal
from lorafsm_ray import AsyncClient, Patience, connect, start_registry, stop_registry
from lorafsm_tla.trace import check_journal
from tests.adapters.asyncio_services.agent_process import BASE, EngineHost
from tests.adapters.journal_stories import ENGINES, EPOCH, life, publish
from tests.ray.programs import NEW, OLD, require_story_was_told
from tests.spec.test_tla_trace import needs_tlc

NAME = "served"
LONG = Patience(deadline_s=120)
SESSIONS, TURNS = 3, 2
KILLED_AFTER = (8, 24, 40)  # accepted events: in the first publication, among the binds, among the closes


@define
class World:
    """Two engines, whose agents are real; services; a trainer and two shards, each with a client of its own."""

    hosts: dict[str, EngineHost]
    engines: dict[str, Executor] = field(factory=dict)
    notices: list[Notice] = field(factory=list)
    new_is_there: asyncio.Event = field(factory=asyncio.Event)

    async def publish(self, client: AsyncClient, key: VersionKey) -> None:
        digest, token = f"{key.version_id:064x}", f"token-{key}"
        reserve = Reserve(key=key, digest=digest, plan=store_plan(), token=token)
        assert isinstance(await client.apply(reserve), Reserved)
        assert (await client.apply(ArtifactStored(key=key, digest=digest))).ok
        publisher = Publisher(client, self.engines, notify=self.notices.append)
        assert isinstance(await publisher.publish(key, token, patience=None), Committed)

    async def trainer(self, client: AsyncClient) -> None:
        """Both versions, once the engines have joined and the old one is held; then the old one goes by itself."""

        async def joined() -> bool:
            return len(await client.ask(Fleet())) == len(self.hosts)

        async def held() -> bool:
            version = await client.ask(VersionOf(OLD))
            return version is not None and version.session_refs == SESSIONS

        async def reclaimed() -> bool:
            version = await client.ask(VersionOf(OLD))
            return version is not None and version.state is VersionState.RECLAIMED

        await until(client, joined)
        await self.publish(client, OLD)
        await until(client, held)
        await self.publish(client, NEW)
        self.new_is_there.set()
        await until(client, reclaimed)

    async def shard(self, client: AsyncClient, prefix: str, *, late: bool) -> list[Binding]:
        """A process with sessions that hold the old version over the commit of the new one, or that come after it."""
        ask = ask_engines(lambda: [host.connect(1) for host in self.hosts.values()])
        binder = await SessionBinder.start(client, EPOCH, prefix, ask=ask, notify=self.notices.append)
        lease = asyncio.create_task(binder.run())
        if late:
            await self.new_is_there.wait()
        try:
            return list(await asyncio.gather(*(self.session(client, binder, n) for n in range(SESSIONS))))
        finally:
            assert (binder.live, binder.unreleased) == (0, frozenset())
            lease.cancel()
            await asyncio.gather(lease, return_exceptions=True)
            await binder.stop()

    async def session(self, client: AsyncClient, binder: SessionBinder, number: int) -> Binding:
        key = binder.open("agent")
        first, second = await asyncio.gather(bound(client, binder, key), bound(client, binder, key))
        assert first == second
        await self.turn(binder, key, number)
        await self.new_is_there.wait()
        for _ in range(1, TURNS):
            await self.turn(binder, key, number)
        assert await binder.begin_close(key) == ()
        closed = await asyncio.gather(binder.close_and_release(key), binder.close_and_release(key))
        assert all(isinstance(one, Closed) and one.released in (first.key, None) for one in closed)
        with pytest.raises(Refused):
            await binder.ensure(key)
        return first

    async def turn(self, binder: SessionBinder, key: SessionKey, number: int) -> None:
        host, rid = self.hosts[ENGINES[number % len(ENGINES)]], uuid4().hex
        async with binder.attempt(key, rid) as attempt:
            assert host.serves(rid, attempt.lora_path), "the engine serves exactly the bound version"
            host.running().end(rid)
            attempt.heard(Call(200, {"meta_info": {}}))


async def bound(client: AsyncClient, binder: SessionBinder, key: SessionKey) -> Binding:
    seen = 0
    while True:
        try:
            return await binder.ensure(key)
        except Refused as refused:
            if refused.code != Code.NO_PUBLISHED_VERSION:
                raise
            seen = await client.changed(seen, 5.0)


async def until(client: AsyncClient, condition: Callable[[], Awaitable[bool]]) -> None:
    seen = 0
    async with asyncio.timeout(120):
        while not await condition():
            seen = await client.changed(seen, 1.0)


async def killer(client: AsyncClient) -> None:
    for accepted in KILLED_AFTER:
        seen = 0
        while seen < accepted:
            seen = await client.changed(seen, 5.0)
        os.kill((await client.live()).pid, signal.SIGKILL)
    await client.live()  # it is back


@frozen
class Told:
    """What the story left."""

    journal: Path
    bindings: list[list[Binding]]
    hosts: dict[str, EngineHost]


async def story(journal: Path) -> Told:
    world = World({name: EngineHost(name, EPOCH) for name in ENGINES})
    for host in world.hosts.values():
        host.start().load_s = 0.01
    seats = [Seat(name, host.connect, host.exited) for name, host in world.hosts.items()]
    services = asyncio.create_task(
        run_services(connect(NAME, LONG), EPOCH, seats, world.engines, notify=world.notices.append)
    )
    try:
        _, _, *bindings = await asyncio.gather(
            killer(connect(NAME, LONG)),
            world.trainer(connect(NAME, LONG)),
            world.shard(connect(NAME, LONG), "early", late=False),
            world.shard(connect(NAME, LONG), "late", late=True),
        )
    finally:
        services.cancel()
        await asyncio.gather(services, return_exceptions=True)
    assert "SERVICE_FAILED" not in {notice.code for notice in world.notices}, world.notices
    return Told(journal, bindings, world.hosts)


@pytest.fixture(scope="module")
def told(cluster: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    journal = tmp_path_factory.mktemp("served") / "journal"
    start_registry(NAME, Config(base_fingerprint=BASE), journal, epoch=EPOCH)
    try:
        yield asyncio.run(story(journal))
    finally:
        stop_registry(NAME)


def test_binder_publisher_and_reclaimer_finish_and_nothing_happens_twice(told: Told):
    early, late = told.bindings
    assert [binding.key for binding in [*early, *late]] == [OLD] * SESSIONS + [NEW] * SESSIONS
    require_story_was_told(told.journal, [*early, *late])
    with Journal.read(told.journal) as journal:
        assert sum(isinstance(row.event, Recovered) for row in journal.rows()) == len(KILLED_AFTER)
    for host in told.hosts.values():
        old, new = (lora_name(key, f"{key.version_id:064x}") for key in (OLD, NEW))
        assert (host.running().loads, host.running().unloads) == ([old, new], [old])


@needs_tlc
def test_tlc_accepts_their_journal(told: Told):
    assert "are a behaviour of LoraRegistry.tla" in check_journal(told.journal)


@ray.remote(num_cpus=0)
class Shard:
    """A process with one bound session, whose lease it keeps."""

    async def bind(self, name: str) -> tuple[SessionKey, int]:
        self.binder = await SessionBinder.start(connect(name), EPOCH, "shard", margin_ms=100)
        self.lease = asyncio.create_task(self.binder.run())
        session = self.binder.open("agent")
        assert (await self.binder.ensure(session)).key == OLD
        return session, os.getpid()


async def test_a_shard_that_is_killed_loses_its_lease_its_refs_return_and_its_late_calls_are_refused(started):
    lease_ms = 3_000
    started("shards", config=Config(owner_lease=lease_ms))
    client = connect("shards", LONG)
    for event in [*life()[1:3], *publish(1, 1, 0)]:
        assert (await client.apply(event)).ok, event
    shard = Shard.remote()
    session, pid = await shard.bind.remote("shards")

    async def kept() -> bool:
        counts = {(event, code): count for event, code, count in (await client.live()).counts}
        return counts.get(("Heartbeat", "OK"), 0) >= 3

    async def refs() -> int:
        version = await client.ask(VersionOf(OLD))
        assert version is not None
        return version.session_refs

    async def returned() -> bool:
        return await refs() == 0

    reclaimer = asyncio.create_task(Reclaimer(client, {}).run())
    try:
        await until(client, kept)
        assert await refs() == 1, "kept over more than a lease"
        os.kill(pid, signal.SIGKILL)
        await until(client, returned)
    finally:
        reclaimer.cancel()
        await asyncio.gather(reclaimer, return_exceptions=True)
    for late in (BindFirst(session=session), Heartbeat(owner=session.owner)):
        assert (await client.apply(late)).code is Code.SESSION_EXPIRED
    assert isinstance(await client.apply(CloseAndRelease(session=session)), Closed | Refusal)
    assert await refs() == 0

"""The services over `StagedEngine`s and the real HTTP port: what the main job's own driver does, these do as well."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from attrs import define

from lorafsm.events import ArtifactStored, BindFirst, EngineJoin, OwnerUp, Reserve
from lorafsm.identity import SessionKey, VersionKey, lora_name
from lorafsm.invariants import check
from lorafsm.manifest import store_plan
from lorafsm.outcomes import Aborted, Committed, Reserved
from lorafsm.records import Config
from lorafsm_asyncio import EngineSilent, LocalClient, Publisher, Reclaimer, Refused
from lorafsm_journal import Journal, JournaledRegistry
from tests.adapters.engine_stand_in import BASE, DONE_BUT_LOST, LOAD, NEVER_ARRIVED, UNLOAD, Beside, Ticks, beside

A, B, C = (VersionKey("e1", number) for number in (1, 2, 3))


def digest(key: VersionKey) -> str:
    return f"{key.version_id:064x}"


def name(key: VersionKey) -> str:
    return lora_name(key, digest(key))


@define
class Trainer:
    """A registry, two executors, and the two services that a trainer uses."""

    host: JournaledRegistry
    client: LocalClient
    engines: dict[str, Beside]
    clock: Ticks

    def executors(self) -> dict:
        return {engine: it.staged for engine, it in self.engines.items()}

    async def publish(self, key: VersionKey) -> Committed | Aborted:
        token = f"token-{key}"
        asked = Reserve(key=key, digest=digest(key), plan=store_plan(), token=token, now=self.clock())
        assert isinstance(await self.client.apply(asked), Reserved)
        assert (await self.client.apply(ArtifactStored(key=key, digest=digest(key)))).ok
        return await Publisher(self.client, self.executors(), clock=self.clock).publish(key, token, patience=None)

    async def reclaim(self, key: VersionKey) -> str:
        return await Reclaimer(self.client, self.executors(), clock=self.clock).reclaim(key, patience=5)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[JournaledRegistry]:
    with JournaledRegistry.open(tmp_path / "journal", Config(base_fingerprint=BASE), "e1") as opened:
        yield opened
        assert check(opened.registry) == ()
        final = opened.registry
    with Journal.read(tmp_path / "journal") as journal:
        assert journal.recover() == final


@pytest.fixture
async def trainer(host: JournaledRegistry, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Trainer]:
    monkeypatch.setattr("lorafsm_asyncio.errands._PAUSE_S", 0.001)
    monkeypatch.setattr("lorafsm_asyncio.errands._LONGEST_PAUSE_S", 0.002)
    client = LocalClient(host)
    async with AsyncExitStack() as stack:
        engines = {engine: beside(engine) for engine in ("E0", "E1")}
        for engine, it in engines.items():
            stack.push_async_callback(it.port.aclose, 0.1)
            await client.apply(EngineJoin(engine=engine, incarnation=1, seq=0, base_fingerprint=BASE))
        yield Trainer(host, client, engines, Ticks())


async def test_a_version_is_published_with_one_load_an_engine(trainer: Trainer):
    assert isinstance(await trainer.publish(A), Committed)
    loads = [[adapter for route, adapter in it.engine.calls if route == LOAD] for it in trainer.engines.values()]
    assert loads == [[name(A)], [name(A)]]


async def test_a_failure_on_one_engine_is_cleaned_on_both(trainer: Trainer):
    await trainer.publish(A)
    trainer.engines["E1"].engine.will(LOAD, "rank 64 exceeds the maximum")
    done = await trainer.publish(B)
    assert isinstance(done, Aborted)
    assert "E1: " in done.reason
    assert "rank 64 exceeds the maximum" in done.reason
    for it in trainer.engines.values():
        assert set(it.engine.adapters) == {name(A)}
        assert it.copies.names == {name(A)}
    assert isinstance(await trainer.publish(C), Committed), "the slot is free again"


async def test_a_retired_version_is_reclaimed_from_both(trainer: Trainer):
    await trainer.publish(A)
    await trainer.publish(B)
    assert await trainer.reclaim(A) == "RECLAIMED"
    for it in trainer.engines.values():
        assert set(it.engine.adapters) == {name(B)}
        assert it.engine.count()[UNLOAD] == 1


async def test_what_sessions_hold_is_not_reclaimed(trainer: Trainer):
    await trainer.publish(A)
    await trainer.client.apply(OwnerUp(owner="o1"))
    await trainer.client.apply(BindFirst(session=SessionKey("e1", "o1", 0)))
    await trainer.publish(B)
    with pytest.raises(Refused) as caught:
        await trainer.reclaim(A)
    assert caught.value.code == "SESSION_REFS_HELD"
    assert trainer.engines["E0"].engine.count()[UNLOAD] == 0


@pytest.mark.parametrize("fault", [DONE_BUT_LOST, NEVER_ARRIVED])
async def test_an_unload_whose_answer_was_lost_is_repeated_and_confirmed(trainer: Trainer, fault: str):
    await trainer.publish(A)
    await trainer.publish(B)
    trainer.engines["E1"].engine.will(UNLOAD, fault)
    assert await trainer.reclaim(A) == "RECLAIMED"
    assert [it.engine.count()[UNLOAD] for it in trainer.engines.values()] == [1, 2]


async def test_a_silent_engine_is_named_and_its_slot_stays_held(trainer: Trainer):
    await trainer.publish(A)
    await trainer.publish(B)
    trainer.engines["E1"].engine.will(UNLOAD, *[NEVER_ARRIVED] * 50)
    rows = len(trainer.host.journal)
    with pytest.raises(EngineSilent, match="E1 does not say how Unload reclaim-e1-1 ended"):
        await trainer.reclaim(A)
    assert trainer.host.registry.versions[A].state == "RECLAIMING"
    assert len(trainer.host.registry.slots) == 2
    assert len(trainer.host.journal) - rows <= 3, "the claim, E0's receipt, and one word about E1"
    trainer.engines["E1"].engine.faults.clear()
    assert await trainer.reclaim(A) == "RECLAIMED", "a later one goes on from the registry"


async def test_an_unknown_load_ends_clean_once_the_lease_is_over(trainer: Trainer):
    trainer.engines["E1"].engine.will(LOAD, DONE_BUT_LOST)
    began = trainer.clock

    class Later(Ticks):
        def __call__(self) -> int:
            self.now += 1 + 30_000 * (trainer.engines["E1"].engine.count()[LOAD] > 0)
            return self.now

    trainer.clock = Later()
    trainer.clock.now = began.now
    done = await trainer.publish(A)
    assert isinstance(done, Aborted)
    assert "DEADLINE" in done.reason
    assert [it.engine.adapters for it in trainer.engines.values()] == [{}, {}]

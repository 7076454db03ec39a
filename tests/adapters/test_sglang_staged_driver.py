"""Registry, journal, policies, driver and executors together, over two stand-in engines: a publication as a whole."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from gpu_e2e.driver import Driver, EngineSilent
from gpu_e2e.recording import Recorder
from lorafsm import events as ev
from lorafsm.identity import SessionKey, VersionKey, lora_name
from lorafsm.invariants import check
from lorafsm.manifest import store_plan
from lorafsm.outcomes import Outcome, Refusal, Reserved
from lorafsm.records import Config
from lorafsm_journal import Journal, JournaledRegistry
from tests.adapters.engine_stand_in import BASE, DONE_BUT_LOST, LOAD, NEVER_ARRIVED, UNLOAD, Beside, Ticks, beside

A, B, C = (VersionKey("e1", n) for n in (1, 2, 3))


def digest(key: VersionKey) -> str:
    return f"{key.version_id:064x}"


def name(key: VersionKey) -> str:
    return lora_name(key, digest(key))


@pytest.fixture
def host(tmp_path: Path) -> Iterator[JournaledRegistry]:
    with JournaledRegistry.open(tmp_path / "journal", Config(base_fingerprint=BASE), "e1") as opened:
        yield opened
        assert check(opened.registry) == ()
        final = opened.registry
    with Journal.read(tmp_path / "journal") as journal:
        assert journal.recover() == final


@pytest.fixture
async def engines() -> AsyncIterator[dict[str, Beside]]:
    async with AsyncExitStack() as stack:
        them = {engine: beside(engine) for engine in ("E0", "E1")}
        for it in them.values():
            stack.push_async_callback(it.port.aclose, 0.1)
        yield them


@pytest.fixture
def driver(host: JournaledRegistry, engines: dict[str, Beside], monkeypatch: pytest.MonkeyPatch) -> Driver:
    monkeypatch.setattr("gpu_e2e.driver._PAUSE_S", 0.001)
    monkeypatch.setattr("gpu_e2e.driver._LONGEST_PAUSE_S", 0.002)
    driver = Driver(host, {n: it.staged for n, it in engines.items()}, Recorder(), Ticks(), repeats=5)
    for engine in engines:
        driver.apply(ev.EngineJoin(engine=engine, incarnation=1, seq=0, base_fingerprint=BASE))
    return driver


def done(driver: Driver, event: Any) -> Outcome:
    outcome = driver.apply(event)
    assert not isinstance(outcome, Refusal), outcome
    return outcome


async def publish(driver: Driver, key: VersionKey) -> str:
    token = f"token-{key}"
    assert isinstance(
        done(driver, ev.Reserve(key=key, digest=digest(key), plan=store_plan(), token=token, now=driver.clock())),
        Reserved,
    )
    done(driver, ev.ArtifactStored(key=key, digest=digest(key)))
    return await driver.publish(key, token)


def loads(it: Beside) -> list[str]:
    return [adapter for route, adapter in it.engine.calls if route == LOAD]


async def test_a_version_is_published_with_one_load_an_engine(driver: Driver, engines: dict[str, Beside]):
    assert await publish(driver, A) == "PUBLISHED"
    assert driver.host.registry.default == A
    assert [loads(it) for it in engines.values()] == [[name(A)], [name(A)]]


async def test_a_failure_on_one_engine_is_cleaned_on_both(driver: Driver, engines: dict[str, Beside]):
    """E0 is READY, E1 refuses: FAILED_CLEAN, nothing is left on either, the default is what it was (RFC 3.4)."""
    await publish(driver, A)
    engines["E1"].engine.will(LOAD, "rank 64 exceeds the maximum")
    assert await publish(driver, B) == "FAILED_CLEAN"
    version = driver.host.registry.versions[B]
    assert "rank 64 exceeds the maximum" in version.failure
    assert "E1" in version.failure
    assert driver.host.registry.default == A
    for it in engines.values():
        assert set(it.engine.adapters) == {name(A)}
        assert it.copies.names == {name(A)}
    assert await publish(driver, C) == "PUBLISHED", "the slot is free again"


async def test_a_retired_version_is_reclaimed_from_both(driver: Driver, engines: dict[str, Beside]):
    await publish(driver, A)
    await publish(driver, B)
    assert await driver.reclaim(A) == "RECLAIMED"
    for it in engines.values():
        assert set(it.engine.adapters) == {name(B)}
        assert it.engine.count()[UNLOAD] == 1


async def test_what_sessions_hold_is_not_reclaimed(driver: Driver, engines: dict[str, Beside]):
    await publish(driver, A)
    done(driver, ev.OwnerUp(owner="o1"))
    done(driver, ev.BindFirst(session=SessionKey("e1", "o1", 0)))
    await publish(driver, B)
    assert await driver.reclaim(A) == "RETIRED"
    assert engines["E0"].engine.count()[UNLOAD] == 0


@pytest.mark.parametrize("fault", [DONE_BUT_LOST, NEVER_ARRIVED])
async def test_an_unload_whose_answer_was_lost_is_repeated_and_confirmed(
    driver: Driver, engines: dict[str, Beside], fault
):
    await publish(driver, A)
    await publish(driver, B)
    engines["E1"].engine.will(UNLOAD, fault)
    assert await driver.reclaim(A) == "RECLAIMED"
    assert [it.engine.count()[UNLOAD] for it in engines.values()] == [1, 2]


async def test_a_silent_engine_is_named_and_its_slot_stays_held(driver: Driver, engines: dict[str, Beside]):
    """The driver gives up after so many repeats; the registry does not (rule 16)."""
    await publish(driver, A)
    await publish(driver, B)
    engines["E1"].engine.will(UNLOAD, *[NEVER_ARRIVED] * 50)
    rows = len(driver.host.journal)
    with pytest.raises(EngineSilent, match="E1 does not say how Unload reclaim-e1-1 ended"):
        await driver.reclaim(A)
    assert driver.host.registry.versions[A].state == "RECLAIMING"
    assert len(driver.host.registry.slots) == 2
    assert len(driver.host.journal) - rows < 12, "the journal does not grow without end"
    engines["E1"].engine.faults.clear()
    assert await driver.reclaim(A) == "RECLAIMED", "a later driver goes on from the registry"


async def test_an_unknown_load_ends_clean_once_the_lease_is_over(driver: Driver, engines: dict[str, Beside]):
    """Nobody knows whether E1 loaded it: asked until the lease is over, then aborted and removed on both."""
    engines["E1"].engine.will(LOAD, DONE_BUT_LOST)
    clock = driver.clock
    assert isinstance(clock, Ticks)

    class Later(Ticks):
        def __call__(self) -> int:
            self.now += 1 + 30_000 * (engines["E1"].engine.count()[LOAD] > 0)
            return self.now

    driver.clock = Later()
    driver.clock.now = clock.now
    assert await publish(driver, A) == "FAILED_CLEAN"
    assert "DEADLINE" in driver.host.registry.versions[A].failure
    assert [it.engine.adapters for it in engines.values()] == [{}, {}]

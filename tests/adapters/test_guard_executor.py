"""The executor beside an engine that fails in ways that a real one rarely does."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field

from lorafsm.engine import answers as an
from lorafsm.engine import new_agent
from lorafsm.engine.orders import Acquire, Release
from lorafsm.errors import LoraFsmError
from lorafsm.identity import VersionKey, lora_name
from lorafsm.manifest import store_plan
from lorafsm.orders import AskStatus, Begin, Cleanup, End, Load, TakeInventory, Unload, UnloadStray
from lorafsm_sglang.guard.executor import Executor, Loaded
from lorafsm_sglang.guard.stash import Stash

WHO: dict[str, Any] = {"epoch": "e1", "engine": "E0", "incarnation": 7}


def version(number: int) -> dict[str, Any]:
    key, digest = VersionKey("e1", number), f"{number:x}" * 64
    return {**WHO, "key": key, "digest": digest, "lora_name": lora_name(key, digest)}


A, B = version(1), version(2)
NAME = A["lora_name"]
UNLOAD = Unload(**A, reclaim_id="r1")


@define
class Side:
    """What SGLang does, as told."""

    held: set[str] = field(factory=set)
    calls: Counter[str] = field(factory=Counter)
    loads: Any = None  # a Loaded or an exception, once
    probes: str | None = None
    counts: list[Any] = field(factory=list)  # None, a number or an exception; 0 when used up
    unloads: list[Any] = field(factory=list)  # False or an exception: it stays
    gate: asyncio.Event | None = None
    deaf: bool = False

    async def load(self, name: str, folder: Path) -> Loaded:
        self.calls["load"] += 1
        if self.gate is not None:
            await self.gate.wait()
        told, self.loads = self.loads, None
        if told is None or getattr(told, "present", False):
            self.held.add(name)
        if isinstance(told, Exception):
            raise told
        return told or Loaded(True)

    async def probe(self, name: str) -> str | None:
        self.calls["probe"] += 1
        return self.probes

    async def unregister(self, name: str) -> None:
        self.calls["unregister"] += 1

    async def count(self, name: str) -> int | None:
        told = self.counts.pop(0) if self.counts else 0
        if isinstance(told, Exception):
            raise told
        return told

    async def unload(self, name: str) -> bool:
        self.calls["unload"] += 1
        told = self.unloads.pop(0) if self.unloads else True
        if isinstance(told, Exception):
            raise told
        if told:
            self.held.discard(name)
        return bool(told)

    async def listing(self) -> frozenset[str] | None:
        return None if self.deaf else frozenset(self.held)


@define
class Source:
    """Copies on the host: names, and what is wrong with them."""

    held: set[str] = field(factory=set)
    missing: set[str] = field(factory=set)
    damaged: set[str] = field(factory=set)

    def fetch(self, key: VersionKey, digest: str) -> None:
        name = lora_name(key, digest)
        if name in self.missing:
            raise LoraFsmError("ARTIFACT_MISSING", "not in the store")
        self.held.add(name)

    def check(self, name: str, digest: str) -> Path:
        if name in self.damaged:
            raise LoraFsmError("ARTIFACT_INVALID", "other bytes", "tensor.x")
        assert name in self.held
        return Path("/host") / name

    def discard(self, name: str) -> None:
        self.held.discard(name)


@pytest.fixture
def side() -> Side:
    return Side()


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def engine(side: Side, source: Source, tmp_path: Path) -> Executor:
    agent = new_agent("E0", 7, "e1", slots=2, base_fingerprint="b" * 64)
    return Executor(agent, side, source, Stash(tmp_path, "E0"))


async def published(engine: Executor, what: dict[str, Any], number: int) -> an.Answer:
    assert isinstance(await engine.carry_out(Begin(**what, number=number, plan=store_plan()), 5), an.Prepared)
    return await engine.carry_out(End(**what, number=number), 5)


async def test_a_life_of_a_version(engine: Executor, side: Side, source: Source):
    ready = await published(engine, A, 1)
    assert isinstance(ready, an.Ready)
    assert isinstance(await engine.carry_out(UNLOAD, 5), an.Unloaded)
    assert [each.op for each in engine.operations] == ["fetch", "verify", "load", "probe", "unload"]
    assert (side.held, source.held) == (set(), set())


async def test_an_order_without_time_is_answered_at_once(engine: Executor, side: Side):
    side.gate = asyncio.Event()
    pending = await published_without_waiting(engine)
    assert isinstance(pending, an.Pending)
    side.gate.set()
    assert isinstance(await engine.carry_out(End(**A, number=1), 5), an.Ready)
    assert side.calls["load"] == 1


async def published_without_waiting(engine: Executor) -> an.Answer:
    await engine.carry_out(Begin(**A, number=1, plan=store_plan()), 5)
    return await engine.carry_out(End(**A, number=1), 0)


@pytest.mark.parametrize("fault", ["missing", "damaged"])
async def test_bytes_that_are_not_the_version_never_reach_sglang(engine, side: Side, source: Source, fault: str):
    getattr(source, fault).add(NAME)
    failed = await published(engine, A, 1)
    assert isinstance(failed, an.Failed)
    assert failed.reason
    assert side.calls["load"] == 0


@pytest.mark.parametrize(
    "told, left",
    [
        (Loaded(False, "rank too large"), False),
        (Loaded(True, "one rank failed"), True),
        (RuntimeError("the socket closed"), False),
    ],
)
async def test_a_load_that_fails_says_what_is_left(engine: Executor, side: Side, told: Any, left: bool):
    """Failed either way; what is still there has to be ordered away, and is unloaded once (RFC 3.4)."""
    side.loads = told
    assert isinstance(await published(engine, A, 1), an.Failed)
    assert (NAME in engine.agent.adapters) is left
    assert isinstance(await engine.carry_out(Cleanup(**A, number=1), 5), an.Cleaned)
    assert side.calls["unload"] == left
    assert side.calls["probe"] == 0


async def test_a_load_of_unknown_end_is_taken_as_there(engine: Executor, side: Side):
    side.loads, side.deaf = RuntimeError("the socket closed"), True
    assert isinstance(await published(engine, A, 1), an.Failed)
    assert NAME in engine.agent.adapters


async def test_a_probe_that_fails_is_no_ready(engine: Executor, side: Side):
    side.probes = "the probe ended with abort"
    failed = await published(engine, A, 1)
    assert isinstance(failed, an.Failed)
    refused = engine.give(Acquire(rid="r", lora_name=NAME))
    assert isinstance(refused, an.Refused)
    assert isinstance(await engine.carry_out(Cleanup(**A, number=1), 5), an.Cleaned)


@pytest.mark.parametrize("count", [-1, None, RuntimeError("no counter")])
async def test_a_count_that_is_no_count_asks_for_quarantine(engine: Executor, side: Side, count: Any):
    """Negative or unreadable is not zero: nothing is unloaded, the registry is told (rule 13)."""
    await published(engine, A, 1)
    side.counts = [count, count]
    assert isinstance(await engine.carry_out(UNLOAD, 1), an.Unknown)
    assert side.calls["unload"] == 0
    assert engine.quarantine
    assert NAME in engine.quarantine[0].reason


async def test_a_count_that_leaks_keeps_it_waiting_until_it_is_zero(engine: Executor, side: Side):
    await published(engine, A, 1)
    side.counts = [1, 1, 1]
    assert isinstance(await engine.carry_out(UNLOAD, 5), an.Unloaded)
    assert side.calls["unload"] == 1


@pytest.mark.parametrize("told", [False, RuntimeError("the socket closed")])
async def test_an_unload_that_leaves_it_there_is_unknown_until_a_listing(engine: Executor, side: Side, told: Any):
    await published(engine, A, 1)
    side.unloads = [told]
    assert isinstance(await engine.carry_out(UNLOAD, 1), an.Unknown)
    side.held.clear()
    assert isinstance(await asking_again(engine), an.Unloaded)
    assert side.calls["unload"] == 1


async def asking_again(engine: Executor) -> an.Answer:
    for _ in range(5):
        answer = await engine.carry_out(UNLOAD, 1)
        await engine.settle_tasks()
        if not isinstance(answer, an.Unknown):
            break
    return answer


async def test_a_drain_of_one_version_holds_up_no_other(engine: Executor, side: Side):
    await published(engine, A, 1)
    assert isinstance(engine.give(Acquire(rid="r", lora_name=NAME)), an.Acquired)
    waiting = asyncio.create_task(engine.carry_out(UNLOAD, 5))
    await asyncio.sleep(0)
    assert isinstance(await published(engine, B, 2), an.Ready)
    assert not waiting.done()
    engine.give(Release(rid="r"))
    assert isinstance(await waiting, an.Unloaded)


async def test_a_cleanup_during_a_load_waits_for_it_and_removes_it(engine: Executor, side: Side):
    side.gate = asyncio.Event()
    await published_without_waiting(engine)
    cleanup = asyncio.create_task(engine.carry_out(Cleanup(**A, number=1), 5))
    await asyncio.sleep(0.01)
    assert not cleanup.done()
    side.gate.set()
    assert isinstance(await cleanup, an.Cleaned)
    assert (side.held, side.calls["unload"], side.calls["probe"]) == (set(), 1, 0)


async def test_a_caller_that_goes_away_changes_nothing(engine: Executor, side: Side):
    side.gate = asyncio.Event()
    await published_without_waiting(engine)
    caller = asyncio.create_task(engine.carry_out(End(**A, number=1), 5))
    await asyncio.sleep(0)
    caller.cancel()
    side.gate.set()
    await engine.settle_tasks()
    assert isinstance(await engine.carry_out(AskStatus(**WHO, number=1)), an.Ready)
    assert side.calls["load"] == 1


async def test_an_inventory_is_what_sglang_lists(engine: Executor, side: Side):
    """A stranger with a managed name shows and can be ordered away; what vanished is not told (S50, S52)."""
    await published(engine, A, 1)
    stranger = B["lora_name"]
    side.held = {stranger}
    seen = await engine.carry_out(TakeInventory(**WHO))
    assert isinstance(seen, an.Inventory)
    assert (seen.residents, seen.foreign) == (frozenset(), frozenset({stranger}))
    stray = UnloadStray(**WHO, operation_key="k1", lora_name=stranger, number=0)
    assert isinstance(await engine.carry_out(stray, 5), an.StrayGone)
    assert side.held == set()


async def test_a_repair_fetches_proves_and_probes(engine: Executor, source: Source):
    ready = await engine.carry_out(Load(**A, number=3), 5)
    assert isinstance(ready, an.Ready)
    assert ready.repair
    source.missing.add(B["lora_name"])
    failed = await engine.carry_out(Load(**B, number=4), 5)
    assert isinstance(failed, an.Failed)
    assert failed.repair

"""Two executors, a sender and a registry in one process: a real transfer over gloo, and what ends one early."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field

torch = pytest.importorskip("torch", reason="torch is missing: pip install 'lorafsm[torch]'")

from safetensors.torch import load_file  # noqa: E402

from lorafsm import events as ev  # noqa: E402
from lorafsm.engine import answers as an  # noqa: E402
from lorafsm.engine import new_agent  # noqa: E402
from lorafsm.engine.orders import ArmBucket, EngineOrder, ReceiveBucket  # noqa: E402
from lorafsm.engine.report import as_event  # noqa: E402
from lorafsm.identity import VersionKey  # noqa: E402
from lorafsm.orders import Begin, Cleanup, End, SendBucket  # noqa: E402
from lorafsm.outcomes import Aborted, Committed, Reserved  # noqa: E402
from lorafsm.records import Config  # noqa: E402
from lorafsm_asyncio import LocalClient, Publisher  # noqa: E402
from lorafsm_journal import JournaledRegistry  # noqa: E402
from lorafsm_sglang.guard.executor import Executor, Loaded  # noqa: E402
from lorafsm_sglang.guard.stash import Stash  # noqa: E402
from lorafsm_sglang.tiny_model import lora_fixture  # noqa: E402
from lorafsm_torch import Snapshot, freeze_snapshot  # noqa: E402
from lorafsm_torch.bucket_sender import BucketSender, Step  # noqa: E402
from lorafsm_torch.deadlines import Deadlines  # noqa: E402
from lorafsm_torch.sender import Lobby  # noqa: E402
from tests.adapters.test_guard_executor import Side, Source  # noqa: E402

NAMES = ("E0", "E1")
TOKEN = "t" * 32
CAP = 32 << 10
LIMITS = Deadlines(join=10, arm=5, broadcast=5, receive=10, settle=5)


def clock() -> int:
    return 1


@define
class Reading(Side):
    """It reads what it is told to load."""

    loaded: list[dict[str, Any]] = field(factory=list)

    async def load(self, name: str, folder: Path) -> Loaded:
        self.loaded.append(load_file(folder / "adapter_model.safetensors"))
        return await Side.load(self, name, folder)


@define
class Engine:
    """A guarded engine without SGLang: its executor, reached without HTTP."""

    name: str
    executor: Executor
    side: Reading
    sender: list[BucketSender]
    before: Any = None

    async def give(self, order: EngineOrder, wait_s: float = 0.0) -> an.Answer:
        if self.before is not None:
            await self.before(order)
        transfer = self.sender[0].announcement(order) if isinstance(order, Begin) else None
        return await self.executor.carry_out(order, wait_s, transfer)

    async def carry_out(self, order: Any) -> ev.Event | None:
        return as_event(await self.give(order, 5.0), self.name, clock())

    def stash(self) -> list[str]:
        return [path.name for path in self.executor.stash_folder.glob("received/*")]


@define
class House:
    """Everything of one publication."""

    client: LocalClient
    engines: dict[str, Engine]
    sender: BucketSender
    publisher: Publisher
    steps: list[Step]

    async def reserve(self, version: int, snapshot: Snapshot) -> Reserved:
        key = VersionKey("e1", version)
        plan = self.sender.plan(snapshot)
        outcome = await self.client.apply(ev.Reserve(key=key, digest=snapshot.digest, plan=plan, token=TOKEN, now=1))
        assert isinstance(outcome, Reserved), outcome
        await self.client.apply(ev.ArtifactStored(key=key, digest=snapshot.digest, now=1))
        return outcome


def snapshot_of(letter: str) -> Snapshot:
    tensors, config = lora_fixture(letter)
    return freeze_snapshot(config, tensors)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    sender: list[BucketSender] = []
    engines = {name: engine(name, tmp_path, sender) for name in NAMES}
    with JournaledRegistry.open(tmp_path / "journal", Config(), "e1") as host:
        client, steps = LocalClient(host), []
        for name in NAMES:
            await client.apply(ev.EngineJoin(engine=name, incarnation=7, seq=0, base_fingerprint="", now=1))
        sender.append(BucketSender(Lobby(), engines, client.apply, clock, cap=CAP, deadlines=LIMITS, told=steps.append))
        yield House(client, engines, sender[0], Publisher(client, engines, send=sender[0].send, clock=clock), steps)
        for each in engines.values():
            await each.executor.settle_tasks()


def engine(name: str, folder: Path, sender: list[BucketSender]) -> Engine:
    side = Reading()
    executor = Executor(new_agent(name, 7, "e1"), side, Source(), Stash(folder / name, name))
    return Engine(name, executor, side, sender)


async def test_a_version_comes_in_buckets_and_is_loaded_from_shared_memory(house: House):
    snapshot = snapshot_of("A")
    reserved = await house.reserve(1, snapshot)
    with house.sender.attempt(reserved, TOKEN, snapshot) as announcement:
        assert isinstance(await house.publisher.publish(reserved.key, TOKEN), Committed)
    buckets = len(announcement.plan.buckets)
    assert buckets == 3
    for each in house.engines.values():
        [loaded] = each.side.loaded
        assert freeze_snapshot(snapshot.config, loaded).digest == snapshot.digest
        assert each.stash() == []
    done = sorted((step.engine, step.op, step.bucket) for step in house.steps if step.ok)
    assert done == [(name, op, k) for name in NAMES for op in ("arm", "bucket") for k in range(buckets)]
    journaled = [row.event.bucket for row in house.client.host.journal.rows() if row.event.name == "authorize_bucket"]
    assert journaled == [0, 1, 2]


async def test_an_engine_that_is_fenced_refuses_to_arm_and_nothing_is_sent(house: House):
    snapshot = snapshot_of("A")
    reserved = await house.reserve(1, snapshot)

    async def fence(order: EngineOrder) -> None:
        if isinstance(order, ArmBucket):
            what = {"key": reserved.key, "digest": snapshot.digest, "lora_name": reserved.lora_name}
            await house.engines["E1"].executor.carry_out(
                Cleanup(epoch="e1", engine="E1", incarnation=7, number=reserved.number, **what)
            )

    house.engines["E1"].before = fence
    with house.sender.attempt(reserved, TOKEN, snapshot):
        outcome = await house.publisher.publish(reserved.key, TOKEN)
    assert isinstance(outcome, Aborted)
    assert outcome.reason.startswith("bucket 0: ARM_REFUSED [E1]")
    assert not [row for row in house.client.host.journal.rows() if row.event.name == "authorize_bucket"]
    assert [each.stash() for each in house.engines.values()] == [[], []]
    house.engines["E1"].before = None
    await publishes(house, 2)


async def publishes(house: House, version: int) -> None:
    """The next publication, over the same engines."""
    snapshot = snapshot_of("B")
    key = VersionKey("e1", version)
    reserve = ev.Reserve(key=key, digest=snapshot.digest, plan=house.sender.plan(snapshot), token="u" * 32, now=1)
    reserved = await house.client.apply(reserve)
    assert isinstance(reserved, Reserved), reserved
    await house.client.apply(ev.ArtifactStored(key=key, digest=snapshot.digest, now=1))
    with house.sender.attempt(reserved, "u" * 32, snapshot):
        assert isinstance(await house.publisher.publish(key, "u" * 32), Committed)


async def test_a_cleanup_ends_a_receive_that_nobody_will_complete(house: House):
    snapshot = snapshot_of("A")
    reserved = await house.reserve(1, snapshot)
    what = {"key": reserved.key, "digest": snapshot.digest, "lora_name": reserved.lora_name}
    to = {"epoch": "e1", "engine": "E0", "incarnation": 7, "number": reserved.number}
    e0 = house.engines["E0"]
    with house.sender.attempt(reserved, TOKEN, snapshot) as announcement:
        assert isinstance(await e0.give(Begin(**to, **what, plan=announcement.plan.plan)), an.Prepared)
        assert isinstance(await e0.give(ArmBucket(**to, bucket=0)), an.Armed)
        assert isinstance(await e0.give(ReceiveBucket(**to, bucket=0)), an.Pending)
        assert e0.stash() == [str(reserved.number)]
        assert isinstance(await e0.give(Cleanup(**to, **what), 5.0), an.Cleaned)
    assert e0.stash() == []
    assert e0.side.calls["load"] == 0


async def test_a_registry_that_does_not_authorise_is_obeyed(house: House):
    """Another publisher took the attempt over (rule 5): no byte leaves."""
    snapshot = snapshot_of("A")
    reserved = await house.reserve(1, snapshot)
    await house.client.apply(ev.Takeover(key=reserved.key, token="v" * 32, handover=TOKEN, now=1))
    with house.sender.attempt(reserved, TOKEN, snapshot) as announcement:
        for name, each in house.engines.items():
            begin = Begin(
                epoch="e1", engine=name, incarnation=7, number=reserved.number, key=reserved.key,
                digest=snapshot.digest, lora_name=reserved.lora_name, plan=announcement.plan.plan,
            )  # fmt: skip
            event = await each.carry_out(begin)
            await house.client.apply(event)
        [abort] = await house.sender.send(SendBucket(number=reserved.number, bucket=0, engines=NAMES))
    assert isinstance(abort, ev.Abort)
    assert "the registry did not authorise it: BAD_TOKEN" in abort.reason
    assert [step.op for step in house.steps] == ["arm", "arm"]


async def test_an_attempt_that_is_not_open_here_sends_nothing(house: House):
    assert await house.sender.send(SendBucket(number=9, bucket=0, engines=NAMES)) == ()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: {**d, "engines": [["E0", 8], ["E1", 7]]}, "ENGINE_RESTARTED"),
        (lambda d: {**d, "number": d["number"] + 1}, "OPERATION_CONFLICT"),
        (lambda d: {**d, "cap": 4096}, "PLAN_MISMATCH"),
        (lambda d: {**d, "tensors": d["tensors"][:-1]}, "DIGEST_MISMATCH"),
        (lambda d: {**d, "format": "other"}, "transfer.format"),
        (lambda d: [], "transfer"),
    ],
)
async def test_an_announcement_that_is_not_what_was_begun_is_a_failure_of_the_target(house: House, change, says: str):
    snapshot = snapshot_of("A")
    reserved = await house.reserve(1, snapshot)
    e0 = house.engines["E0"]
    with house.sender.attempt(reserved, TOKEN, snapshot) as announcement:
        begin = Begin(
            epoch="e1", engine="E0", incarnation=7, number=reserved.number, key=reserved.key,
            digest=snapshot.digest, lora_name=reserved.lora_name, plan=announcement.plan.plan,
        )  # fmt: skip
        answer = await e0.executor.carry_out(begin, 0.0, change(announcement.render()))
    assert isinstance(answer, an.Refused)
    assert says in answer.reason
    assert isinstance(as_event(answer, "E0", 1), ev.TargetFailed)
    assert e0.stash() == []
    assert not e0.executor.agent.works


async def test_what_the_agent_refuses_leaves_no_memory_behind(house: House):
    """A late begin of an attempt that was cleaned up: the announcement is good, the number is over."""
    snapshot = snapshot_of("A")
    reserved = await house.reserve(1, snapshot)
    e0 = house.engines["E0"]
    what = {"key": reserved.key, "digest": snapshot.digest, "lora_name": reserved.lora_name}
    to = {"epoch": "e1", "engine": "E0", "incarnation": 7, "number": reserved.number}
    with house.sender.attempt(reserved, TOKEN, snapshot) as announcement:
        await e0.give(Cleanup(**to, **what))
        late = await e0.give(Begin(**to, **what, plan=announcement.plan.plan))
    assert isinstance(late, an.Refused)
    assert late.code == "STALE_ATTEMPT"
    assert e0.stash() == []


async def test_a_received_file_that_somebody_removed_reaches_no_engine(house: House):
    snapshot = snapshot_of("A")
    reserved = await house.reserve(1, snapshot)
    e1 = house.engines["E1"]

    async def remove(order: EngineOrder) -> None:
        if isinstance(order, End):
            for file in e1.executor.stash_folder.glob("received/*/adapter_model.safetensors"):
                await asyncio.to_thread(file.unlink)

    e1.before = remove
    with house.sender.attempt(reserved, TOKEN, snapshot):
        outcome = await house.publisher.publish(reserved.key, TOKEN)
    assert isinstance(outcome, Aborted)
    assert "E1: BAD_INPUT [stash]: somebody removed the file" in outcome.reason
    assert (e1.side.calls["load"], house.engines["E0"].side.calls["load"]) == (0, 1)

"""Buckets over torch.distributed into two real guarded engines, while they generate, and what ends a transfer."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import secrets
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from attrs import define, evolve, field, frozen

pytest.importorskip("torch", reason="not installed: torch (`make test` installs it)")

from lorafsm import events as ev
from lorafsm.engine.answers import Answer
from lorafsm.engine.orders import ArmBucket, EngineOrder
from lorafsm.identity import VersionKey, lora_name
from lorafsm.lifecycle import AttemptState, VersionState
from lorafsm.orders import AskStatus, Cleanup
from lorafsm.records import Config
from lorafsm_asyncio import LocalClient, Publisher, Reclaimer
from lorafsm_journal import JournaledRegistry
from lorafsm_sglang import OK, EnginePort, EngineProcess, Sampling, wait_all_ready
from lorafsm_sglang.cpu_profile import cpu_environment, cpu_flags
from lorafsm_sglang.guard import GuardedEngine, guard_environment, write_token
from lorafsm_sglang.guard.fingerprint import base_fingerprint
from lorafsm_sglang.guard.settings import TOKEN_HEADER
from lorafsm_sglang.guard.wire import LARGEST_ORDER, write_order
from lorafsm_sglang.tiny_model import VOCAB_SIZE, lora_fixture, write_model
from lorafsm_torch import ArtifactStore, freeze_snapshot
from lorafsm_torch.bucket_sender import BucketSender, Step
from lorafsm_torch.deadlines import Deadlines
from lorafsm_torch.rank_zero import RegistryPublisher, driven_by
from lorafsm_torch.ranks import Flag, StepResult
from lorafsm_torch.sender import Lobby
from tests.engines.conftest import DEADLINE_S

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.timeout(600)]

NAMES = ("E0", "E1")
CAP = 32 << 10  # three buckets of an adapter of 75 KiB
LONG = Sampling(max_new_tokens=1500, ignore_eos=True)
PROMPT = list(range(40, 72))
PUBLISH_S = 90.0


def clock() -> int:
    return time.time_ns() // 1_000_000


@frozen
class House:
    """Two guarded engines of one deployment epoch."""

    processes: dict[str, EngineProcess]
    epoch: str
    store: Path
    token: str
    base: str


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Started together, stopped by pid."""
    if missing := [name for name in ("transformers", "psutil", "sglang") if importlib.util.find_spec(name) is None]:
        pytest.skip(f"not installed: {', '.join(missing)} (`make test` installs them)")
    folder = tmp_path_factory.mktemp("transport")
    model, token, epoch = write_model(folder / "model"), secrets.token_hex(16), f"t{secrets.token_hex(3)}"

    def process(name: str) -> EngineProcess:
        environment = guard_environment(
            cpu_environment(), name, epoch, store=folder / "store", host=folder / name,
            token_file=write_token(folder / f"token-{name}", token),
        )  # fmt: skip
        return EngineProcess(name, cpu_flags(model), environment, folder / f"{name}.log", module="lorafsm_sglang.serve")

    processes = {name: process(name) for name in NAMES}
    try:
        for each in processes.values():
            each.start()
        wait_all_ready(tuple(processes.values()), 1.5 * DEADLINE_S)
        yield House(processes, epoch, folder / "store", token, base_fingerprint(model))
    finally:
        for each in processes.values():
            each.stop()


@define
class Held:
    """An engine's agent behind its wire, with something done to the engine right after or before an order."""

    engine: GuardedEngine
    before: Callable[[EngineOrder], Awaitable[None]] | None = None
    after: Callable[[EngineOrder], Awaitable[None]] | None = None

    async def give(self, order: EngineOrder, wait_s: float = 0.0) -> Answer | None:
        if self.before is not None:
            await self.before(order)
        answer = await self.engine.give(order, wait_s)
        if self.after is not None:
            await self.after(order)
        return answer


@define
class Deployment:
    """A registry, the publisher of rank 0 and its sender, over the running engines."""

    house: House
    host: JournaledRegistry
    engines: dict[str, GuardedEngine]
    agents: dict[str, Held]
    publisher: RegistryPublisher
    client: LocalClient
    steps: list[Step] = field(factory=list)

    def publish(self, version: int, letter: str) -> Awaitable[StepResult]:
        """As rank 0 of a training job does: blocking, on a thread."""
        tensors, config = lora_fixture(letter)
        return asyncio.to_thread(self.publisher.publish, version, (config, tensors), PUBLISH_S)

    def key(self, version: int) -> VersionKey:
        return VersionKey(self.house.epoch, version)

    def name(self, version: int, letter: str) -> str:
        tensors, config = lora_fixture(letter)
        return lora_name(self.key(version), freeze_snapshot(config, tensors).digest)

    def attempt(self, version: int) -> Any:
        registry = self.host.registry
        return registry.attempts[registry.versions[self.key(version)].number]


@pytest.fixture(scope="module")
def registry(house: House, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JournaledRegistry]:
    """One for all tests here: an engine fences the numbers of the ones before."""
    config = Config(base_fingerprint=house.base)
    with JournaledRegistry.open(tmp_path_factory.mktemp("registry") / "journal", config, house.epoch) as host:
        yield host


@pytest.fixture
async def deployment(house: House, registry: JournaledRegistry) -> Deployment:
    sender: BucketSender
    engines = {
        name: GuardedEngine(name, 0, process.url, house.token, clock, announce=lambda begin: sender.announcement(begin))
        for name, process in house.processes.items()
        if process.alive()
    }
    for name, engine in engines.items():
        proof = await engine.attest()
        await engine.aclose()
        engines[name] = evolve(engine, incarnation=proof.incarnation, client=None)
        if name not in registry.registry.engines:
            registry.apply(
                ev.EngineJoin(
                    engine=name, incarnation=proof.incarnation, seq=0, base_fingerprint=house.base, now=clock()
                )
            )
    client, steps = LocalClient(registry), []
    agents = {name: Held(engine) for name, engine in engines.items()}
    sender = BucketSender(
        Lobby(), agents, client.apply, clock, cap=CAP, told=steps.append,
        deadlines=Deadlines(join=20, arm=10, broadcast=10, receive=20, settle=10),
    )  # fmt: skip
    drive = driven_by(Publisher(client, engines, send=sender.send, clock=clock), sender)
    publisher = RegistryPublisher(
        client, house.epoch, ArtifactStore(house.store), drive, clock, plan=sender.plan, share_s=20
    )
    return Deployment(house, registry, engines, agents, publisher, client, steps)


def left_in(stash: Path) -> list[Path]:
    return list(stash.glob("received/*"))


async def free_a_slot(deployment: Deployment) -> None:
    """Reclaim what nobody holds, as the service of a deployment does."""
    engines = {
        name: GuardedEngine(name, engine.incarnation, engine.url, engine.token, clock)
        for name, engine in deployment.engines.items()
    }
    task = asyncio.create_task(Reclaimer(deployment.client, engines, clock=clock).run())
    try:
        async with asyncio.timeout(60):
            while len(deployment.host.registry.slots) > 1:
                await deployment.client.changed(-1, 0.05)
                await asyncio.sleep(0.05)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for engine in engines.values():
            await engine.aclose()


async def test_two_engines_receive_buckets_while_they_generate(deployment: Deployment, house: House):
    """A, then B while both engines generate under A; each bucket armed on both before it is sent; bytes are B's."""
    assert (await deployment.publish(1, "A")).flag is Flag.OK
    ports = {name: EnginePort(process.url, vocab_size=VOCAB_SIZE) for name, process in house.processes.items()}
    a, b = deployment.name(1, "A"), deployment.name(2, "B")
    try:
        before = {name: await port.score(PROMPT, a, uuid.uuid4().hex) for name, port in ports.items()}
        running = [asyncio.create_task(p.generate(PROMPT, a, LONG, uuid.uuid4().hex)) for p in ports.values()]
        async with asyncio.timeout(60):
            while any(port.in_flight(a) == 0 for port in ports.values()):  # noqa: ASYNC110 - nothing signals it
                await asyncio.sleep(0.01)
        done = await deployment.publish(2, "B")
        assert (done.flag, done.reason) == (Flag.OK, f"{house.epoch}-2 is the default, revision 2")
        assert all(isinstance(each, OK) for each in await asyncio.gather(*running))
        after = {name: await port.score(PROMPT, b, uuid.uuid4().hex) for name, port in ports.items()}
        for name in NAMES:
            assert isinstance(before[name], OK)
            assert isinstance(after[name], OK)
        assert len({each.data.output_logprobs for each in after.values()}) == 1, "the engines serve different B"
        assert before["E0"].data.output_logprobs != after["E0"].data.output_logprobs
    finally:
        await asyncio.gather(*(port.aclose() for port in ports.values()))
    steps = [step for step in deployment.steps if step.key == deployment.key(2)]
    assert sorted((s.engine, s.op, s.bucket) for s in steps) == [
        (name, op, k) for name in NAMES for op in ("arm", "bucket") for k in range(3)
    ]
    for k in range(3):
        armed = max(s.end for s in steps if (s.op, s.bucket) == ("arm", k))
        assert all(s.end > armed for s in steps if (s.op, s.bucket) == ("bucket", k))
    attempt = deployment.attempt(2)
    assert (attempt.authorized, {t.buckets_done for t in attempt.targets.values()}) == (3, {3})
    for engine in deployment.engines.values():
        status = await GuardedEngine(engine.engine, engine.incarnation, engine.url, engine.token, clock).status()
        assert left_in(Path(status["stash"])) == [], "a stash outlived its load"


async def test_an_announcement_comes_with_a_begin_and_with_nothing_else(deployment: Deployment, house: House):
    incarnation = deployment.engines["E0"].incarnation
    order = write_order(AskStatus(epoch=house.epoch, engine="E0", incarnation=incarnation, number=999))
    async with httpx.AsyncClient(base_url=house.processes["E0"].url, timeout=60, trust_env=False) as raw:
        for more, field_ in (({"transfer": {}}, "transfer"), ({"padding": " " * LARGEST_ORDER}, "body")):
            answer = await raw.post("/lorafsm/orders", headers={TOKEN_HEADER: house.token}, json={**order, **more})
            assert (answer.status_code, answer.json()["error"]["field"]) == (400, field_)


async def test_an_engine_that_refuses_to_arm_ends_the_attempt_before_anything_is_sent(deployment: Deployment):
    await free_a_slot(deployment)

    async def fenced(order: EngineOrder) -> None:
        """Somebody cleans up on E1 behind the publisher's back: its number is over there."""
        if isinstance(order, ArmBucket):
            version = deployment.host.registry.versions[deployment.key(3)]
            what = {"key": version.key, "digest": version.digest, "lora_name": version.lora_name}
            to = {"epoch": order.epoch, "engine": "E1", "incarnation": order.incarnation, "number": order.number}
            await deployment.agents["E1"].engine.give(Cleanup(**to, **what))

    deployment.agents["E1"].before = fenced
    start = time.monotonic()
    failed = await deployment.publish(3, "C")
    assert failed.flag is Flag.FAILED_CLEAN
    assert "ARM_REFUSED [E1]" in failed.reason
    assert "STALE_ATTEMPT" in failed.reason
    assert deployment.attempt(3).authorized == 0
    assert [step for step in deployment.steps if step.op == "bucket"] == []
    assert deployment.host.registry.versions[deployment.key(3)].state is VersionState.FAILED_CLEAN
    assert time.monotonic() - start < 60
    # The same engines, without a restart: a new attempt of the same version, then it is the default.
    deployment.agents["E1"].before = None
    assert (await deployment.publish(3, "C")).flag is Flag.OK


async def test_an_engine_killed_after_it_armed_costs_one_attempt(deployment: Deployment, house: House):
    """The broadcast ends with its dead member; the dead incarnation is proof of absence; E0 goes on alone."""
    await free_a_slot(deployment)
    incarnation = deployment.engines["E1"].incarnation

    async def killed(order: EngineOrder) -> None:
        if isinstance(order, ArmBucket) and order.bucket == 1:
            house.processes["E1"].kill()

    async def declared_dead() -> None:
        """What a watcher does that saw the process end."""
        while deployment.attempt(4).state is AttemptState.OPEN:  # noqa: ASYNC110 - nothing signals it here
            await asyncio.sleep(0.02)
        assert not house.processes["E1"].alive()
        deployment.host.apply(
            ev.EngineDead(engine="E1", incarnation=incarnation, evidence="its pid is gone", now=clock())
        )

    deployment.agents["E1"].after = killed
    publication = asyncio.create_task(deployment.publish(4, "D"))
    async with asyncio.timeout(60):
        while deployment.key(4) not in deployment.host.registry.versions:  # noqa: ASYNC110 - nothing signals it
            await asyncio.sleep(0.01)
        await declared_dead()
    failed = await publication
    assert failed.flag is Flag.FAILED_CLEAN, failed
    # A small bucket may fit into the sockets' buffers: then it is the acknowledgement that does not come.
    assert re.search("bucket 1: (BROADCAST_FAILED|NOT_RECEIVED)", failed.reason), failed.reason
    assert deployment.host.registry.versions[deployment.key(4)].state is VersionState.FAILED_CLEAN
    assert deployment.attempt(4).authorized == 2
    # E0 was not restarted; it is the fleet now.
    await deployment.client.apply(ev.EngineRemove(engine="E1", now=clock()))
    assert (await deployment.publish(4, "D")).flag is Flag.OK
    async with EnginePort(house.processes["E0"].url, vocab_size=VOCAB_SIZE) as port:
        assert isinstance(await port.score(PROMPT, deployment.name(4, "D"), uuid.uuid4().hex), OK)

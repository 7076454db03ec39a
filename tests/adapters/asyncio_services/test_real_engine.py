"""The services and a binder over a real guarded SGLang engine: joined, published on, drained, killed and repaired."""

from __future__ import annotations

import asyncio
import importlib.util
import secrets
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from attrs import define, field

pytest.importorskip("torch", reason="not installed: torch (`make test` installs it)")

from lorafsm.events import ArtifactStored, Reserve
from lorafsm.identity import VersionKey
from lorafsm.manifest import store_plan
from lorafsm.outcomes import Committed, Reserved
from lorafsm.records import Config
from lorafsm_asyncio import (
    Executor,
    GenerateFailed,
    LocalClient,
    Notice,
    Publisher,
    Refused,
    SessionBinder,
    ask_engines,
    run_services,
)
from lorafsm_asyncio.owner import monotonic_ms
from lorafsm_asyncio.questions import Routable
from lorafsm_asyncio.reclaimer import holders
from lorafsm_journal import JournaledRegistry
from lorafsm_relax import guarded_seats, post_once, versioned_payload
from lorafsm_sglang import EngineProcess, wait_all_ready
from lorafsm_sglang.cpu_profile import cpu_environment, cpu_flags
from lorafsm_sglang.guard import guard_environment, write_token
from lorafsm_sglang.guard.fingerprint import base_fingerprint
from lorafsm_sglang.tiny_model import lora_fixture, write_model
from lorafsm_torch import ArtifactStore, freeze_snapshot

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]  # an engine is started twice

EPOCH = "svc1"
A, B = VersionKey(EPOCH, 1), VersionKey(EPOCH, 2)
READY_S = 240.0
WAIT_S = 120.0


@define
class World:
    """One engine, its services, one shard."""

    process: EngineProcess
    host: JournaledRegistry
    client: LocalClient
    store: ArtifactStore
    token: str
    engines: dict[str, Executor] = field(factory=dict)
    notices: list[Notice] = field(factory=list)

    async def until(self, condition: Callable[[], Any], what: str) -> None:
        """Wait for the registry to move until the condition holds."""
        seen = -1
        try:
            async with asyncio.timeout(WAIT_S):
                while not condition():
                    seen = await self.client.changed(seen, 1.0)
        except TimeoutError:
            pytest.fail(f"after {WAIT_S:.0f} s still not: {what}; notices: {self.notices[-5:]}")

    async def runs(self, lora_name: str) -> Any:
        """Wait until a request of the version is in flight; the engine's client."""
        client: Any = self.engines["engine-0"]
        async with asyncio.timeout(WAIT_S):
            while not await holders(client, lora_name):  # each look is a request of its own
                pass
        return client

    async def publish(self, key: VersionKey, fixture: str) -> None:
        tensors, config = lora_fixture(fixture)
        snapshot = freeze_snapshot(config, tensors)
        now, token = monotonic_ms(), secrets.token_hex(16)
        asked = Reserve(key=key, digest=snapshot.digest, plan=store_plan(), token=token, now=now)
        assert isinstance(await self.client.apply(asked), Reserved)
        await asyncio.to_thread(self.store.put, key, snapshot)
        assert (await self.client.apply(ArtifactStored(key=key, digest=snapshot.digest, now=now))).ok
        done = await Publisher(self.client, self.engines, notify=self.notices.append).publish(key, token)
        assert isinstance(done, Committed), done

    def state(self, key: VersionKey) -> str:
        return str(self.host.registry.versions[key].state)

    def engine(self) -> Any:
        return self.host.registry.engines.get("engine-0")


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    model = write_model(folder / "model")
    token = secrets.token_hex(16)
    environment = guard_environment(
        cpu_environment(),
        "engine-0",
        EPOCH,
        store=folder / "store",
        host=folder / "host",
        token_file=write_token(folder / "token", token),
    )
    process = EngineProcess(
        "engine-0", cpu_flags(model), environment, folder / "engine.log", module="lorafsm_sglang.serve"
    )
    config = Config(base_fingerprint=base_fingerprint(model))
    with JournaledRegistry.open(folder / "journal.db", config, EPOCH) as host:
        it = World(process, host, LocalClient(host), ArtifactStore(folder / "store"), token)
        started: list[int] = []

        def exited(engine: str) -> str | None:
            return f"process {started[-1]} ended" if started and not process.alive() else None

        seats = guarded_seats(["engine-0"], lambda engine: process.url, token, exited=exited)
        services = asyncio.create_task(run_services(it.client, EPOCH, seats, it.engines, notify=it.notices.append))
        try:
            process.start()
            started.append(process.pid or 0)
            yield it
        finally:
            services.cancel()
            await asyncio.gather(services, return_exceptions=True)
            process.stop()


async def generate(it: World, binder: SessionBinder, session: Any, tokens: int = 4) -> tuple[str, list[int]]:
    """One turn, as Relax's hooks make it: the version that answered, and its tokens."""
    rid = f"{uuid.uuid4().hex}:0"
    async with httpx.AsyncClient(timeout=120, trust_env=False) as web, binder.attempt(session, rid) as attempt:
        sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
        payload = versioned_payload({"input_ids": list(range(40, 72)), "sampling_params": sampling}, attempt)
        url = f"{it.process.url}/generate"
        body = await post_once(attempt, lambda: web.post(url, json=payload), not_sent=(httpx.ConnectError,))
        return str(attempt.binding.key), body["output_ids"]


async def test_an_engine_that_is_killed_comes_back_with_what_its_sessions_need(tmp_path: Path):
    if missing := [name for name in ("transformers", "psutil", "sglang") if importlib.util.find_spec(name) is None]:
        pytest.skip(f"not installed: {', '.join(missing)} (`make test` installs them)")
    async with world(tmp_path) as it:
        await asyncio.to_thread(wait_all_ready, [it.process], READY_S)
        await it.until(lambda: it.engine() is not None, "the engine joined by itself")
        binder = await SessionBinder.start(
            it.client, EPOCH, "shard-0", ask=ask_engines(lambda: list(it.engines.values())), notify=it.notices.append
        )
        lease = asyncio.create_task(binder.run())
        try:
            await _story(it, binder)
        finally:
            lease.cancel()
            await asyncio.gather(lease, return_exceptions=True)


async def _story(it: World, binder: SessionBinder) -> None:
    old = binder.open("old")
    with pytest.raises(Refused) as caught:
        await binder.ensure(old)
    assert caught.value.code == "NO_PUBLISHED_VERSION"
    await it.publish(A, "A")
    version, tokens_of_a = await generate(it, binder, old)
    assert version == str(A)
    await it.publish(B, "B")
    new = binder.open("new")
    version, tokens_of_b = await generate(it, binder, new)
    assert version == str(B)
    assert tokens_of_a != tokens_of_b
    assert await generate(it, binder, old) == (str(A), tokens_of_a)

    # kill -9 while a request of A runs: it is in doubt until the engine is proved dead
    running = asyncio.create_task(generate(it, binder, old, tokens=1500))
    name = it.host.registry.versions[A].lora_name
    await it.runs(name)
    first = it.engine().incarnation
    it.process.kill()
    with pytest.raises(GenerateFailed) as failed:
        await running
    assert failed.value.code == "UNKNOWN"
    await it.until(lambda: it.engine().state == "DEAD", "the engine is dead")
    assert await it.client.ask(Routable(A)) == ()

    it.process.start()
    await asyncio.to_thread(wait_all_ready, [it.process], READY_S)
    await it.until(lambda: it.engine().state == "UP", "the new process holds what sessions need")
    assert it.engine().incarnation > first
    assert await it.client.ask(Routable(A)) == ("engine-0",)
    with pytest.raises(Refused) as caught:
        await generate(it, binder, old)
    assert caught.value.code == "RETRY_UNSAFE"
    assert await binder.settle(old) == "ABSENT"
    assert await generate(it, binder, old) == (str(A), tokens_of_a)
    assert await generate(it, binder, new) == (str(B), tokens_of_b)

    # A's last session closes while a request of A runs: unloaded only after its end, once
    running = asyncio.create_task(generate(it, binder, old, tokens=300))
    client = await it.runs(name)
    await binder.begin_close(old)
    assert (await binder.close_and_release(old)).released == A
    await it.until(lambda: it.state(A) == "RECLAIMING", "A is being reclaimed")
    assert len((await running)[1]) == 300
    await it.until(lambda: it.state(A) == "RECLAIMED", "A is reclaimed")
    await it.until(lambda: binder.live == 1, "the closed session is forgotten")
    done = [op["op"] for op in await client.operations() if op["lora_name"] == name]
    assert done.count("unload") == 1
    await binder.stop()
    assert it.host.registry.versions[B].session_refs == 0

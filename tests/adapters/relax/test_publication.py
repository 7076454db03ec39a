"""A trainer's publication and a shard's question, put together as the guide says, over the guard's real wire."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

httpx = pytest.importorskip("httpx", reason="not installed: httpx (`make test` installs it)")
torch = pytest.importorskip("torch", reason="not installed: torch (`make test` installs it)")

from lorafsm.errors import LoraFsmError  # noqa: E402
from lorafsm.events import EngineJoin, EngineUp  # noqa: E402
from lorafsm.identity import VersionKey  # noqa: E402
from lorafsm.lifecycle import EngineState  # noqa: E402
from lorafsm.records import Config  # noqa: E402
from lorafsm_asyncio import LocalClient, ask_engines  # noqa: E402
from lorafsm_asyncio.questions import Fleet, Member  # noqa: E402
from lorafsm_journal import JournaledRegistry  # noqa: E402
from lorafsm_relax import guarded_engines, versioned_publication, wait_for_engines  # noqa: E402
from lorafsm_sglang import guard  # noqa: E402
from lorafsm_sglang.guard.wire import read_order, write_answer  # noqa: E402
from lorafsm_torch.ranks import Flag  # noqa: E402
from tests.adapters.asyncio_services.agent_process import BASE, EngineHost  # noqa: E402

EPOCH = "run_7"
NAMES = ("engine-0", "engine-1")
TOKEN = "secret-token"


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> dict[str, EngineHost]:
    """Engines whose agents are real, behind the guard's routes as they are on the wire."""
    them = {name: EngineHost(name, EPOCH) for name in NAMES}
    for host in them.values():
        host.start().load_s = 0.0

    async def answer(request: Any) -> Any:
        assert request.headers[guard.settings.TOKEN_HEADER] == TOKEN
        body = json.loads(request.content)
        wait_s = body.pop("wait_s", 0.0)
        body.pop("transfer", None)
        process = them[request.url.host].process
        if process is None:
            raise httpx.ConnectError("nobody listens")
        order = read_order(body)
        said = process.give(order) if "Settle" in body else await process.answered(order, wait_s or 1.0)
        return httpx.Response(200, json={"answer": write_answer(said), "quarantine": []})

    behind = partial(guard.GuardedEngine, transport=httpx.MockTransport(answer))
    monkeypatch.setattr(guard, "GuardedEngine", behind)
    return them


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[JournaledRegistry]:
    with JournaledRegistry.open(tmp_path / "journal", Config(base_fingerprint=BASE), EPOCH) as host:
        for name in NAMES:
            assert host.apply(EngineJoin(engine=name, incarnation=1, seq=0, base_fingerprint=BASE)).ok
        yield host


def url_of(engine: str) -> str:
    return f"http://{engine}:30000"


def exported(value: float) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"peft_type": "LORA", "r": 2}, {"w": torch.full((2, 2), value)}


def publication(registry: JournaledRegistry, folder: Path, rank: int = 0) -> Any:
    args = SimpleNamespace(lora_deployment_epoch=EPOCH, lora_artifact_store=str(folder / "artifacts"))
    return versioned_publication(
        args,
        torch.distributed.HashStore(),
        rank,
        rank + 1,
        connect=lambda: LocalClient(registry),
        engines=NAMES,
        url_of=url_of,
        token=TOKEN,
        buckets=False,
    )


def test_steps_publish_and_an_engine_that_was_restarted_between_gets_the_next_one(
    hosts: dict[str, EngineHost], registry: JournaledRegistry, tmp_path: Path
):
    step = publication(registry, tmp_path).step
    assert step(1, lambda: exported(1.0)).flag is Flag.OK
    assert registry.registry.default == VersionKey(EPOCH, 1)
    first = registry.registry.versions[VersionKey(EPOCH, 1)].lora_name
    assert [host.running().loads for host in hosts.values()] == [[first], [first]]
    assert (tmp_path / "artifacts" / first / "adapter_model.safetensors").is_file()

    hosts["engine-1"].kill()
    hosts["engine-1"].start().load_s = 0.0
    back = EngineUp(engine="engine-1", incarnation=2, seq=0, base_fingerprint=BASE, residents=frozenset())
    assert registry.apply(back).ok
    assert step(2, lambda: exported(2.0)).flag is Flag.OK
    second = registry.registry.versions[VersionKey(EPOCH, 2)].lora_name
    assert hosts["engine-1"].running().loads == [second], "the order went to the new process"
    assert step(2, lambda: exported(2.0)).reason.startswith("NO_OP")


def test_only_rank_0_connects(hosts: dict[str, EngineHost], registry: JournaledRegistry, tmp_path: Path):
    assert publication(registry, tmp_path, rank=0).publisher is not None
    assert publication(registry, tmp_path, rank=1).publisher is None


async def test_a_shard_asks_all_engines_where_a_request_stands(hosts: dict[str, EngineHost]):
    key = VersionKey(EPOCH, 1)
    members = guarded_engines(NAMES, url_of, TOKEN)
    assert TOKEN not in repr(members)
    ask = ask_engines(lambda: members.values())
    assert await ask("q1:0", key) == "ABSENT"
    hosts["engine-1"].kill()
    assert await ask("q2:0", key) is None, "one that may run it is silent"
    await asyncio.gather(*(member.aclose() for member in members.values()))


class Asked:
    """Stands in for a blocking client, whose registry answers these fleets one after another, then the last."""

    def __init__(self, *fleets: tuple[Member, ...]) -> None:
        self.fleets = list(fleets)
        self.waited: list[float] = []

    def ask(self, question: Any) -> tuple[Member, ...]:
        assert question == Fleet()
        return self.fleets.pop(0) if len(self.fleets) > 1 else self.fleets[0]

    def changed(self, seen: int, timeout_s: float) -> int:
        self.waited.append(timeout_s)
        return seen + 1


def member(name: str, state: EngineState = EngineState.UP) -> Member:
    return Member(engine=name, incarnation=1, state=state, seq=1)


def test_the_first_update_waits_for_its_engines():
    lost = member("engine-1", EngineState.LOST)
    client = Asked((), (member("engine-0"),), (member("engine-0"), lost), tuple(map(member, NAMES)))
    wait_for_engines(client, NAMES)
    assert client.waited == [1.0, 1.0, 1.0]


def test_engines_that_do_not_join_are_named():
    with pytest.raises(LoraFsmError, match=r"engine-1 did not join within 0\.01 s") as caught:
        wait_for_engines(Asked((member("engine-0"),)), NAMES, within_s=0.01)
    assert caught.value.code == "ENGINES_MISSING"

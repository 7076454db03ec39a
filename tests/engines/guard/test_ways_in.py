"""Other ways to a guard (by function, in an offline `Engine`), unmanaged adapters beside managed ones, and no guard."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import httpx
import pytest
from attrs import evolve

pytest.importorskip("torch", reason="not installed: torch (`make test` installs it)")

from lorafsm.identity import VersionKey, lora_name
from lorafsm.orders import Unload
from lorafsm_sglang import OK, EnginePort, EngineProcess, wait_all_ready
from lorafsm_sglang.cpu_profile import cpu_environment, cpu_flags
from lorafsm_sglang.guard import GuardedEngine, guard_environment, write_token
from lorafsm_sglang.guard.settings import LAUNCHER, PLUGIN, PLUGINS
from lorafsm_sglang.ports import free_port
from lorafsm_sglang.process_tree import end
from lorafsm_sglang.tiny_model import VOCAB_SIZE, lora_fixture, write_lora
from lorafsm_torch import freeze_snapshot
from tests.engines.conftest import DEADLINE_S
from tests.engines.guard.conftest import plain
from tests.engines.guard.house import EPOCH_ID, PROMPT, Guarded, Version, client, code_of, numbers, ready, rid

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]  # the first test of a folder starts its engines

ROOT = Path(__file__).parents[3]
TOKEN = "u" * 32
OFFLINE = "LORAFSM_OFFLINE"
_TIMES = re.compile(rb'"[a-z0-9_]*(?:latency|time|_ts)[a-z0-9_]*":[^,}\]]+')


@pytest.fixture(scope="module")
def opted(guarded: Guarded, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """An engine that also serves unmanaged adapters; its guard comes by function, SGLang's plugins do not bring it."""
    folder = tmp_path_factory.mktemp("opted")
    environment = guard_environment(
        {**cpu_environment(), "SGLANG_PLUGINS": "lorafsm_cpu_profile,lorafsm_owner_watch"},
        "E1",
        EPOCH_ID,
        store=guarded.store.root,
        host=folder / "host",
        token_file=write_token(folder / "token", TOKEN),
        unmanaged=True,
    )
    environment["PYTHONPATH"] = os.pathsep.join((environment["PYTHONPATH"], str(ROOT), str(ROOT / "adapters")))
    flags = cpu_flags(guarded.model, lora_slots=4)
    process = EngineProcess("opted", flags, environment, folder / "opted.log", module="tests.engines.guard.by_function")
    with process:
        wait_all_ready((process,), DEADLINE_S)
        yield process


@pytest.fixture
async def e1(opted: EngineProcess) -> AsyncIterator[GuardedEngine]:
    asking = client(opted, TOKEN, engine="E1")
    proof = await asking.attest()
    await asking.aclose()
    engine = evolve(asking, incarnation=proof.incarnation, client=None)
    yield engine
    await engine.aclose()


def put(guarded: Guarded, engine: GuardedEngine, letter: str) -> Version:
    snapshot = freeze_snapshot(*reversed(lora_fixture(letter)))
    key = VersionKey(EPOCH_ID, next(numbers))
    guarded.store.put(key, snapshot)
    return Version(key, snapshot.digest, lora_name(key, snapshot.digest), engine.incarnation, engine.engine)


async def test_a_guard_by_function_proves_itself(e1: GuardedEngine):
    proof = await e1.attest()
    assert (proof.engine, proof.unmanaged, proof.configuration["max_loras_per_batch"]) == ("E1", True, 4)


async def test_off_and_on_give_the_same_bytes_where_nothing_is_managed(
    engines, guarded: Guarded, e1, opted, tmp_path: Path
):
    """The plugin installed and off, the guard on, and on with unmanaged adapters: equal but for times (M17)."""
    if not entry_points(group=PLUGINS, name=PLUGIN):
        pytest.skip("lorafsm is not installed, so no engine here has the plugin (`make test` installs it)")
    folder = write_lora(tmp_path / "visitor", "C")
    off = await said_by(engines[0], folder)
    async with plain(engines[0]) as web:
        assert (await web.get("/lorafsm/attestation")).status_code == httpx.codes.NOT_FOUND
    assert await said_by(guarded.process) == off[: len(_base_calls())]
    assert await said_by(opted, folder) == off


def _base_calls() -> list[tuple[str, dict[str, Any]]]:
    greedy = {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True}
    prompt = list(range(450, 482))
    return [
        ("/generate", {"input_ids": prompt, "sampling_params": greedy, "rid": "1" * 32}),
        ("/generate", {"input_ids": prompt, "sampling_params": greedy, "rid": "2" * 32, "extra_key": "tenant"}),
        ("/generate", {"input_ids": [prompt, prompt[:7]], "sampling_params": greedy, "rid": ["3" * 32, "4" * 32]}),
        ("/generate", {"input_ids": [5] * 3000, "sampling_params": greedy, "rid": "5" * 32}),
        ("/generate", {"input_ids": prompt, "sampling_params": {"top_p": 7.0}, "rid": "6" * 32}),
        ("/abort_request", {"rid": "7" * 32}),
        ("/flush_cache", {}),
    ]


def _visitor_calls(folder: Path) -> list[tuple[str, dict[str, Any]]]:
    name = "same-visitor"
    body = {"input_ids": list(range(450, 482)), "sampling_params": {"max_new_tokens": 8, "temperature": 0}}
    return [
        ("/generate", {**body, "lora_path": "never-there", "rid": "8" * 32}),
        ("/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)}),
        ("/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)}),
        ("/generate", {**body, "lora_path": name, "rid": "9" * 32}),
        ("/generate", {**body, "lora_path": name, "rid": "a" * 32}),
        ("/unload_lora_adapter", {"lora_name": name}),
        ("/unload_lora_adapter", {"lora_name": name}),
    ]


async def said_by(process: EngineProcess, folder: Path | None = None) -> list[tuple[int, bytes]]:
    """Status and bytes of each answer, without times."""
    calls = [*_base_calls(), *(_visitor_calls(folder) if folder else ())]
    async with plain(process) as web:
        await web.post("/flush_cache")  # cached tokens are counted in the answers
        answers = [await web.post(route, json=body) for route, body in calls]
    return [(each.status_code, _TIMES.sub(b'"":0', each.content)) for each in answers]


async def test_unmanaged_adapters_beside_two_versions(e1: GuardedEngine, opted, guarded: Guarded, tmp_path: Path):
    """Both versions keep their slots whatever is loaded beside them by SGLang's own routes."""
    a, b = put(guarded, e1, "A"), put(guarded, e1, "B")
    await ready(e1, a)
    await ready(e1, b)
    folders = {name: write_lora(tmp_path / name, "CD"[i % 2]) for i, name in enumerate(("one", "two", "three"))}
    async with EnginePort(opted.url, vocab_size=VOCAB_SIZE) as port:
        before = {v.lora_name: await port.score(PROMPT, v.lora_name, rid()) for v in (a, b)}
        assert code_of(await port.load("one", folders["one"], pinned=True)) == "UNMANAGED_REFUSED"
        for name, folder in folders.items():  # four are kept at most: the oldest visitor goes, never a version
            assert isinstance(await port.load(name, folder, pinned=False), OK)
            names = (name, a.lora_name, b.lora_name, None)
            answers = await asyncio.gather(*(port.score(PROMPT, each, rid()) for each in names))
            assert all(isinstance(each, OK) for each in answers), answers
        listed = await port.models()
        assert isinstance(listed, OK)
        assert set(listed.data) == {"two", "three", a.lora_name, b.lora_name}
        assert code_of(await port.unload(a.lora_name)) == "MANAGED_NAME"
        assert isinstance(await port.unload("two"), OK)
        for version in (a, b):
            now, then = await port.score(PROMPT, version.lora_name, rid()), before[version.lora_name]
            assert isinstance(now, OK)
            assert isinstance(then, OK)
            assert now.data.output_ids == then.data.output_ids
            assert now.data.output_logprobs == pytest.approx(then.data.output_logprobs, abs=1e-4)
        for version in (a, b):
            await e1.carry_out(version.order(Unload, reclaim_id=f"r-{version.key.version_id}"))
        await port.unload("three")
    assert (await e1.status())["adapters"] == []


def test_an_offline_engine_is_guarded_without_http(guarded: Guarded, tmp_path: Path):
    """`engine.tokenizer_manager.lora_guard.carry_out` is the same guard as behind the routes."""
    if not os.environ.get(OFFLINE):
        pytest.skip(f"an engine of its own for one test; set {OFFLINE}=1, as `make test-long` does")
    environment = guard_environment(
        cpu_environment(),
        "E2",
        EPOCH_ID,
        store=tmp_path / "store",
        host=tmp_path / "host",
        token_file=write_token(tmp_path / "token", TOKEN),
    )
    environment["PYTHONPATH"] = os.pathsep.join((environment["PYTHONPATH"], str(ROOT), str(ROOT / "adapters")))
    environment |= {"LORAFSM_ENGINE_OWNER": str(os.getpid()), LAUNCHER: ""}
    command = [sys.executable, "-m", "tests.engines.guard.offline", str(guarded.model), str(tmp_path / "store")]
    command += [str(free_port()), str(free_port())]
    log = tmp_path / "log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )
    try:
        out, _ = process.communicate(timeout=DEADLINE_S)
    finally:
        end(process.pid, 0)
        process.wait()
    rows = [json.loads(line) for line in out.decode().splitlines() if line.startswith('{"seen"')]
    seen = {row.pop("seen"): row for row in rows}
    assert process.returncode == 0, log.read_text(errors="replace")[-3000:]
    assert seen["before"]["refused"].startswith("VERSION_MISSING")
    assert (seen["Begin"], seen["End"], seen["Unload"]) == (
        {"answer": "Prepared"},
        {"answer": "Ready"},
        {"answer": "Unloaded"},
    )
    assert len(seen["version"]["output_ids"]) == 4
    assert seen["version"]["output_ids"] != seen["base"]["output_ids"]
    assert seen["after"]["refused"].startswith("VERSION_CLOSED")
    assert seen["status"] == {"adapters": [], "quarantine": []}

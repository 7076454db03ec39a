"""Guarded engines for the tests of this folder, started once and stopped by pid."""

from __future__ import annotations

import importlib.util
import secrets
from collections.abc import AsyncIterator, Callable, Iterator

import httpx
import pytest

pytest.importorskip("torch", reason="not installed: torch (`make test` installs it)")

from lorafsm.identity import VersionKey, lora_name
from lorafsm.orders import Unload
from lorafsm_sglang import OK, EnginePort, EngineProcess, wait_all_ready
from lorafsm_sglang.cpu_profile import cpu_environment, cpu_flags
from lorafsm_sglang.guard import GuardedEngine, guard_environment, write_token
from lorafsm_sglang.guard.settings import EPOCH
from lorafsm_sglang.tiny_model import VOCAB_SIZE, lora_fixture, write_lora, write_model
from lorafsm_torch import ArtifactStore, freeze_snapshot
from tests.engines.conftest import DEADLINE_S
from tests.engines.guard.house import EPOCH_ID, Guarded, Version, client, numbers, versions


@pytest.fixture(scope="package")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Both engines are started together and stopped by pid."""
    if missing := [name for name in ("transformers", "psutil", "sglang") if importlib.util.find_spec(name) is None]:
        pytest.skip(f"not installed: {', '.join(missing)} (`make test` installs them)")
    folder = tmp_path_factory.mktemp("guarded")
    model, adapter = write_model(folder / "model"), write_lora(folder / "adapter", "B")
    token = secrets.token_hex(16)
    environment = guard_environment(
        cpu_environment(),
        "E0",
        EPOCH_ID,
        store=folder / "store",
        host=folder / "host",
        token_file=write_token(folder / "token", token),
    )
    flags = [*cpu_flags(model), "--enable-streaming-session"]
    process = EngineProcess("guarded", flags, environment, folder / "guarded.log", module="lorafsm_sglang.serve")
    # An epoch that no guard takes: the plugin raises, SGLang logs that and serves without it.
    alone = [*flags, "--lora-paths", f"seed={adapter}"]
    broken = EngineProcess("broken", alone, {**environment, EPOCH: "no epoch"}, folder / "broken.log")
    try:
        for each in (process, broken):
            each.start()
        wait_all_ready((process, broken), DEADLINE_S)
        yield Guarded(process, broken, ArtifactStore(folder / "store"), token, model, adapter)
    finally:
        for each in (process, broken):
            each.stop()


@pytest.fixture
async def engine(guarded: Guarded) -> AsyncIterator[GuardedEngine]:
    """The publisher's side; afterwards nothing managed is left and nobody holds a reference."""
    asking = client(guarded.process, guarded.token)
    proof = await asking.attest()
    engine = client(guarded.process, guarded.token, proof.incarnation)
    yield engine
    status = await engine.status()
    for adapter in status["adapters"]:
        assert adapter["refs"] == adapter["sglang_count"] == 0, adapter
    for work in status["works"]:
        number = work["number"]
        known = next((v for v in versions if v.lora_name == work["lora_name"]), None)
        if known is None:
            continue  # a deployment's; its registry saw to it
        await engine.carry_out(known.order(Unload, reclaim_id=f"cleanup-{number}"))
    assert (await engine.status())["adapters"] == []
    assert (await engine.status())["quarantine"] == []
    await engine.aclose()
    await asking.aclose()


@pytest.fixture
async def web(guarded: Guarded) -> AsyncIterator[EnginePort]:
    async with EnginePort(guarded.process.url, vocab_size=VOCAB_SIZE) as port:
        yield port


@pytest.fixture
async def raw(guarded: Guarded) -> AsyncIterator[httpx.AsyncClient]:
    """For bodies that the port does not send."""
    async with plain(guarded.process) as web:
        yield web


def plain(process: EngineProcess) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=process.url, timeout=60, trust_env=False)


@pytest.fixture
async def native(guarded: Guarded) -> AsyncIterator[EnginePort]:
    """The engine without a guard; afterwards it has no adapter, if it lives."""
    async with EnginePort(guarded.broken.url, vocab_size=VOCAB_SIZE) as port:
        yield port
        models = await port.models()
        for name in models.data if isinstance(models, OK) else ():
            await port.unload(name, timeout_s=60)


@pytest.fixture
async def native_raw(guarded: Guarded) -> AsyncIterator[httpx.AsyncClient]:
    async with plain(guarded.broken) as web:
        yield web


@pytest.fixture
def stored(guarded: Guarded, engine: GuardedEngine) -> Callable[[str], Version]:
    """Puts a fixture into the store under a key that nothing used before."""

    def put(letter: str) -> Version:
        tensors, config = lora_fixture(letter)
        snapshot = freeze_snapshot(config, tensors)
        key = VersionKey(EPOCH_ID, next(numbers))
        guarded.store.put(key, snapshot)
        versions.append(Version(key, snapshot.digest, lora_name(key, snapshot.digest), engine.incarnation))
        return versions[-1]

    return put

"""The demo's services and record without an engine's process: agents are real, the registry is hosted here."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

for _name in ("torch", "transformers", "safetensors", "psutil", "httpx"):
    pytest.importorskip(_name, reason=f"not installed: {_name} (`make test` installs it)")

from gpu_e2e.conversation import as_call  # noqa: E402
from gpu_e2e.hosting import hosted  # noqa: E402
from gpu_e2e.recording import Recorder  # noqa: E402
from gpu_e2e.services import Services, attended  # noqa: E402
from gpu_e2e.transport import Transport  # noqa: E402
from lorafsm.events import ArtifactStored, Reserve  # noqa: E402
from lorafsm.identity import VersionKey  # noqa: E402
from lorafsm.invariants import check  # noqa: E402
from lorafsm.manifest import store_plan  # noqa: E402
from lorafsm.records import Config  # noqa: E402
from lorafsm_asyncio import Call, Refused, classify  # noqa: E402
from lorafsm_sglang import Refused as EngineRefused  # noqa: E402
from lorafsm_sglang import Unknown, UnknownKind  # noqa: E402
from tests.adapters.asyncio_services.agent_process import BASE, EngineHost  # noqa: E402

EPOCH = "e1"
A, B = VersionKey(EPOCH, 1), VersionKey(EPOCH, 2)


def executor(name: str) -> Any:
    """As `RecordedEngine`: orders go to the agent, `guarded` proves the incarnation."""
    host = EngineHost(name, EPOCH)
    host.start().load_s = 0.01
    client = host.connect(1)
    return SimpleNamespace(guarded=client, carry_out=client.carry_out)


async def publish(services: Services, key: VersionKey) -> str:
    digest, token = f"{key.version_id:064x}", f"token-{key}"
    await services.apply(Reserve(key=key, digest=digest, plan=store_plan(), token=token, now=services.clock()))
    await services.apply(ArtifactStored(key=key, digest=digest, now=services.clock()))
    return str(await services.publish(key, token))


async def story(client: Any, recorder: Recorder) -> None:
    engines = {name: executor(name) for name in ("E0", "E1")}
    async with attended(client, EPOCH, engines, recorder, BASE, recorder.clock) as services:
        transport = Transport("store")
        transport.connect(services, {}, recorder)
        assert services.send is None, "engines read the artifact store themselves"
        assert await publish(services, A) == "PUBLISHED"
        session = services.binder.open("S_old")
        assert (await services.binder.ensure(session)).key == A
        assert await publish(services, B) == "PUBLISHED"
        with pytest.raises(Refused, match="SESSION_REFS_HELD"):
            await services.reclaim(A)
        await services.apply(Reserve(key=A, digest="f" * 64, plan=store_plan(), token="t", now=services.clock()))
        await services.binder.begin_close(session)
        await services.binder.close_and_release(session)
        assert str(await services.reclaim(A)) == "RECLAIMED"
        assert await services.targets() == {}


def test_publication_reclaim_and_record_over_a_registry_in_this_process(tmp_path: Path):
    recorder = Recorder(letters={str(A): "A", str(B): "B"})
    journal = tmp_path / "journal"
    with hosted("local", journal, Config(base_fingerprint=BASE), EPOCH) as client:
        asyncio.run(story(client, recorder))
    final = recorder.read(journal)
    recorder.close()
    assert check(final) == ()
    assert [span["state"] for span in recorder.versions["A"]["spans"]] == [
        "LOADING",
        "PUBLISHED",
        "RETIRED",
        "RECLAIMING",
        "RECLAIMED",
    ]
    spans = [span for version in recorder.versions.values() for span in version["spans"]]
    assert all(0 <= span["start"] <= span["end"] <= recorder.now() for span in spans)
    assert recorder.most_versions == 2
    assert [(row["event"], row["code"]) for row in recorder.refusals] == [("reserve", "VERSION_CONFLICT")]


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        (EngineRefused(400, "VERSION_MISSING: not here"), "VERSION_MISSING"),
        (EngineRefused(400, "too long"), "REFUSED"),
        (Unknown(UnknownKind.NOT_CONNECTED, "refused"), "REFUSED"),
        (Unknown(UnknownKind.CONNECTION_LOST, "reset"), "UNKNOWN"),
        (None, "UNKNOWN"),
    ],
)
def test_what_a_ports_reply_proves(reply: Any, verdict: str):
    assert isinstance(as_call(reply), Call)
    assert classify(as_call(reply)) == verdict

"""Native defect P2 on a whole engine: behind SGLang's Rust server no adapter can come after the start, so no version
can ever be published to it.  The guard refuses such a setting (tests/adapters/test_guard_proof.py)."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

pytest.importorskip("torch", reason="not installed: torch (`make test` installs it)")

from lorafsm_sglang import EngineProcess
from lorafsm_sglang.cpu_profile import cpu_environment, cpu_flags
from lorafsm_sglang.tiny_model import write_lora, write_model
from tests.engines.guard.house import until

pytestmark = [
    pytest.mark.engines,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not os.environ.get("LORAFSM_RUST"), reason="set LORAFSM_RUST=1 (make test-long): one more engine"
    ),
]
DEADLINE_S = 300


@pytest.fixture
async def rust(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """An unguarded engine behind the Rust server, which has /health and no /ready."""
    flags = cpu_flags(write_model(tmp_path / "model"))
    engine = EngineProcess("rust", flags, cpu_environment() | {"SGLANG_RUST_SERVER": "1"}, tmp_path / "log")
    engine.start()
    try:
        async with httpx.AsyncClient(base_url=engine.url, trust_env=False, timeout=30) as web:

            async def healthy() -> bool:
                try:
                    return (await web.get("/health")).status_code == httpx.codes.OK
                except httpx.TransportError:
                    return False

            await until(healthy, "the Rust server answers", DEADLINE_S)
            yield web
    finally:
        engine.stop()


async def test_p2_behind_the_rust_server_no_adapter_comes_after_the_start(rust: httpx.AsyncClient, tmp_path: Path):
    path = str(write_lora(tmp_path / "A", "A"))
    loaded = await rust.post("/load_lora_adapter", json={"lora_name": "late", "lora_path": path})
    assert loaded.status_code == httpx.codes.NOT_FOUND
    request = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 2}}
    answer = await rust.post("/generate", json=request | {"lora_path": "late"})
    assert answer.status_code == httpx.codes.BAD_REQUEST
    assert "is not loaded" in answer.json()["error"]["message"]
    assert (await rust.post("/generate", json=request)).status_code == httpx.codes.OK

"""Numeric separation on real engines (RFC 7.2): versions differ widely, repeats and engines agree closely."""

from __future__ import annotations

import itertools

import pytest

from lorafsm_sglang import OK, EnginePort
from lorafsm_sglang.tiny_model import VOCAB_SIZE

pytestmark = pytest.mark.engines

TOLERANCE = 1e-3
"""Nats; repeats of one score must agree to this, and versions must differ by more than ten times it."""

PROMPT = tuple(range(200, 232))
SCORED = (7, 77, 177)


async def score(port: EnginePort, version, rid):
    reply = await port.score(PROMPT, version, rid, token_ids=SCORED)
    assert isinstance(reply, OK)
    return [reply.data.token_ids_logprobs[0][token] for token in SCORED]


async def test_versions_differ_and_repeats_agree(engines, port: EnginePort, artifacts, new_name, new_rid):
    scores = {"base": await score(port, None, new_rid())}
    for fixture in artifacts.adapters:
        name = new_name(fixture)
        assert isinstance(await port.load(name, artifacts.adapters[fixture]), OK)
        scores[fixture] = await score(port, name, new_rid())
        # The second run reads its prefix from the KV cache, the first one computed it.
        assert await score(port, name, new_rid()) == pytest.approx(scores[fixture], abs=TOLERANCE)
        async with EnginePort(engines[1].url, vocab_size=VOCAB_SIZE) as other:
            assert isinstance(await other.load(name, artifacts.adapters[fixture]), OK)
            elsewhere = await score(other, name, new_rid())
            assert isinstance(await other.unload(name), OK)
        assert elsewhere == pytest.approx(scores[fixture], abs=TOLERANCE)
        assert isinstance(await port.unload(name), OK)
    for (one, first), (two, second) in itertools.combinations(scores.items(), 2):
        gaps = [abs(x - y) for x, y in zip(first, second, strict=True)]
        assert min(gaps) > 10 * TOLERANCE, f"{one} and {two} are too close: {gaps}"


async def test_status_names_what_runs(port: EnginePort, artifacts):
    status = await port.status()
    assert isinstance(status, OK)
    assert status.data.version == "0.5.23"
    assert status.data.dtype == "float32"
    assert status.data.model_path == str(artifacts.model)
    assert status.data.max_running_requests == 8
    assert status.data.settings["disable_overlap_schedule"] is True
    assert status.data.settings["max_loras_per_batch"] == 3
    assert "admin_api_key" not in status.data.settings

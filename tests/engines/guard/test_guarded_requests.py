"""A guarded engine and its clients: side doors that are shut, and one reference for each request, whatever ends it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import pytest

pytest.importorskip("torch", reason="not installed: torch (`make test` installs it)")

from lorafsm import events as ev
from lorafsm.engine.answers import AgentCode, Settled, Verdict
from lorafsm.engine.orders import Settle
from lorafsm.identity import SessionKey
from lorafsm.orders import Unload
from lorafsm_sglang import OK, EnginePort
from lorafsm_sglang import Refused as HttpRefused
from lorafsm_sglang.guard import GuardedEngine
from lorafsm_sglang.guard.session_cache import SessionRefused, engine_session_id
from lorafsm_sglang.guard.session_client import EngineSessions
from lorafsm_sglang.tiny_model import VOCAB_SIZE
from tests.engines.guard.house import (
    EPOCH_ID,
    LONG,
    PROMPT,
    SHORT,
    Guarded,
    Version,
    adapter_of,
    client,
    code_of,
    lora_ids,
    ready,
    rid,
    until,
    until_draining,
    until_refs,
)

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]  # the first test of a folder starts its engines


# -- side doors -------------------------------------------------------------------------------------------


async def test_the_ordinary_routes_do_not_touch_managed_versions(engine, stored, web: EnginePort, guarded):
    a = stored("A")
    await ready(engine, a)
    folder = guarded.adapter
    assert code_of(await web.load(a.lora_name, folder)) == "MANAGED_NAME"  # overwrite
    assert code_of(await web.load(a.lora_name.replace("-1", "-9"), folder)) == "MANAGED_NAME"
    assert code_of(await web.unload(a.lora_name)) == "MANAGED_NAME"
    assert code_of(await web.load("visitor", folder, pinned=False)) == "UNMANAGED_REFUSED"
    assert code_of(await web.score(PROMPT, "visitor", rid())) == "UNMANAGED_REFUSED"
    assert isinstance(await web.score(PROMPT, a.lora_name, rid()), OK)


async def test_the_base_stays_as_it_is_while_versions_rest_on_it(engine, stored, raw: httpx.AsyncClient, guarded):
    await ready(engine, stored("A"))
    body = {"model_path": str(guarded.model)}
    answer = await raw.post("/update_weights_from_disk", json=body)
    assert "BASE_IN_USE" in answer.text
    answer = await raw.post("/release_memory_occupation", json={})
    assert "BASE_IN_USE" in answer.text


async def test_where_the_engine_has_no_session_cache_everybody_is_told(guarded: Guarded, raw: httpx.AsyncClient):
    """Never a silent no-op: SGLang by itself takes the `session_id` and protects nothing."""
    sessions, session = EngineSessions(guarded.process.url, guarded.token), SessionKey(EPOCH_ID, "trainer-0", 0)
    for call in (sessions.open(session, None), sessions.close(session), sessions.end_owner(EPOCH_ID, "trainer-0")):
        with pytest.raises(SessionRefused, match="--enable-session-radix-cache") as caught:
            await call
        assert caught.value.code == "SESSION_CACHE_OFF"
    await sessions.aclose()
    body = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 1}, "session_id": engine_session_id(session)}
    refused = await raw.post("/generate", json=body)
    assert (refused.status_code, refused.json()["error"]["message"].partition(":")[0]) == (400, "SESSION_CACHE_OFF")


@pytest.mark.parametrize(
    "more, code",
    [
        ({"extra_key": "x"}, "EXTRA_KEY"),
        ({"sampling_params": {"n": 2, "max_new_tokens": 2}}, "SEVERAL_SAMPLES"),
        ({"sampling_params": [{"n": 2, "max_new_tokens": 2}]}, "SEVERAL_SAMPLES"),
    ],
)
async def test_what_would_cross_versions_is_refused(engine, stored, raw: httpx.AsyncClient, more, code):
    a = stored("A")
    await ready(engine, a)
    body = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 2}, "lora_path": a.lora_name, **more}
    answer = await raw.post("/generate", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(code)


async def test_a_clients_lora_id_is_nothing(engine, stored, raw: httpx.AsyncClient, web: EnginePort, guarded):
    """On 0.5.23 alone, a bad name with a live adapter's id drops that adapter's reference (native defect O1)."""
    a = stored("A")
    await ready(engine, a)
    [live] = lora_ids(guarded.process, a.lora_name)
    running = asyncio.create_task(web.generate(PROMPT, a.lora_name, LONG, rid()))
    await until_refs(engine, a, 1)
    missing = a.lora_name[:-12] + "0" * 12
    body = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 2}, "lora_id": live}
    answer = await raw.post("/generate", json={**body, "lora_path": missing})
    assert answer.status_code == 400
    assert (await adapter_of(engine, a))["sglang_count"] == 1
    base = await raw.post("/generate", json={**body, "sampling_params": {"max_new_tokens": 1}, "extra_key": live})
    assert base.json()["error"]["message"].startswith("EXTRA_KEY")
    running.cancel()
    await until_refs(engine, a, 0)


async def test_a_base_request_is_answered_as_by_an_unguarded_engine(engine, stored, web, guarded: Guarded):
    """Tokens and log-probabilities of the base are those of the engine whose guard never came up."""
    await ready(engine, stored("A"))
    async with EnginePort(guarded.broken.url, vocab_size=VOCAB_SIZE) as plain:
        for port in (web, plain):
            await port.generate(PROMPT, None, SHORT, rid())  # the next one finds the same prefix cached
        ours, theirs = await web.score(PROMPT, None, rid()), await plain.score(PROMPT, None, rid())
    assert isinstance(ours, OK)
    assert isinstance(theirs, OK)
    assert ours.data.output_ids == theirs.data.output_ids
    assert ours.data.output_logprobs == pytest.approx(theirs.data.output_logprobs, abs=1e-5)


# -- references -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["finish", "over context", "bad sampling", "abort running", "abort queued", "gone"])
async def test_each_end_of_a_request_drops_one_reference(engine, stored, web: EnginePort, raw, end: str):
    """r1 and r2 run on A; r1 ends; exactly r2's reference is left, until r2 ends (RFC 7.1)."""
    a = stored("A")
    await ready(engine, a)
    theirs, mine = rid(), rid()
    other = asyncio.create_task(web.generate(PROMPT, a.lora_name, LONG, theirs))
    await until_refs(engine, a, 1)
    if end == "finish":
        assert isinstance(await web.generate(PROMPT, a.lora_name, SHORT, rid()), OK)
    elif end == "over context":
        refused = await web.generate([5] * 3000, a.lora_name, SHORT, rid())
        assert isinstance(refused, HttpRefused)
    elif end == "bad sampling":
        body = {"input_ids": PROMPT, "sampling_params": {"top_p": 7.0}, "lora_path": a.lora_name}
        assert (await raw.post("/generate", json=body)).status_code == 400
    else:
        crowd: list[asyncio.Task[Any]] = []
        if end == "abort queued":  # eight run at once at most; these stay in the queue
            crowd = [asyncio.create_task(web.generate(PROMPT, None, LONG, rid())) for _ in range(8)]
            await asyncio.sleep(0.5)
        task = asyncio.create_task(web.generate(PROMPT, a.lora_name, LONG, mine))
        await until_refs(engine, a, 2)
        if end == "gone":
            task.cancel()
        else:
            await web.abort(mine)
            await task  # one that never ran is answered without token counts, which the port cannot read
        for each in crowd:
            each.cancel()

    async def only_theirs() -> bool:
        # SGLang looks for a lost client every 4 s; r2 may have come to its own end by then.
        adapter = await adapter_of(engine, a)
        held = adapter["held_by"]
        there = held == [theirs] or (held == [] and other.done())
        return there and adapter["refs"] == adapter["sglang_count"] == len(held)

    await until(only_theirs, f"r1 holds nothing after {end}")
    other.cancel()
    await until_refs(engine, a, 0)


async def test_an_unload_waits_for_its_own_requests_and_blocks_nobody_else(engine, stored, web: EnginePort):
    """While A drains: late requests of A end at once, B is served, C is published, and status names who holds A."""
    a, b = stored("A"), stored("B")
    await ready(engine, a)
    mine = rid()
    running = asyncio.create_task(web.generate(PROMPT, a.lora_name, LONG, mine))
    await until_refs(engine, a, 1)
    unload = asyncio.create_task(engine.carry_out(a.order(Unload, reclaim_id="r-wait")))

    await until_draining(engine, a)
    assert (await adapter_of(engine, a))["held_by"] == [mine]
    start = time.monotonic()
    assert code_of(await web.score(PROMPT, a.lora_name, rid())) == AgentCode.VERSION_CLOSED
    await ready(engine, b)
    assert isinstance(await web.score(PROMPT, b.lora_name, rid()), OK)
    assert not running.done(), "the machine is too fast for this test: A ended first"
    assert not unload.done()
    assert time.monotonic() - start < 10
    answer = await running
    assert isinstance(answer, OK)
    assert answer.data.completion_tokens == LONG.max_new_tokens
    assert isinstance(await unload, ev.ConfirmReclaim)
    unloads = [each for each in await engine.operations() if (each["op"], each["lora_name"]) == ("unload", a.lora_name)]
    assert len(unloads) == 1


async def test_a_caller_that_gives_up_changes_nothing(engine: GuardedEngine, stored, web: EnginePort, guarded):
    """The unload's caller goes away; the same order later finds the one unload done (native: never retried)."""
    a = stored("A")
    await ready(engine, a)
    running = asyncio.create_task(web.generate(PROMPT, a.lora_name, LONG, rid()))
    await until_refs(engine, a, 1)
    order = a.order(Unload, reclaim_id="r-gone")
    impatient = asyncio.create_task(engine.carry_out(order))
    await asyncio.sleep(0.2)
    impatient.cancel()
    short = client(guarded.process, guarded.token, engine.incarnation, wait_s=0.1, deadline_s=0.2)
    assert isinstance(await short.carry_out(order), ev.ReclaimUnknown)
    await short.aclose()
    running.cancel()
    assert isinstance(await engine.carry_out(order), ev.ConfirmReclaim)


async def test_a_sealed_request_never_starts(engine: GuardedEngine, stored, web: EnginePort):
    a = stored("A")
    await ready(engine, a)
    lost = rid()
    absent = await engine.settle(Settle(rid=lost, key=a.key))
    assert isinstance(absent, Settled)
    assert absent.verdict is Verdict.ABSENT
    assert code_of(await web.score(PROMPT, a.lora_name, lost)) == AgentCode.RID_SEALED


async def test_an_abort_hits_no_neighbour(engine: GuardedEngine, stored, raw: httpx.AsyncClient):
    """SGLang aborts by prefix: among managed requests no rid begins with another's; a base rid's abort is not sent."""
    a = stored("A")
    await ready(engine, a)
    body = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 600, "ignore_eos": True}}
    short = rid()
    managed = asyncio.create_task(raw.post("/generate", json={**body, "lora_path": a.lora_name, "rid": f"{short}:1"}))
    base = asyncio.create_task(raw.post("/generate", json={**body, "rid": short}))
    await until_refs(engine, a, 1)
    refused = await raw.post("/generate", json={**body, "lora_path": a.lora_name, "rid": f"{short}:10"})
    assert refused.json()["error"]["message"].startswith("RID_PREFIX")
    await raw.post("/abort_request", json={"rid": short})
    assert (await managed).json()["meta_info"]["completion_tokens"] == 600
    await base


async def test_kv_of_one_version_is_never_anothers(engine: GuardedEngine, stored, web: EnginePort):
    """A warm and B cold on the same prompt; after a reload under a new key A is cold again (RFC 6)."""
    a, b = stored("A"), stored("B")
    await ready(engine, a)
    await ready(engine, b)

    async def cached(version: Version) -> int:
        answer = await web.generate(PROMPT, version.lora_name, SHORT, rid())
        assert isinstance(answer, OK)
        return answer.data.cached_tokens

    assert [await cached(v) > 0 for v in (a, b, a, b)] == [False, False, True, True]
    await engine.carry_out(a.order(Unload, reclaim_id="r-kv"))
    again = stored("A")
    await ready(engine, again)
    assert [await cached(again) > 0 for _ in range(2)] == [False, True]

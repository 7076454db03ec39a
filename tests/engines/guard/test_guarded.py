"""A guarded engine: what its clients cannot do, and what its publisher can."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from attrs import evolve

pytest.importorskip("torch", reason="not installed: torch (`make test` installs it)")

from lorafsm import events as ev
from lorafsm.engine.answers import AgentCode, Pending, Refused, Settled, Verdict
from lorafsm.engine.orders import ArmBucket, ReceiveBucket, Settle
from lorafsm.manifest import Plan, store_plan
from lorafsm.orders import Begin, Cleanup, End, Load, Unload
from lorafsm_sglang import OK, EnginePort
from lorafsm_sglang import Refused as HttpRefused
from lorafsm_sglang.guard import AttestationError, GuardedEngine
from lorafsm_sglang.tiny_model import VOCAB_SIZE, lora_fixture
from lorafsm_torch import freeze_snapshot
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
    numbers,
    ready,
    rid,
    until,
    until_draining,
    until_refs,
    who,
)

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]  # the first test of a folder starts its engines


def stashes_of(number: int) -> list[Path]:
    root = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())
    return [path for path in root.glob("lorafsm-stash-E0-*/*") if path.name == str(number)]


# -- the proof --------------------------------------------------------------------------------------------


async def test_the_engine_proves_what_it_is(engine: GuardedEngine, guarded: Guarded):
    proof = await engine.attest()
    assert (proof.engine, proof.epoch, proof.sglang_version) == ("E0", EPOCH_ID, "0.5.23")
    assert proof.incarnation == engine.incarnation > 0
    from lorafsm_sglang.guard.fingerprint import base_fingerprint

    assert proof.base_fingerprint == base_fingerprint(guarded.model)


async def test_a_plugin_that_failed_is_found_out(guarded: Guarded, engine: GuardedEngine):
    """SGLang only logs it and serves all the same: the attestation is what is missing."""
    alone = GuardedEngine(engine="E0", incarnation=0, url=guarded.broken.url, token=guarded.token, clock=lambda: 0)
    assert "Failed to execute general plugin: lorafsm_guard" in guarded.broken.log_path.read_text()
    async with EnginePort(guarded.broken.url, vocab_size=VOCAB_SIZE) as port:
        assert isinstance(await port.generate(PROMPT, None, SHORT, rid()), OK)
    with pytest.raises(AttestationError) as caught:
        await alone.attest()
    assert caught.value.code == "ENGINE_UNGUARDED"
    await alone.aclose()


async def test_the_guards_routes_need_the_token(engine: GuardedEngine, guarded: Guarded, raw: httpx.AsyncClient):
    for token in ("", "wrong", guarded.token[:-1], guarded.token + "0"):
        for method, route in (("GET", "/lorafsm/attestation"), ("POST", "/lorafsm/orders"), ("GET", "/lorafsm/status")):
            answer = await raw.request(method, route, headers={"X-Lorafsm-Token": token}, content=b"{}")
            assert answer.status_code == 401, (token, route)
    assert guarded.token not in guarded.process.log_path.read_text()


@pytest.mark.parametrize(
    "body, field",
    [
        (b"no json", "body"),
        (b"[]", "body"),
        (b'{"Begin": {}, "End": {}}', "order"),
        (b'{"Shutdown": {}}', "order"),
        (b'{"wait_s": -1}', "wait_s"),
        (b'{"AskStatus": {"number": 1}}', "AskStatus"),
        (b" " * 70_000, "body"),
    ],
)
async def test_a_malformed_order_names_its_field(engine, guarded: Guarded, raw: httpx.AsyncClient, body, field):
    answer = await raw.post("/lorafsm/orders", headers={"X-Lorafsm-Token": guarded.token}, content=body)
    assert (answer.status_code, answer.json()["error"]["code"], answer.json()["error"]["field"]) == (
        400,
        "BAD_INPUT",
        field,
    )


# -- publication ------------------------------------------------------------------------------------------


async def test_a_version_is_served_from_ready_to_unload_and_never_else(engine, stored, web: EnginePort):
    a = stored("A")
    assert code_of(await web.score(PROMPT, a.lora_name, rid())) == AgentCode.VERSION_MISSING
    await ready(engine, a)
    assert isinstance(await web.score(PROMPT, a.lora_name, rid()), OK)
    receipt = await engine.carry_out(a.order(Unload, reclaim_id="r-a"))
    assert isinstance(receipt, ev.ConfirmReclaim)
    assert receipt.observed_absent
    assert code_of(await web.score(PROMPT, a.lora_name, rid())) == AgentCode.VERSION_CLOSED
    listed = await web.models()
    assert isinstance(listed, OK)
    assert a.lora_name not in listed.data


async def test_orders_that_come_twice_do_nothing_twice(engine: GuardedEngine, stored):
    """Eight begins, ends and unloads at once, and again later: one fetch, one load, one probe, one unload (I8)."""
    a = stored("A")
    number = next(numbers)
    before = len(await engine.operations())
    for order in (
        a.order(Begin, number=number, plan=store_plan()),
        a.order(End, number=number),
        a.order(Unload, reclaim_id="r-twice"),
    ):
        events = await asyncio.gather(*(engine.carry_out(order) for _ in range(8)))
        events.append(await engine.carry_out(order))
        assert {type(event) for event in events} == {type(events[0])}
        assert {evolve(event, now=0) for event in events} == {evolve(events[0], now=0)}
    done = (await engine.operations())[before:]
    assert [each["op"] for each in done] == ["fetch", "verify", "load", "probe", "unload"]
    assert [each["fault"] for each in done] == [None] * 5
    late = await engine.give(a.order(End, number=number))
    assert isinstance(late, Refused)
    assert late.code is AgentCode.VERSION_CLOSED
    other = await engine.give(a.order(Unload, reclaim_id="r-other"))
    assert isinstance(other, Refused)
    assert str(other.code) == "OPERATION_CONFLICT"


async def test_a_cleanup_fences_what_comes_late(engine: GuardedEngine, stored):
    """Cleanup before a late begin and a late end: nothing is created for that number any more (RFC 3.4)."""
    a = stored("A")
    number = next(numbers)
    assert isinstance(await engine.carry_out(a.order(Cleanup, number=number)), ev.Cleaned)
    for order in (a.order(Begin, number=number, plan=store_plan()), a.order(End, number=number)):
        late = await engine.give(order)
        assert isinstance(late, Refused)
        assert str(late.code) == "STALE_ATTEMPT"
    await ready(engine, a)  # a later number of the same version is free to come


async def test_damaged_bytes_never_reach_sglang(engine: GuardedEngine, stored, guarded: Guarded):
    a = stored("A")
    number = next(numbers)
    await engine.carry_out(a.order(Begin, number=number, plan=store_plan()))
    copy = guarded.store.root.parent / "host" / a.lora_name / "adapter_model.safetensors"
    with copy.open("r+b") as file:
        file.truncate(copy.stat().st_size // 2)
    before = len(await engine.operations())
    failed = await engine.carry_out(a.order(End, number=number))
    assert isinstance(failed, ev.TargetFailed), failed
    assert [each["op"] for each in (await engine.operations())[before:]] == ["verify"]
    assert isinstance(await engine.carry_out(a.order(Cleanup, number=number)), ev.Cleaned)
    await ready(engine, a)  # the damaged copy is gone, the next attempt fetches a fresh one


async def test_a_third_version_finds_no_slot(engine: GuardedEngine, stored):
    a, b, c = stored("A"), stored("B"), stored("C")
    await ready(engine, a)
    await ready(engine, b)
    refused = await engine.give(c.order(Begin, number=next(numbers), plan=store_plan()))
    assert isinstance(refused, Refused)
    assert refused.code is AgentCode.NO_RESOURCES


async def test_a_repair_loads_from_the_store(engine: GuardedEngine, stored, web: EnginePort):
    a = stored("A")
    repaired = await engine.carry_out(a.order(Load, number=next(numbers)))
    assert isinstance(repaired, ev.RepairReady), repaired
    assert isinstance(await web.score(PROMPT, a.lora_name, rid()), OK)


async def test_buckets_come_into_the_stash_and_are_proved_before_the_load(engine: GuardedEngine, stored, web):
    """Two buckets, the second delivered once though armed twice; the digest is proved, the stash is freed."""
    from safetensors.torch import save

    a = stored("A")
    snapshot = freeze_snapshot(*reversed(lora_fixture("A")))
    names = list(snapshot.tensors)
    halves = [names[::2], names[1::2]]
    number = next(numbers)
    plan = Plan(2, "d" * 64)
    assert isinstance(await engine.carry_out(a.order(Begin, number=number, plan=plan)), ev.Prepared)
    assert not await engine.send_bucket(number, 0, b"not armed")
    for bucket, half in enumerate(halves):
        to = {**who(engine.incarnation), "number": number, "bucket": bucket}
        for _ in range(2):
            await engine.give(ArmBucket(**to))
        assert isinstance(await engine.give(ReceiveBucket(**to)), Pending)
        config = {"config": snapshot.manifest.config_json} if bucket == 0 else None
        assert await engine.send_bucket(number, bucket, save({name: snapshot.tensors[name] for name in half}, config))
        done = await engine.carry_out(ReceiveBucket(**to))
        assert isinstance(done, ev.BucketDone), done
    proof = await engine.carry_out(a.order(End, number=number))
    assert isinstance(proof, ev.Ready), proof
    assert proof.digest == a.digest
    assert isinstance(await web.score(PROMPT, a.lora_name, rid()), OK)
    assert stashes_of(number) == []


async def test_relaxs_first_wire_is_spoken(engine: GuardedEngine, stored, web: EnginePort, raw, guarded: Guarded):
    """protocol_version 2: begin, end, status, unload with receipts; a wrong field is 400, a fenced number 409."""
    a = stored("A")
    number = next(numbers)

    async def call(op: str, **more: Any) -> tuple[int, dict[str, Any]]:
        body = {"protocol_version": 2, "op": op, "version_id": a.key.version_id, "digest": a.digest, **more}
        answer = await raw.post("/update_lora_from_distributed", json=body, headers={"X-Lorafsm-Token": guarded.token})
        return answer.status_code, answer.json()

    status, receipt = await call("begin", attempt_id=number, num_buckets=0)
    assert (status, receipt["state"]) == (200, "PREPARED")
    for op in ("end", "end", "status"):
        status, receipt = await call(op, attempt_id=number)
        assert (status, receipt["state"], receipt["lora_name"]) == (200, "READY_LOCAL", a.lora_name)
        assert receipt["engine_incarnation"] == engine.incarnation
    assert isinstance(await web.score(PROMPT, a.lora_name, rid()), OK)
    assert (await call("unload"))[1]["state"] == "UNLOADED"
    assert (await call("end", attempt_id=number))[0] == 409
    status, refused = await call("end", attempt_id="x")
    assert (status, refused["error"]["field"]) == (400, "attempt_id")
    assert (await raw.post("/update_lora_from_distributed", json={})).status_code == 401


# -- side doors -------------------------------------------------------------------------------------------


async def test_the_ordinary_routes_do_not_touch_managedversions(engine, stored, web: EnginePort, guarded):
    a = stored("A")
    await ready(engine, a)
    folder = guarded.adapter
    assert code_of(await web.load(a.lora_name, folder)) == "MANAGED_NAME"  # overwrite
    assert code_of(await web.load(a.lora_name.replace("-1", "-9"), folder)) == "MANAGED_NAME"
    assert code_of(await web.unload(a.lora_name)) == "MANAGED_NAME"
    assert code_of(await web.load("visitor", folder, pinned=False)) == "UNMANAGED_REFUSED"
    assert code_of(await web.score(PROMPT, "visitor", rid())) == "UNMANAGED_REFUSED"
    assert isinstance(await web.score(PROMPT, a.lora_name, rid()), OK)


async def test_the_base_stays_as_it_is_whileversions_rest_on_it(engine, stored, raw: httpx.AsyncClient, guarded):
    await ready(engine, stored("A"))
    body = {"model_path": str(guarded.model)}
    answer = await raw.post("/update_weights_from_disk", json=body)
    assert "BASE_IN_USE" in answer.text
    answer = await raw.post("/release_memory_occupation", json={})
    assert "BASE_IN_USE" in answer.text


@pytest.mark.parametrize(
    "more, code",
    [
        ({"extra_key": "x"}, "EXTRA_KEY"),
        ({"sampling_params": {"n": 2, "max_new_tokens": 2}}, "SEVERAL_SAMPLES"),
        ({"sampling_params": [{"n": 2, "max_new_tokens": 2}]}, "SEVERAL_SAMPLES"),
    ],
)
async def test_what_would_crossversions_is_refused(engine, stored, raw: httpx.AsyncClient, more, code):
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

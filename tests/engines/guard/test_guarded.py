"""A guarded engine and its publisher: the proof, its routes, and what each order does, once."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import httpx
import pytest
from attrs import evolve

pytest.importorskip("torch", reason="not installed: torch (`make test` installs it)")

from lorafsm import events as ev
from lorafsm.engine.answers import AgentCode, Pending, Refused
from lorafsm.engine.orders import ArmBucket, ReceiveBucket
from lorafsm.manifest import Plan, store_plan
from lorafsm.orders import Begin, Cleanup, End, Load, Unload
from lorafsm_sglang import OK, EnginePort
from lorafsm_sglang.guard import AttestationError, GuardedEngine
from lorafsm_sglang.tiny_model import VOCAB_SIZE, lora_fixture
from lorafsm_torch import freeze_snapshot
from tests.engines.guard.house import (
    EPOCH_ID,
    PROMPT,
    SHORT,
    Guarded,
    client,
    code_of,
    numbers,
    ready,
    rid,
    who,
)

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]  # the first test of a folder starts its engines


class Deaf(httpx.AsyncHTTPTransport):
    """The request arrives and its reply is lost."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        await response.aread()
        await response.aclose()
        raise httpx.ReadError("dropped", request=request)


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


async def test_another_version_under_a_number_is_a_conflict_and_changes_nothing(engine: GuardedEngine, stored):
    """The same number, or the same version under a number of its own, never means two things (RFC 3.3)."""
    a, b = stored("A"), stored("B")
    number = await ready(engine, a)
    before = await engine.status()
    for order in (b.order(Begin, number=number, plan=store_plan()), b.order(End, number=number)):
        refused = await engine.give(order)
        assert isinstance(refused, Refused), refused
        assert str(refused.code) == "OPERATION_CONFLICT"
    assert await engine.status() == before


async def test_a_lost_ready_is_told_again_without_a_second_load(engine: GuardedEngine, stored, guarded: Guarded):
    """Every reply is dropped on the way: unknown to this caller, and the same order later finds what was done."""
    a = stored("A")
    number = next(numbers)
    before = len(await engine.operations())
    assert isinstance(await engine.carry_out(a.order(Begin, number=number, plan=store_plan())), ev.Prepared)
    deaf = client(guarded.process, guarded.token, engine.incarnation, deadline_s=0.5, transport=Deaf())
    assert isinstance(await deaf.carry_out(a.order(End, number=number)), ev.TargetUnknown)
    await deaf.aclose()
    proof = await engine.carry_out(a.order(End, number=number))
    assert isinstance(proof, ev.Ready), proof
    assert [each["op"] for each in (await engine.operations())[before:]] == ["fetch", "verify", "load", "probe"]


async def test_a_cleanup_fences_what_comes_late(engine: GuardedEngine, stored):
    """Cleanup before a late begin, bucket and end: nothing is created for that number any more (RFC 3.4)."""
    a = stored("A")
    number = next(numbers)
    assert isinstance(await engine.carry_out(a.order(Cleanup, number=number)), ev.Cleaned)
    to = {**who(engine.incarnation), "number": number, "bucket": 0}
    begin, end = a.order(Begin, number=number, plan=Plan(1, "d" * 64)), a.order(End, number=number)
    for order in (begin, ArmBucket(**to), ReceiveBucket(**to), end):
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
    """Two buckets, armed and sent twice, taken once; the digest is proved, the stash is freed."""
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
        data = save({name: snapshot.tensors[name] for name in half}, config)
        assert await engine.send_bucket(number, bucket, data)
        done = await engine.carry_out(ReceiveBucket(**to))
        assert isinstance(done, ev.BucketDone), done
        assert not await engine.send_bucket(number, bucket, data), "it is complete; nothing is posted"
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

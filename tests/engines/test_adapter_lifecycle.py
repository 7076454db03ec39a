"""One real engine: load, probe, generate, unload, and what native SGLang does in between."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import aclosing

import pytest

from lorafsm_sglang import OK, EnginePort, Refused, Sampling, Unknown, UnknownKind
from lorafsm_sglang.generation import Arrival
from tests.engines.conftest import write_lora

pytestmark = pytest.mark.engines

PROMPT = tuple(range(10, 60))
LONG = Sampling(max_new_tokens=500, ignore_eos=True)


async def started(items):
    """The first arrival of a stream: from here on the request runs on the engine."""
    first = await anext(items)
    assert isinstance(first, Arrival)
    return first


async def test_load_probe_generate_unload(port: EnginePort, artifacts, new_name, new_rid):
    name = new_name("A")
    loaded = await port.load(name, artifacts.adapters["A"])
    assert isinstance(loaded, OK)
    assert loaded.data.adapters[name] == str(artifacts.adapters["A"])
    models = await port.models()
    assert models == OK({name: str(artifacts.adapters["A"])})

    probe = await port.probe(name, new_rid())
    assert isinstance(probe, OK)
    assert probe.data.completion_tokens == 1
    rid = new_rid()
    reply = await port.generate(PROMPT, name, Sampling(max_new_tokens=5, ignore_eos=True), rid)
    assert isinstance(reply, OK)
    assert (reply.data.rid, reply.data.finish, len(reply.data.output_ids)) == (rid, "length", 5)

    assert isinstance(await port.unload(name), OK)
    assert await port.models() == OK({})
    assert port.control_calls_open() == ()


async def test_a_name_is_loaded_once_and_unloaded_once(port: EnginePort, artifacts, new_name):
    name = new_name("A")
    assert isinstance(await port.load(name, artifacts.adapters["A"]), OK)
    again = await port.load(name, artifacts.adapters["B"])
    assert isinstance(again, Refused)
    assert "already loaded" in again.message
    assert isinstance(await port.unload(name), OK)
    second = await port.unload(name)
    assert isinstance(second, Refused)
    assert "does not exist" in second.message


async def test_two_pinned_versions_fill_three_slots(port: EnginePort, artifacts, new_name):
    for fixture in ("A", "B"):
        assert isinstance(await port.load(new_name(fixture), artifacts.adapters[fixture]), OK)
    third = await port.load(new_name("C"), artifacts.adapters["C"])
    assert isinstance(third, Refused)
    assert "pin" in third.message


@pytest.mark.parametrize("stream", [False, True])
async def test_a_version_that_was_never_loaded_is_refused(port: EnginePort, new_name, new_rid, stream):
    reply = await port.generate(PROMPT, new_name("absent"), LONG, new_rid(), stream=stream)
    assert isinstance(reply, Refused)
    assert reply.status == 400
    assert "never been loaded" in reply.message


async def test_native_engine_reloads_a_name_that_it_once_had(port: EnginePort, artifacts, new_name, new_rid, tmp_path):
    """The trap that the closed set and one-shot folders exist for: only the missing folder stops it."""
    name = new_name("A")
    folder = tmp_path / "one-shot"
    shutil.copytree(artifacts.adapters["A"], folder)
    assert isinstance(await port.load(name, folder), OK)
    assert isinstance(await port.unload(name), OK)

    late = await port.probe(name, new_rid())
    assert isinstance(late, OK), "if this is refused now, SGLang has closed the trap: update the notes"
    assert await port.models() == OK({name: str(folder)})
    assert isinstance(await port.unload(name), OK)

    shutil.rmtree(folder)
    assert isinstance(await port.probe(name, new_rid()), Refused)
    assert await port.models() == OK({})


async def test_unload_waits_for_the_request_in_flight(port: EnginePort, artifacts, new_name, new_rid):
    name = new_name("A")
    await port.load(name, artifacts.adapters["A"])
    async with aclosing(port.stream(PROMPT, name, LONG, new_rid())) as items:
        await started(items)
        assert port.in_flight(name) == 1
        unload = asyncio.create_task(port.unload(name))
        while (models := await port.models()) != OK({}):
            assert isinstance(models, OK)
        assert not unload.done(), "the name goes first, the weights stay while the request runs"
        base = await port.score(PROMPT, None, new_rid())
        assert isinstance(base, OK), "other traffic goes on"
        assert not unload.done()
        *_, reply = [item async for item in items]
    assert isinstance(reply, OK)
    assert len(reply.data.output_ids) == LONG.max_new_tokens
    assert isinstance(await unload, OK)
    assert port.in_flight(name) == 0


@pytest.mark.parametrize("how", ["time-out", "cancelled"])
async def test_a_control_call_outlives_its_waiter(port: EnginePort, artifacts, new_name, new_rid, how):
    name, other = new_name("A"), new_name("B")
    await port.load(name, artifacts.adapters["A"])
    async with aclosing(port.stream(PROMPT, name, LONG, new_rid())) as items:
        await started(items)
        if how == "time-out":
            reply = await port.unload(name, timeout_s=0.1)
            assert isinstance(reply, Unknown)
            assert reply.kind is UnknownKind.TIMEOUT
        else:
            waiter = asyncio.create_task(port.unload(name))
            while await port.models() != OK({}):
                pass
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
        assert port.control_calls_open() == (f"unload {name}",)
        # A cancelled call would hand its reply to this one.
        load = await port.load(other, artifacts.adapters["B"])
        assert isinstance(load, OK)
        assert set(load.data.adapters) == {other}
        assert port.control_calls_open() == ()
        assert [item async for item in items][-1].data.finish == "length"


async def test_cached_tokens_belong_to_one_version(port: EnginePort, artifacts, new_name, new_rid):
    prompt = tuple(range(100, 164))
    first, second = new_name("A"), new_name("A")
    await port.load(first, artifacts.adapters["A"])
    await port.load(second, artifacts.adapters["A"])

    async def cached(version):
        reply = await port.score(prompt, version, new_rid())
        assert isinstance(reply, OK)
        return reply.data.cached_tokens

    assert [await cached(version) for version in (first, second, first, second)] == [0, 0, 63, 63]
    assert [await cached(version) for version in (None, first, None)] == [0, 63, 63]
    await port.unload(first)
    await port.load(reloaded := new_name("A"), artifacts.adapters["A"])
    assert await cached(reloaded) == 0, "the same content under a new load shares nothing"


async def test_abort_ends_one_request(port: EnginePort, artifacts, new_name, new_rid):
    name, rid = new_name("A"), new_rid()
    await port.load(name, artifacts.adapters["A"])
    async with aclosing(port.stream(PROMPT, name, LONG, rid)) as items:
        await started(items)
        assert await port.abort(rid) == OK(None)
        *_, reply = [item async for item in items]
    assert isinstance(reply, OK)
    assert reply.data.aborted
    assert len(reply.data.output_ids) < LONG.max_new_tokens
    assert port.in_flight(name) == 0


async def test_a_caller_that_leaves_frees_the_version(port: EnginePort, artifacts, new_name, new_rid):
    name = new_name("A")
    await port.load(name, artifacts.adapters["A"])
    for _ in range(3):
        async with aclosing(port.stream(PROMPT, name, LONG, new_rid())) as items:
            await started(items)
        assert port.in_flight(name) == 0
    request = asyncio.create_task(port.generate(PROMPT, name, LONG, new_rid()))
    while (status := await port.status()).data.running == 0:
        assert isinstance(status, OK)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    assert port.in_flight(name) == 0
    assert isinstance(await port.unload(name, timeout_s=30), OK)


async def test_refused_requests_leak_no_reference(port: EnginePort, artifacts, new_name, new_rid):
    """RFC 7.1: a 400 before scheduling releases once; with a leak the unload would hang."""
    name = new_name("A")
    await port.load(name, artifacts.adapters["A"])
    too_long = tuple(range(500)) * 5
    replies = await asyncio.gather(*(port.score(too_long, name, new_rid()) for _ in range(10)))
    assert {type(reply) for reply in replies} == {Refused}
    assert {reply.status for reply in replies} == {400}
    assert isinstance(await port.unload(name, timeout_s=30), OK)


async def test_streamed_and_whole_replies_agree(port: EnginePort, artifacts, new_name, new_rid):
    from lorafsm_sglang import Logprobs

    name = new_name("B")
    await port.load(name, artifacts.adapters["B"])
    sampling, logprobs = Sampling(max_new_tokens=20, ignore_eos=True), Logprobs(token_ids=(5, 6))
    whole = await port.generate(PROMPT, name, sampling, new_rid(), logprobs=logprobs)
    streamed = await port.generate(PROMPT, name, sampling, new_rid(), logprobs=logprobs, stream=True)
    assert isinstance(whole, OK)
    assert isinstance(streamed, OK)
    assert streamed.data.output_ids == whole.data.output_ids
    assert streamed.data.output_logprobs == pytest.approx(whole.data.output_logprobs, abs=1e-3)
    assert [set(position) for position in streamed.data.token_ids_logprobs] == [{5, 6}] * 20
    assert sum(len(arrival.token_ids) for arrival in streamed.data.arrivals) == 20
    assert streamed.data.largest_gap_s() > 0


def test_write_lora_is_the_fixture(artifacts, tmp_path, engines):
    again = write_lora(tmp_path / "A", "A")
    name = "adapter_model.safetensors"
    assert (again / name).read_bytes() == (artifacts.adapters["A"] / name).read_bytes()

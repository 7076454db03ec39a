"""What SGLang 0.5.23 alone does wrong, shown on an engine without the guard, and its absence on a guarded one.

`native` is the engine whose guard never came up.  Where a whole engine cannot show a defect, the tests in
tests/adapters/test_guard_tokenizer.py do; the guard's README lists all.  Last in this folder: it ends `native`.
"""

from __future__ import annotations

import asyncio
import base64
import pickle
import uuid
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("torch", reason="not installed: torch (`make test` installs it)")

from lorafsm import events as ev
from lorafsm.engine.answers import AgentCode
from lorafsm.manifest import store_plan
from lorafsm.orders import Begin, End, Unload
from lorafsm_sglang import OK, EnginePort, Sampling
from lorafsm_sglang import Refused as HttpRefused
from lorafsm_sglang.tiny_model import lora_fixture, write_lora
from tests.engines.guard.house import (
    PROMPT,
    SHORT,
    Guarded,
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
)

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]  # the first test of a folder starts its engines

RUNS = Sampling(max_new_tokens=800, ignore_eos=True)
BRIEFLY_S = 1.0  # long enough for a call that nothing holds up


def unique(letter: str) -> str:
    """A name that the engine never had: it remembers every one."""
    return f"{letter}-{uuid.uuid4().hex[:8]}"


async def load(native: EnginePort, tmp_path: Path, letter: str) -> str:
    name = unique(letter)
    loaded = await native.load(name, write_lora(tmp_path / name, letter))
    assert isinstance(loaded, OK), loaded
    return name


async def running(port: EnginePort, name: str, mine: str) -> asyncio.Task[Any]:
    """A request that is in the scheduler and goes on for a while."""
    task = asyncio.create_task(port.generate(PROMPT, name, RUNS, mine))
    await until_in_scheduler(port, 1)
    return task


async def until_in_scheduler(port: EnginePort, requests: int) -> None:
    async def there() -> bool:
        status = await port.status()
        assert isinstance(status, OK), status
        return status.data.running == requests

    await until(there, f"{requests} request(s) run")


async def until_gone(port: EnginePort, name: str) -> None:
    """The unload has begun: the name goes first."""

    async def gone() -> bool:
        models = await port.models()
        return isinstance(models, OK) and name not in models.data

    await until(gone, f"{name} is not listed")


async def waits(*tasks: asyncio.Task[Any]) -> bool:
    """Whether none of them ends in a time in which all would, were nothing in their way."""
    done, _ = await asyncio.wait(tasks, timeout=BRIEFLY_S, return_when=asyncio.FIRST_COMPLETED)
    return not done


def tensors_of(letter: str, name: str) -> dict[str, Any]:
    """The body of SGLang's own load from tensors, which it unpickles."""
    tensors, config = lora_fixture(letter)
    return {
        "lora_name": name,
        "config_dict": dict(config),
        "serialized_named_tensors": [base64.b64encode(pickle.dumps(dict(tensors))).decode()],
        "pinned": True,
    }


# -- the life of a version --------------------------------------------------------------------------------


async def test_r1_a_name_that_is_gone_is_not_loaded_again(engine, stored, web, native, tmp_path, guarded: Guarded):
    name = await load(native, tmp_path, "A")
    assert isinstance(await native.unload(name), OK)
    assert isinstance(await native.score(PROMPT, name, rid()), OK), "SGLang has closed the trap: update the notes"
    assert len(lora_ids(guarded.broken, name)) == 2, "loaded again, with another id"

    a = stored("A")
    await ready(engine, a)
    await engine.carry_out(a.order(Unload, reclaim_id="r-gone-r1"))
    assert code_of(await web.score(PROMPT, a.lora_name, rid())) == AgentCode.VERSION_CLOSED
    assert len(lora_ids(guarded.process, a.lora_name)) == 1


async def test_r2_a_late_request_does_not_wait_for_the_unload_and_bring_it_back(
    engine, stored, web, native, tmp_path, guarded: Guarded
):
    name = await load(native, tmp_path, "A")
    await running(native, name, rid())
    unload = asyncio.create_task(native.unload(name))
    await until_gone(native, name)
    late = asyncio.create_task(native.score(PROMPT, name, rid()))
    assert await waits(unload, late), "the late request waits for the control lock"
    assert isinstance(await unload, OK)
    assert isinstance(await late, OK)
    assert len(lora_ids(guarded.broken, name)) == 2

    a = stored("A")
    await ready(engine, a)
    mine = await running(web, a.lora_name, rid())
    reclaim = asyncio.create_task(engine.carry_out(a.order(Unload, reclaim_id="r-late")))
    await until_draining(engine, a)
    assert code_of(await web.score(PROMPT, a.lora_name, rid())) == AgentCode.VERSION_CLOSED
    assert not mine.done(), "the machine is too fast for this test: A ended first"
    assert isinstance(await reclaim, ev.ConfirmReclaim)
    assert len(lora_ids(guarded.process, a.lora_name)) == 1


async def test_r3_a_late_request_of_tensors_asks_no_hub(engine, stored, web, raw, native, native_raw, guarded):
    """SGLang looks for a repository named "__tensor__" on the hub; these engines are offline, so it is told so."""
    name = unique("A")
    loaded = await native_raw.post("/load_lora_adapter_from_tensors", json=tensors_of("A", name))
    assert loaded.json()["success"], loaded.text
    assert isinstance(await native.score(PROMPT, name, rid()), OK)
    assert isinstance(await native.unload(name), OK)
    late = await native.score(PROMPT, name, rid())
    assert isinstance(late, HttpRefused)
    assert "Failed to implicitly load" in late.message
    assert "look-ups" in late.message

    a = stored("A")
    refused = await raw.post("/load_lora_adapter_from_tensors", json=tensors_of("A", a.lora_name))
    assert "MANAGED_NAME" in refused.text
    assert code_of(await web.score(PROMPT, a.lora_name, rid())) == AgentCode.VERSION_MISSING
    assert "__tensor__" not in guarded.process.log_path.read_text(errors="replace")


# -- one request stands in the way of others --------------------------------------------------------------


async def test_c2_an_unload_that_waits_blocks_no_other_version(engine, stored, web, native, tmp_path):
    name = await load(native, tmp_path, "A")
    mine = await running(native, name, rid())
    unload = asyncio.create_task(native.unload(name))
    await until_gone(native, name)
    other = asyncio.create_task(load(native, tmp_path, "B"))
    assert await waits(unload, other), "B waits for a request of A"
    assert not mine.done(), "the machine is too fast for this test: A ended first"
    await asyncio.gather(unload, other, mine)

    a, b = stored("A"), stored("B")
    await ready(engine, a)
    mine = await running(web, a.lora_name, rid())
    reclaim = asyncio.create_task(engine.carry_out(a.order(Unload, reclaim_id="r-c2")))
    await until_draining(engine, a)
    await ready(engine, b)
    assert not mine.done(), "the machine is too fast for this test: A ended first"
    assert not reclaim.done()
    assert isinstance(await reclaim, ev.ConfirmReclaim)


async def test_c3_an_unload_while_generation_is_paused(
    engine, stored, web, raw, native, native_raw, tmp_path, guarded: Guarded
):
    """Requests of a paused engine do not end, so no unload can; without the guard no other control call can either."""
    name = await load(native, tmp_path, "A")
    mine = await running(native, name, rid())
    assert (await native_raw.post("/pause_generation", json={"mode": "in_place"})).is_success
    unload = asyncio.create_task(native.unload(name))
    await until_gone(native, name)
    other = asyncio.create_task(load(native, tmp_path, "B"))
    assert await waits(mine, unload, other)
    assert (await native_raw.post("/continue_generation", json={})).is_success
    await asyncio.gather(mine, unload, other)

    a, b = stored("A"), stored("B")
    await ready(engine, a)
    held = rid()
    mine = await running(web, a.lora_name, held)
    assert (await raw.post("/pause_generation", json={"mode": "in_place"})).is_success
    short = client(guarded.process, guarded.token, engine.incarnation, wait_s=0.1, deadline_s=0.2)
    order, number = a.order(Unload, reclaim_id="r-paused"), next(numbers)
    assert isinstance(await short.carry_out(order), ev.ReclaimUnknown)
    assert (await adapter_of(engine, a))["held_by"] == [held], "the status says who holds it"
    assert isinstance(await engine.carry_out(b.order(Begin, number=number, plan=store_plan())), ev.Prepared)
    end = asyncio.create_task(engine.carry_out(b.order(End, number=number)))

    async def loaded() -> bool:
        return any(op["op"] == "load" and op["lora_name"] == b.lora_name for op in await engine.operations())

    await until(loaded, "B is loaded while A's unload waits")
    assert not mine.done()
    assert (await raw.post("/continue_generation", json={})).is_success
    assert isinstance(await end, ev.Ready)
    assert isinstance(await engine.carry_out(order), ev.ConfirmReclaim)
    assert isinstance(await mine, OK)
    await short.aclose()


async def test_a1_an_abort_hits_no_longer_rid(engine, stored, web, raw, native, native_raw, tmp_path):
    async def tokens_after_abort(port: EnginePort, plain: httpx.AsyncClient, name: str) -> int:
        short = rid()
        sampling = {"max_new_tokens": RUNS.max_new_tokens, "ignore_eos": True}
        body = {"input_ids": PROMPT, "sampling_params": sampling}
        one = asyncio.create_task(plain.post("/generate", json={**body, "rid": f"{short}:1"}))
        ten = asyncio.create_task(plain.post("/generate", json={**body, "rid": f"{short}:10", "lora_path": name}))
        await until_in_scheduler(port, 2)
        await plain.post("/abort_request", json={"rid": f"{short}:1"})
        await one
        return int((await ten).json()["meta_info"]["completion_tokens"])

    name = await load(native, tmp_path, "A")
    ended = await tokens_after_abort(native, native_raw, name)
    assert ended < RUNS.max_new_tokens, "the abort of :1 ended :10"

    a = stored("A")
    await ready(engine, a)
    assert await tokens_after_abort(web, raw, a.lora_name) == RUNS.max_new_tokens


# -- KV ---------------------------------------------------------------------------------------------------


async def test_k1_a_streaming_session_takes_no_kv_to_another_version(engine, stored, native, native_raw, raw, tmp_path):
    async def turn(web: httpx.AsyncClient, session: str, name: str) -> httpx.Response:
        body = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 2}, "lora_path": name, "rid": rid()}
        return await web.post("/generate", json={**body, "session_params": {"id": session}})

    async def opened(web: httpx.AsyncClient) -> str:
        answer = await web.post("/open_session", json={"capacity_of_str_len": 1000, "streaming": True})
        assert answer.is_success, answer.text
        return str(answer.json())

    a, b = [await load(native, tmp_path, letter) for letter in "AB"]
    session = await opened(native_raw)
    assert (await turn(native_raw, session, a)).json()["meta_info"]["cached_tokens"] == 0
    second = (await turn(native_raw, session, b)).json()["meta_info"]
    assert second["cached_tokens"] >= len(PROMPT), "B goes on from A's KV"
    await native_raw.post("/close_session", json={"session_id": session})

    of_a, of_b = stored("A"), stored("B")
    await ready(engine, of_a)
    await ready(engine, of_b)
    session = await opened(raw)
    assert (await turn(raw, session, of_a.lora_name)).is_success
    refused = await turn(raw, session, of_b.lora_name)
    assert refused.json()["error"]["message"].startswith("SESSION_VERSION")
    await raw.post("/close_session", json={"session_id": session})


async def test_k2_a_base_request_gets_no_adapters_kv(engine, stored, web, raw, native, native_raw, tmp_path, guarded):
    prompt = list(range(300, 332))

    def base(key: str) -> dict[str, Any]:
        return {"input_ids": prompt, "sampling_params": {"max_new_tokens": 1}, "extra_key": key, "rid": rid()}

    name = await load(native, tmp_path, "A")
    assert isinstance(await native.generate(prompt, name, SHORT, rid()), OK)
    [live] = lora_ids(guarded.broken, name)
    answer = await native_raw.post("/generate", json=base(live))
    assert answer.json()["meta_info"]["cached_tokens"] > 0, "the base answers from A's KV"

    a = stored("A")
    await ready(engine, a)
    assert isinstance(await web.generate(prompt, a.lora_name, SHORT, rid()), OK)
    [live] = lora_ids(guarded.process, a.lora_name)
    answer = await raw.post("/generate", json=base(live))
    assert answer.json()["error"]["message"].startswith("EXTRA_KEY")


async def test_k4_an_id_of_its_own_for_each_load(engine, stored, guarded: Guarded):
    """An adapter of `--lora-paths` has an id made of name and path, the same on every engine, whatever it holds."""
    of_name_and_path = uuid.uuid5(uuid.NAMESPACE_URL, f"seed\0{guarded.adapter}").hex
    started_with = guarded.broken.log_path.read_text(errors="replace")
    assert f"{{'lora_id': '{of_name_and_path}', 'lora_name': 'seed'," in started_with

    a = stored("A")
    await ready(engine, a)
    await engine.carry_out(a.order(Unload, reclaim_id="r-k4"))
    again = stored("A")
    await ready(engine, again)
    ids = [*lora_ids(guarded.process, a.lora_name), *lora_ids(guarded.process, again.lora_name)]
    assert len(set(ids)) == 2


# -- what a client may not send: these end the native engine ----------------------------------------------


async def test_o1_a_clients_lora_id_drops_nobodys_reference(
    engine, stored, web, raw, native, native_raw, tmp_path, guarded: Guarded
):
    """A bad name with a live adapter's id: the adapter is unloaded under its running request."""

    async def bad_name(web: httpx.AsyncClient, name: str, live: str) -> httpx.Response:
        body = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 2}, "rid": rid()}
        return await web.post("/generate", json={**body, "lora_path": name, "lora_id": live})

    name = await load(native, tmp_path, "A")
    mine = await running(native, name, rid())
    [live] = lora_ids(guarded.broken, name)
    assert (await bad_name(native_raw, unique("absent"), live)).status_code == httpx.codes.BAD_REQUEST
    assert isinstance(await native.unload(name), OK)
    assert not mine.done(), "unloaded while its request runs"
    mine.cancel()

    a = stored("A")
    await ready(engine, a)
    mine = await running(web, a.lora_name, rid())
    [live] = lora_ids(guarded.process, a.lora_name)
    refused = await bad_name(raw, f"{a.lora_name[:-12]}{'0' * 12}", live)
    assert refused.status_code == httpx.codes.BAD_REQUEST
    assert (await adapter_of(engine, a))["sglang_count"] == 1
    mine.cancel()
    await until_refs(engine, a, 0)


async def test_x1_bytes_that_do_not_match_end_no_engine(engine, stored, web, raw, native_raw, guarded: Guarded):
    """SGLang compares checksums in the scheduler, outside any try: the engine ends.  Last here for that reason."""
    wrong = {"expected_checksums": {"no such tensor": "0" * 64}}
    with pytest.raises(httpx.HTTPError):
        await native_raw.post("/load_lora_adapter_from_tensors", json={**tensors_of("A", unique("A")), **wrong})

    async def ended() -> bool:
        return not guarded.broken.alive()

    await until(ended, "the native engine ends")

    a = stored("A")
    refused = await raw.post("/load_lora_adapter_from_tensors", json={**tensors_of("A", a.lora_name), **wrong})
    assert refused.status_code == httpx.codes.BAD_REQUEST
    assert "MANAGED_NAME" in refused.text
    number = next(numbers)
    await engine.carry_out(a.order(Begin, number=number, plan=store_plan()))
    copy = guarded.store.root.parent / "host" / a.lora_name / "adapter_model.safetensors"
    damaged = bytearray(copy.read_bytes())
    damaged[-1] ^= 1
    copy.write_bytes(damaged)
    assert isinstance(await engine.carry_out(a.order(End, number=number)), ev.TargetFailed)
    assert isinstance(await web.score(PROMPT, None, rid()), OK)

"""The guard's parts that need no SGLang: admission of requests, the stash, the publisher's client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lorafsm import events as ev
from lorafsm.engine import answers as an
from lorafsm.identity import VersionKey, lora_name
from lorafsm.manifest import store_plan
from lorafsm.orders import Begin, Cleanup, End, Load, TakeInventory, Unload
from lorafsm_sglang.guard import (
    AttestationError,
    GuardedEngine,
)
from lorafsm_sglang.guard.admission import RequestRefused, Rids, Screen
from lorafsm_sglang.guard.stash import Stash, StashError
from lorafsm_sglang.guard.wire import write_answer
from tests.adapters.test_guard_proof import PROOF

KEY, DIGEST = VersionKey("e1", 3), "a" * 64
NAME = lora_name(KEY, DIGEST)
WHO: dict[str, Any] = {"epoch": "e1", "engine": "E0", "incarnation": 7}
WHAT: dict[str, Any] = {"key": KEY, "digest": DIGEST, "lora_name": NAME}
TOKEN = "t" * 32

# -- admission --------------------------------------------------------------------------------------------


def request(**fields: Any) -> Any:
    return SimpleNamespace(**{"lora_path": NAME, "lora_id": None, "extra_key": None, "sampling_params": {}, **fields})


@pytest.mark.parametrize(
    "fields, code",
    [
        ({"extra_key": "x"}, "EXTRA_KEY"),
        ({"extra_key": ["", "x"], "lora_path": [NAME, None]}, "EXTRA_KEY"),
        ({"sampling_params": {"n": 2}}, "SEVERAL_SAMPLES"),
        ({"sampling_params": [{"n": 1}, {"n": 3}], "lora_path": [NAME, NAME]}, "SEVERAL_SAMPLES"),
        ({"sampling_params": {"beam_width": 2}}, "SEVERAL_SAMPLES"),
        ({"lora_path": [NAME, "visitor"]}, "UNMANAGED_REFUSED"),
        ({"lora_path": "visitor"}, "UNMANAGED_REFUSED"),
        ({"lora_path": None, "extra_key": f"x{'i' * 32}"}, "EXTRA_KEY"),
    ],
)
def test_a_request_that_could_cross_versions_is_refused(fields: dict[str, Any], code: str):
    with pytest.raises(RequestRefused) as caught:
        Screen(False, {"i" * 32}).check(request(**fields))
    assert caught.value.code == code
    assert str(caught.value).startswith(f"{code}: ")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"lora_path": [NAME, None]},
        {"lora_path": None, "extra_key": "mine", "sampling_params": {"n": 4}},
        {"sampling_params": None},
        {"extra_key": ""},
    ],
)
def test_an_ordinary_request_passes_and_its_lora_id_is_stripped(fields: dict[str, Any]):
    seen = request(**fields, lora_id="i" * 32)
    Screen(False, {"i" * 32}).check(seen)
    assert seen.lora_id is None


@given(st.lists(st.tuples(st.booleans(), st.text("ab", min_size=1, max_size=5)), max_size=40))
def test_no_rid_in_flight_begins_with_another(steps: list[tuple[bool, str]]):
    """Against a plain set: refused exactly where one in flight is a prefix of the other."""
    rids, naive = Rids(), set[str]()
    for add, rid in steps:
        if not add:
            rids.discard(rid)
            naive.discard(rid)
            continue
        clash = any(rid.startswith(other) or other.startswith(rid) for other in naive)
        try:
            rids.add(rid)
        except RequestRefused:
            assert clash
        else:
            assert not clash
            naive.add(rid)


# -- stash ------------------------------------------------------------------------------------------------


def buckets_in(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*.safetensors")]


async def test_a_stash_takes_only_what_is_posted(tmp_path: Path):
    stash = Stash(tmp_path, "E0")
    with pytest.raises(StashError):
        await stash.deliver(1, 0, b"x")
    posted = asyncio.create_task(stash.receive(1, 0))
    await asyncio.sleep(0)
    with pytest.raises(StashError):
        await stash.deliver(1, 1, b"x")
    await stash.deliver(1, 0, b"x")
    assert await posted is None
    assert buckets_in(tmp_path) == ["0.safetensors"]
    stash.drop(1)
    assert buckets_in(tmp_path) == []


async def test_a_receive_ends_by_its_deadline_or_an_abort(tmp_path: Path):
    late = await Stash(tmp_path, "E0", deadline_s=0.01).receive(1, 0)
    assert late is not None
    assert "did not come" in late
    stash = Stash(tmp_path, "E0")
    posted = asyncio.create_task(stash.receive(2, 0))
    await asyncio.sleep(0)
    stash.abort(2)
    assert "aborted" in (await posted or "")


def test_what_dead_processes_left_is_removed(tmp_path: Path):
    dead = tmp_path / "lorafsm-stash-E0-4194305"
    dead.mkdir()
    other = tmp_path / "lorafsm-stash-E1-4194305"
    other.mkdir()
    Stash(tmp_path, "E0")
    assert (dead.exists(), other.exists()) == (False, True)


@pytest.mark.parametrize("fault", ["no safetensors", "no config", "twice", "another digest", None])
async def test_buckets_are_an_adapter_only_with_its_digest(tmp_path: Path, fault: str | None):
    pytest.importorskip("torch", reason="not installed: torch (`make test` installs it)")
    from safetensors.torch import save

    from lorafsm_sglang.tiny_model import lora_fixture
    from lorafsm_torch import freeze_snapshot

    snapshot = freeze_snapshot(*reversed(lora_fixture("A")))
    names = list(snapshot.tensors)
    config = None if fault == "no config" else {"config": snapshot.manifest.config_json}
    first = save({name: snapshot.tensors[name] for name in names[:5]}, config)
    second = save({name: snapshot.tensors[name] for name in names[4 if fault == "twice" else 5 :]})
    stash = Stash(tmp_path, "E0")
    for bucket, data in enumerate((first, b"no" if fault == "no safetensors" else second)):
        posted = asyncio.create_task(stash.receive(1, bucket))
        await asyncio.sleep(0)
        await stash.deliver(1, bucket, data)
        assert await posted is None
    if fault is None:
        folder = stash.assemble(1, snapshot.digest)
        assert sorted(path.name for path in folder.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    else:
        with pytest.raises(StashError):
            stash.assemble(1, "f" * 64 if fault == "another digest" else snapshot.digest)


# -- client -----------------------------------------------------------------------------------------------


def engine(answer: Callable[[httpx.Request], httpx.Response], **more: Any) -> GuardedEngine:
    transport = httpx.MockTransport(answer)
    return GuardedEngine("E0", 7, "http://engine", TOKEN, lambda: 5, transport=transport, **more)


def says(answer: Any, quarantine: tuple[str, ...] = ()) -> httpx.Response:
    return httpx.Response(200, json={"answer": write_answer(answer), "quarantine": list(quarantine)})


async def test_a_pending_order_is_given_again_until_it_is_done():
    answers = [an.Pending(waits_for="it"), an.Pending(waits_for="it"), an.Cleaned(number=1, incarnation=7, seq=4)]
    seen = []

    def answer(asked: httpx.Request) -> httpx.Response:
        assert asked.headers["x-lorafsm-token"] == TOKEN
        seen.append(json.loads(asked.content))
        return says(answers[len(seen) - 1])

    order = Cleanup(**WHO, **WHAT, number=1)
    assert await engine(answer).carry_out(order) == ev.Cleaned(number=1, engine="E0", incarnation=7, seq=4, now=5)
    assert [set(each) for each in seen] == [{"Cleanup", "wait_s"}] * 3


@pytest.mark.parametrize(
    "order, event",
    [
        (Begin(**WHO, **WHAT, number=1, plan=store_plan()), ev.TargetUnknown),
        (End(**WHO, **WHAT, number=1), ev.TargetUnknown),
        (Cleanup(**WHO, **WHAT, number=1), ev.TargetUnknown),
        (Unload(**WHO, **WHAT, reclaim_id="r1"), ev.ReclaimUnknown),
        (Load(**WHO, **WHAT, number=1), None),
        (TakeInventory(**WHO), None),
    ],
)
@pytest.mark.parametrize("how", ["lost", "500", "401", "no json", "another protocol", "pending"])
async def test_an_answer_that_does_not_come_is_unknown(order: Any, event: type | None, how: str):
    def answer(asked: httpx.Request) -> httpx.Response:
        match how:
            case "lost":
                raise httpx.ReadError("lost")
            case "500" | "401":
                return httpx.Response(int(how))
            case "no json":
                return httpx.Response(200, content=b"<html>")
            case "another protocol":
                return httpx.Response(200, json={"answer": {"Shrug": {}}})
            case _:
                return says(an.Pending(waits_for="it"))

    seen = await engine(answer, deadline_s=0.1).carry_out(order)
    assert type(seen) is (event or type(None))


async def test_a_broken_promise_is_told():
    unknown = an.Unknown(reason="count is -1", reclaim_id="r1", incarnation=7)
    told = await engine(lambda _: says(unknown, ("count is -1",))).carry_out(Unload(**WHO, **WHAT, reclaim_id="r1"))
    assert told == ev.Quarantine(engine="E0", incarnation=7, reason="count is -1", now=5)


async def test_another_process_order_is_not_sent():
    def answer(asked: httpx.Request) -> httpx.Response:
        raise AssertionError("sent")

    assert await engine(answer).carry_out(TakeInventory(**{**WHO, "incarnation": 8})) is None
    assert await engine(answer).carry_out(TakeInventory(**{**WHO, "engine": "E1"})) is None


@pytest.mark.parametrize("change", [{"engine": "E1"}, {"incarnation": 8}, {"active": False}])
async def test_an_attestation_of_somebody_else_is_none(change: dict[str, Any]):
    with pytest.raises(AttestationError):
        await engine(lambda _: httpx.Response(200, json={**PROOF, **change})).attest()


def test_the_token_is_in_no_text_about_the_client():
    assert TOKEN not in repr(engine(lambda _: httpx.Response(200)))

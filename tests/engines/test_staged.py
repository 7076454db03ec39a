"""The executor beside a real engine: READY proved, reclaim that waits, and results that nobody knows."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

pytest.importorskip("torch", reason="not installed: torch (`make test` installs it)")

from lorafsm import events as ev
from lorafsm.identity import VersionKey, lora_name
from lorafsm.manifest import store_plan
from lorafsm.orders import Begin, Cleanup, End, TakeInventory, Unload
from lorafsm.records import Resident
from lorafsm_sglang import OK, Arrival, EnginePort, Sampling, control_calls, log_size
from lorafsm_sglang.staged import StagedEngine
from lorafsm_sglang.tiny_model import lora_fixture
from lorafsm_torch import ArtifactStore, Replica, freeze_snapshot

pytestmark = pytest.mark.engines

ADDRESSEE = {"engine": "E0", "incarnation": 1}


@frozen
class Version:
    """A version in the store, and the orders about it."""

    key: VersionKey
    digest: str
    lora_name: str

    def order(self, kind: Callable[..., Any], **more: Any) -> Any:
        what = {"key": self.key, "digest": self.digest, "lora_name": self.lora_name}
        return kind(**ADDRESSEE, epoch=self.key.epoch, **what, **more)

    def begin(self, number: int) -> Begin:
        return self.order(Begin, number=number, plan=store_plan())

    def end(self, number: int) -> End:
        return self.order(End, number=number)


@pytest.fixture
def staged(port: EnginePort, tmp_path: Path) -> StagedEngine:
    replica = Replica(ArtifactStore(tmp_path / "store"), tmp_path / "host")
    clock = lambda: time.time_ns() // 1_000_000  # noqa: E731
    return StagedEngine(port=port, source=replica, base_fingerprint="b" * 64, clock=clock, **ADDRESSEE)


@pytest.fixture
def stored(tmp_path: Path) -> Callable[[str], Version]:
    """Puts a fixture into the store under a key of its own: an engine remembers every name."""
    epoch = f"t{uuid.uuid4().hex[:12]}"

    def put(letter: str) -> Version:
        tensors, config = lora_fixture(letter)
        snapshot = freeze_snapshot(config, tensors)
        key = VersionKey(epoch, "ABCD".index(letter) + 1)
        ArtifactStore(tmp_path / "store").put(key, snapshot)
        return Version(key, snapshot.digest, lora_name(key, snapshot.digest))

    return put


async def ready(staged: StagedEngine, version: Version, number: int) -> None:
    assert isinstance(await staged.carry_out(version.begin(number)), ev.Prepared)
    assert isinstance(await staged.carry_out(version.end(number)), ev.Ready)


async def test_a_reclaim_ends_after_the_versions_own_requests(staged, stored, port: EnginePort, new_rid):
    """While A drains, B is served; the receipt comes when A's last token is out (RFC 5.1, rule 13)."""
    a, b = stored("A"), stored("B")
    await ready(staged, a, 1)
    await ready(staged, b, 2)
    unload = a.order(Unload, reclaim_id=f"reclaim-{a.key}")
    long = Sampling(max_new_tokens=1500, ignore_eos=True)
    async with aclosing(port.stream(range(10, 40), a.lora_name, long, new_rid())) as items:
        assert isinstance(await anext(items), Arrival)
        reclaim = asyncio.create_task(staged.carry_out(unload))
        again = asyncio.create_task(staged.carry_out(unload))
        other = await port.score(range(10, 40), b.lora_name, new_rid())
        assert isinstance(other, OK)
        assert not reclaim.done(), "the receipt came while a request of the version was running"
        *_, last = [item async for item in items]
    assert isinstance(last, OK)
    assert len(last.data.output_ids) == 1500
    receipt = await reclaim
    assert isinstance(receipt, ev.ConfirmReclaim)
    assert receipt == await again
    listed = await staged.carry_out(TakeInventory(**ADDRESSEE, epoch=a.key.epoch))
    assert isinstance(listed, ev.EngineUp)
    assert listed.residents == {Resident(b.key, b.digest, 2)}
    assert listed.foreign == frozenset()


async def test_orders_repeated_load_and_unload_once(staged, stored, engines):
    a = stored("A")
    mark = log_size(engines[0].log_path)
    await staged.carry_out(a.begin(1))
    ends = await asyncio.gather(*(staged.carry_out(a.end(1)) for _ in range(4)))
    assert isinstance(ends[0], ev.Ready)
    assert ends == [ends[0]] * 4
    unload = a.order(Unload, reclaim_id=f"reclaim-{a.key}")
    receipts = await asyncio.gather(*(staged.carry_out(unload) for _ in range(4)))
    assert receipts == [receipts[0]] * 4
    calls = control_calls(engines[0].log_path, since=mark)
    assert (calls["load_lora_adapter"], calls["unload_lora_adapter"]) == (1, 1)


async def test_a_truncated_copy_costs_no_call_and_cleans(staged, stored, engines, tmp_path: Path, port: EnginePort):
    d = stored("D")
    mark = log_size(engines[0].log_path)
    await staged.carry_out(d.begin(1))
    weights = tmp_path / "host" / d.lora_name / "adapter_model.safetensors"
    with weights.open("r+b") as file:
        file.truncate(weights.stat().st_size // 2)
    failed = await staged.carry_out(d.end(1))
    assert isinstance(failed, ev.TargetFailed)
    assert "adapter_model.safetensors" in failed.reason
    assert isinstance(await staged.carry_out(d.order(Cleanup, number=1)), ev.Cleaned)
    assert await port.models() == OK({})
    calls = control_calls(engines[0].log_path, since=mark)
    assert (calls["load_lora_adapter"], calls["unload_lora_adapter"]) == (0, 0)


async def test_a_load_that_nobody_waited_for_is_removed_by_its_cleanup(staged, stored, port: EnginePort):
    """The deadline passed while the engine was loading: unknown, then observed absent (rules 4, 16)."""
    a, b = stored("A"), stored("B")
    await ready(staged, b, 1)
    staged.load_timeout_s = 0.0
    await staged.carry_out(a.begin(2))
    assert isinstance(await staged.carry_out(a.end(2)), ev.TargetUnknown)
    assert isinstance(await staged.carry_out(a.order(Cleanup, number=2)), ev.Cleaned)
    assert port.control_calls_open() == ()
    models = await port.models()
    assert isinstance(models, OK)
    assert set(models.data) == {b.lora_name}, "cleanup removes its own number and nothing else"

"""Scenarios of engines, bytes and processes: agent, artifact, snapshot, journal (A, B, D, E)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lorafsm import events as ev
from lorafsm import publisher
from lorafsm.orders import Begin
from lorafsm.records import new_registry
from lorafsm.registry.view import attempt_outcome
from lorafsm_journal import Journal, JournaledRegistry
from tests.core.agent_story import Desk
from tests.core.story import World


def test_S16_one_trainer_rank_fails_others_wait():
    w = World().boot("A")
    w.begin("B", buckets=2)
    number = w.number("B")
    assert [attempt_outcome(w.r, number) for _rank in range(4)] == [None] * 4
    assert w.abort("B", reason="export raised on rank 2") == "OK"
    outcomes = [attempt_outcome(w.r, number) for _rank in range(4)]
    assert {type(outcome).__name__ for outcome in outcomes} == {"Aborted"}
    assert {(outcome.number, outcome.reason) for outcome in outcomes} == {(number, "export raised on rank 2")}
    assert w.authorize(0, n=number, token=w.tokens["B"]) == "STALE_ATTEMPT", "nobody enters the collective"
    assert (w.default, w.version("B")) == ("A", "ABORTED")


def test_S21_artifact_not_visible_yet():
    w = World().boot("A")
    w.reserve("B")
    number = w.number("B")
    for _attempt in range(2):  # E1's host does not see the artifact: begin is answered by nothing, and given again
        begins = [o for o in publisher.next_orders(w.r, w.tokens["B"], w.now) if isinstance(o, Begin)]
        assert {(o.engine, o.number) for o in begins} >= {("E1", number)}
        assert w.version("B") == "LOADING"
    assert w.prepared("E0") == "OK"
    assert (w.target("B", "E0"), w.target("B", "E1")) == ("PREPARED", "RESERVED")
    assert w.prepared("E1") == "OK"
    assert (w.target("B", "E0"), w.target("B", "E1")) == ("PREPARED", "PREPARED")
    assert w.number("B") == number, "one attempt"


async def test_S21_an_executor_looks_again_within_its_begin():
    staged = pytest.importorskip("tests.adapters.test_sglang_staged", reason="httpx is missing: make test")
    it = staged.beside()
    it.copies.missing.add(staged.NAME)
    begin = asyncio.create_task(it.staged.carry_out(staged.begin()))
    await asyncio.to_thread(it.copies.fetching.wait, 5)
    assert not begin.done()
    it.copies.missing.clear()  # now it is visible
    assert isinstance(await begin, ev.Prepared)
    assert isinstance(await it.staged.carry_out(staged.end()), ev.Ready)
    assert it.engine.count()["/load_lora_adapter"] == 1
    await it.port.aclose(grace_s=0.1)


def test_S22_trainer_steps_while_B_is_being_sent():
    torch = pytest.importorskip("torch", reason="torch is missing: make test")
    from lorafsm_torch import ArtifactError, freeze_snapshot

    live = {"w.lora_A.weight": torch.ones(2, 3)}
    snapshot = freeze_snapshot({"r": 2}, live)
    digest = snapshot.digest
    live["w.lora_A.weight"].add_(1)  # the optimizer steps
    snapshot.verify()
    assert snapshot.digest == digest == freeze_snapshot({"r": 2}, {"w.lora_A.weight": torch.ones(2, 3)}).digest
    snapshot.tensors["w.lora_A.weight"].add_(1)  # somebody mutates the snapshot itself
    with pytest.raises(ArtifactError) as error:
        snapshot.verify()
    assert error.value.code == "SNAPSHOT_CHANGED"
    desk = Desk()
    assert (desk.begin(1, "B"), desk.end(1, "B")) == ("Prepared", "Pending")
    assert desk.do(ok=False) == "StartLoad"  # the manifest does not match the digest of the order
    assert desk.end(1, "B") == "Failed"
    w = World().boot("A")
    w.begin("B")
    assert w.failed("E0") == "OK"
    assert w.commit("B") == "NOT_READY"
    assert w.abort("B", reason="MANIFEST_MISMATCH") == "OK"
    assert (w.version("B"), w.default) == ("ABORTED", "A")


async def test_S25_cancelled_waiter_two_turns_await_one_bind():
    w = World().boot("A")
    landed = asyncio.Event()

    async def bind() -> str:
        await landed.wait()
        return w.bind_first("s")

    shared = asyncio.create_task(bind())
    turns = [asyncio.create_task(_shielded(shared)) for _ in range(2)]
    await asyncio.sleep(0)
    turns[0].cancel()
    landed.set()
    assert await turns[1] == "A"
    assert turns[0].cancelled()
    assert w.refs("A") == 1
    assert w.close_and_release("s") == "OK"
    assert w.refs("A") == 0


async def _shielded(task: asyncio.Task[str]) -> str:
    return await asyncio.shield(task)


def test_S43_in_flight_request_blocks_unload_on_the_engine():
    desk = Desk()
    desk.boot("A", 1)
    assert desk.acquire("r_long", "A") == "Acquired"
    assert desk.unload("A") == "Pending"
    assert desk.do() == "Unregister"
    assert desk.todo == [], "nothing is unloaded while r_long runs"
    assert desk.refs("A") == 1
    assert desk.release("r_long") is True
    assert desk.do_all() == ("CountRequests", "PhysicalUnload")
    assert desk.unload("A") == "Unloaded"


def test_S44_leaked_engine_ref_keeps_the_slot():
    w = World().boot("A")
    w.publish("B")
    assert w.claim_reclaim("A", "r1") == "OK"
    assert w.unloaded("E1", "r1") == "OK"
    assert w.reclaim_unknown("E0", "r1") == "OK"
    assert "RECLAIM_STUCK" in w.alarms()
    assert (w.version("A"), w.used) == ("RECLAIMING", 2)
    assert w.reserve("C") == "CAPACITY_ERROR"
    assert w.restart("E0", holds=[w.resident("B")]) == "OK"
    assert (w.version("A"), w.used) == ("RECLAIMED", 1)


def test_S46_double_abort_duplicate_terminal():
    desk = Desk()
    desk.boot("A", 1)
    assert (desk.acquire("r1", "A"), desk.acquire("r2", "A")) == ("Acquired", "Acquired")
    assert desk.refs("A") == 2
    assert desk.release("r1") is True  # 503
    assert desk.refs("A") == 1
    assert desk.release("r1") is False  # abort
    assert desk.release("r1") is False  # the abort's echo
    assert desk.refs("A") == 1, "r2 is still counted"


def test_S57_crash_at_every_journal_point(tmp_path: Path):
    w = World().boot("A")
    w.bind_first("S_old")
    w.begin("B")
    w.ready("E0")
    w.bind_first("S_mid")
    w.ready("E1")
    w.commit("B")
    w.bind_first("S_new")
    w.close_and_release("S_old")
    w.close_and_release("S_mid")
    w.claim_reclaim("A", "r1")
    w.unloaded("E1", "r1")
    w.unloaded("E0", "r1")
    path, states = tmp_path / "journal.sqlite", []
    for event in [entry[0] for entry in w.log]:
        with JournaledRegistry.open(path, w.r.config, w.r.epoch) as host:  # each event in a process of its own
            assert host.registry == (states[-1] if states else new_registry(w.r.epoch, w.r.config))
            host.apply(event)
            states.append(host.registry)
    with Journal.read(path) as journal:
        assert journal.recover() == states[-1] == w.r
    assert (w.version("A"), w.default, w.used) == ("RECLAIMED", "B", 1)

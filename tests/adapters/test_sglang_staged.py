"""The executor beside one engine, by fault injection: one operation an order, and honest results (RFC 3.4, 5.1).

The engine is a stand-in (`engine_stand_in`); the same executor on real engines is in tests/engines and in the main job.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from attrs import evolve

from lorafsm import events as ev
from lorafsm.identity import VersionKey, lora_name
from lorafsm.manifest import store_plan
from lorafsm.orders import AskStatus, Begin, Cleanup, End, Load, SendBucket, TakeInventory, Unload, UnloadStray
from lorafsm.records import Resident
from tests.adapters.engine_stand_in import (
    BASE,
    DONE_BUT_LOST,
    GENERATE,
    LOAD,
    MODELS,
    NEVER_ARRIVED,
    UNLOAD,
    Beside,
    beside,
)

KEY = VersionKey("e1", 7)
DIGEST = "d" * 64
NAME = lora_name(KEY, DIGEST)
ADDRESSEE = {"epoch": "e1", "engine": "E0", "incarnation": 1}
WHAT = {"key": KEY, "digest": DIGEST, "lora_name": NAME}


def begin(number: int = 1) -> Begin:
    return Begin(**ADDRESSEE, **WHAT, number=number, plan=store_plan())


def end(number: int = 1) -> End:
    return End(**ADDRESSEE, **WHAT, number=number)


def cleanup(number: int = 1) -> Cleanup:
    return Cleanup(**ADDRESSEE, **WHAT, number=number)


def load(number: int = 5) -> Load:
    return Load(**ADDRESSEE, **WHAT, number=number)


def ask(number: int = 1) -> AskStatus:
    return AskStatus(**ADDRESSEE, number=number)


UNLOAD_IT = Unload(**ADDRESSEE, **WHAT, reclaim_id="reclaim-e1-7")
LOOK = TakeInventory(**ADDRESSEE)


@pytest.fixture
async def e0() -> AsyncIterator[Beside]:
    it = beside()
    yield it
    await it.port.aclose(grace_s=0.1)


async def is_ready(it: Beside, number: int = 1) -> ev.Ready:
    """Begin and end, both accepted."""
    assert isinstance(await it.staged.carry_out(begin(number)), ev.Prepared)
    ready = await it.staged.carry_out(end(number))
    assert isinstance(ready, ev.Ready)
    return ready


# -- one order is one operation ---------------------------------------------------------------------------------


async def test_begin_and_end_prove_exactly_what_was_ordered(e0: Beside):
    prepared = await e0.staged.carry_out(begin())
    assert isinstance(prepared, ev.Prepared)
    assert e0.engine.calls == [], "begin stages bytes and calls no engine"
    ready = await e0.staged.carry_out(end())
    assert isinstance(ready, ev.Ready)
    assert (ready.number, ready.engine, ready.incarnation) == (1, "E0", 1)
    assert (ready.key, ready.digest, ready.base_fingerprint, ready.probe_ok) == (KEY, DIGEST, BASE, True)
    assert ready.seq > prepared.seq
    assert ready.now > prepared.now
    assert e0.engine.calls == [(LOAD, NAME), (GENERATE, NAME)], "one load, then a probe under exactly this name"
    assert e0.engine.adapters == {NAME: f"/copies/{NAME}"}


async def test_a_duplicate_joins_what_runs_and_afterwards_gets_the_stored_answer(e0: Beside):
    await e0.staged.carry_out(begin())
    gate = e0.engine.hold(LOAD)
    twice = [asyncio.create_task(e0.staged.carry_out(end())) for _ in range(2)]
    await e0.engine.reached(LOAD)
    gate.set()
    first, second = await asyncio.gather(*twice)
    assert first == second == await e0.staged.carry_out(end())
    assert e0.engine.count()[LOAD] == 1


async def test_a_caller_that_gives_up_ends_nothing(e0: Beside):
    await e0.staged.carry_out(begin())
    gate = e0.engine.hold(LOAD)
    gone, stays = (asyncio.create_task(e0.staged.carry_out(end())) for _ in range(2))
    await e0.engine.reached(LOAD)
    gone.cancel()
    gate.set()
    assert isinstance(await stays, ev.Ready)
    assert e0.engine.count()[LOAD] == 1


@pytest.mark.parametrize(
    "order", [begin(), end(), cleanup(), load(), ask(), UNLOAD_IT, LOOK], ids=lambda o: type(o).__name__
)
@pytest.mark.parametrize("wrong", [{"incarnation": 2}, {"incarnation": 0}, {"engine": "E1"}], ids=str)
async def test_an_order_to_another_process_is_not_carried_out(e0: Beside, order, wrong):
    assert await e0.staged.carry_out(evolve(order, **wrong)) is None
    assert e0.engine.calls == []
    assert e0.copies.names == set()
    assert isinstance(await e0.staged.carry_out(begin()), ev.Prepared), "and it fenced nothing"


async def test_a_bucket_is_no_order_to_an_engine(e0: Beside):
    with pytest.raises(TypeError, match="transport"):
        await e0.staged.carry_out(SendBucket(number=1, bucket=0, engines=("E0",)))


async def test_a_status_answers_what_is_stored_and_does_nothing(e0: Beside):
    assert await e0.staged.carry_out(ask()) is None
    prepared = await e0.staged.carry_out(begin())
    status = await e0.staged.carry_out(ask())
    assert isinstance(status, ev.Prepared)
    assert status.seq > prepared.seq, "an answer as old as the first would leave the target UNKNOWN"
    ready = await e0.staged.carry_out(end())
    assert await e0.staged.carry_out(ask()) == ready
    assert e0.engine.count()[LOAD] == 1


# -- a clean no -------------------------------------------------------------------------------------------------


async def test_a_copy_that_cannot_be_made_is_a_clean_no(e0: Beside):
    e0.copies.missing.add(NAME)
    e0.staged.visible_timeout_s = 0.2
    failed = await e0.staged.carry_out(begin())
    assert isinstance(failed, ev.TargetFailed)
    assert "not in the store" in failed.reason
    assert e0.engine.calls == []


async def test_a_damaged_copy_never_reaches_the_engine(e0: Beside):
    await e0.staged.carry_out(begin())
    e0.copies.damaged.add(NAME)
    failed = await e0.staged.carry_out(end())
    assert isinstance(failed, ev.TargetFailed)
    assert "damaged" in failed.reason
    assert e0.engine.calls == []


@pytest.mark.parametrize("route, words", [(LOAD, "out of\nmemory: 3 of 3 slots"), (GENERATE, "probe: shape mismatch")])
async def test_a_refusal_carries_the_engines_words(e0: Beside, route: str, words: str):
    await e0.staged.carry_out(begin())
    e0.engine.will(route, words)
    failed = await e0.staged.carry_out(end())
    assert isinstance(failed, ev.TargetFailed)
    assert " ".join(words.split()) in failed.reason
    assert failed.reason.isprintable()


async def test_a_truncated_file_is_found_before_any_call(tmp_path: Path):
    """The real store and the real copies: bytes are proved again just before the engine would read them."""
    torch = pytest.importorskip("torch", reason="torch is missing: pip install 'lorafsm[torch]'")
    from lorafsm_torch import ArtifactStore, Replica, freeze_snapshot

    tensors = {"base_model.model.q_proj.lora_A.weight": torch.ones(2, 8)}
    snapshot = freeze_snapshot({"r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}, tensors)
    store = ArtifactStore(tmp_path / "store")
    store.put(KEY, snapshot)
    replica = Replica(store, tmp_path / "host")
    what = {"key": KEY, "digest": snapshot.digest, "lora_name": lora_name(KEY, snapshot.digest)}
    it = beside(source=replica)
    try:
        assert isinstance(await it.staged.carry_out(evolve(begin(), **what)), ev.Prepared)
        weights = replica.folder(what["lora_name"]) / "adapter_model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-7])
        failed = await it.staged.carry_out(evolve(end(), **what))
        assert isinstance(failed, ev.TargetFailed)
        assert "adapter_model.safetensors" in failed.reason
        assert it.engine.calls == []
        assert isinstance(await it.staged.carry_out(evolve(cleanup(), **what)), ev.Cleaned)
        assert not replica.folder(what["lora_name"]).exists()
        assert store.names() == (what["lora_name"],), "the store keeps the good one"
    finally:
        await it.port.aclose()


# -- nobody knows -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault, there", [(DONE_BUT_LOST, True), (NEVER_ARRIVED, False)])
async def test_an_unknown_load_is_unknown_until_its_cleanup_removed_it(e0: Beside, fault: str, there: bool):
    """The load may have happened, or may yet happen: it is this number's to remove either way (rules 4, 16)."""
    await e0.staged.carry_out(begin())
    e0.engine.will(LOAD, fault)
    unknown = await e0.staged.carry_out(end())
    assert isinstance(unknown, ev.TargetUnknown)
    assert unknown == await e0.staged.carry_out(end()), "a repeat does not load again"
    assert (NAME in e0.engine.adapters) is there
    assert isinstance(await e0.staged.carry_out(cleanup()), ev.Cleaned)
    assert e0.engine.adapters == {}
    assert e0.engine.count()[LOAD] == 1


async def test_an_unknown_probe_leaves_a_load_that_cleanup_removes(e0: Beside):
    await e0.staged.carry_out(begin())
    e0.engine.will(GENERATE, NEVER_ARRIVED)
    assert isinstance(await e0.staged.carry_out(end()), ev.TargetUnknown)
    assert isinstance(await e0.staged.carry_out(cleanup()), ev.Cleaned)
    assert e0.engine.adapters == {}


# -- cleanup ----------------------------------------------------------------------------------------------------


async def test_a_late_begin_or_end_of_a_cleaned_number_creates_nothing(e0: Beside):
    """Cleanup came first, the orders were still on their way (rule 4)."""
    assert isinstance(await e0.staged.carry_out(cleanup()), ev.Cleaned)
    assert isinstance(await e0.staged.carry_out(begin()), ev.TargetFailed)
    assert isinstance(await e0.staged.carry_out(end()), ev.TargetFailed)
    assert (e0.engine.count()[LOAD], e0.copies.names) == (0, set())


async def test_a_late_begin_of_an_older_number_creates_nothing(e0: Beside):
    await e0.staged.carry_out(begin(4))
    assert isinstance(await e0.staged.carry_out(begin(3)), ev.TargetFailed)


async def test_cleanup_between_begin_and_end_closes_the_number(e0: Beside):
    await e0.staged.carry_out(begin())
    assert isinstance(await e0.staged.carry_out(cleanup()), ev.Cleaned)
    failed = await e0.staged.carry_out(end())
    assert isinstance(failed, ev.TargetFailed)
    assert "this number was cleaned" in failed.reason
    assert e0.engine.count()[LOAD] == 0


async def test_cleanup_waits_for_a_copy_that_is_being_made(e0: Beside):
    """Clean means that nothing of it comes afterwards, on the host's disk neither."""
    e0.copies.slow = threading.Event()
    beginning = asyncio.create_task(e0.staged.carry_out(begin()))
    assert await asyncio.to_thread(e0.copies.fetching.wait, 5)
    cleaning = asyncio.create_task(e0.staged.carry_out(cleanup()))
    done, _ = await asyncio.wait({cleaning}, timeout=0.05)
    assert done == set()
    e0.copies.slow.set()
    assert isinstance(await beginning, ev.Prepared)
    assert isinstance(await cleaning, ev.Cleaned)
    assert e0.copies.names == set()


async def test_what_somebody_else_loaded_under_the_name_is_neither_claimed_nor_removed(e0: Beside):
    e0.engine.adapters[NAME] = "/x"
    await e0.staged.carry_out(begin())
    failed = await e0.staged.carry_out(end())
    assert isinstance(failed, ev.TargetFailed)
    assert "already loaded" in failed.reason
    listed = await e0.staged.carry_out(LOOK)
    assert isinstance(listed, ev.EngineUp)
    assert (listed.residents, listed.foreign) == (set(), {NAME})
    assert isinstance(await e0.staged.carry_out(cleanup()), ev.TargetUnknown), "the name is still listed"
    assert e0.engine.count()[UNLOAD] == 0
    await e0.staged.carry_out(stray(0))
    assert isinstance(await e0.staged.carry_out(cleanup()), ev.Cleaned)


async def test_cleanup_waits_for_a_load_that_runs(e0: Beside):
    await e0.staged.carry_out(begin())
    gate = e0.engine.hold(LOAD)
    loading = asyncio.create_task(e0.staged.carry_out(end()))
    await e0.engine.reached(LOAD)
    cleaning = asyncio.create_task(e0.staged.carry_out(cleanup()))
    done, _ = await asyncio.wait({cleaning}, timeout=0.05)
    assert done == set(), "clean while its own load runs"
    assert e0.engine.count()[UNLOAD] == 0
    gate.set()
    assert isinstance(await cleaning, ev.Cleaned)
    assert isinstance(await loading, ev.Ready)
    assert e0.engine.calls[-2:] == [(UNLOAD, NAME), (MODELS, "")]
    assert e0.engine.adapters == {}


async def test_cleanup_removes_its_own_number_and_nothing_else(e0: Beside):
    """The second try at the version is READY; a late cleanup of the first, which never began here, is harmless."""
    await is_ready(e0, number=2)
    late = await e0.staged.carry_out(cleanup(1))
    assert isinstance(late, ev.Cleaned)
    assert NAME in e0.engine.adapters
    assert NAME in e0.copies.names


@pytest.mark.parametrize("route, fault", [(UNLOAD, DONE_BUT_LOST), (UNLOAD, NEVER_ARRIVED), (MODELS, NEVER_ARRIVED)])
async def test_an_unknown_cleanup_is_repeated_until_the_absence_was_seen(e0: Beside, route: str, fault: str):
    await is_ready(e0)
    e0.engine.will(route, fault)
    assert isinstance(await e0.staged.carry_out(cleanup()), ev.TargetUnknown)
    assert isinstance(await e0.staged.carry_out(cleanup()), ev.Cleaned)
    assert e0.engine.adapters == {}
    count = e0.engine.count()
    assert isinstance(await e0.staged.carry_out(cleanup()), ev.Cleaned)
    assert e0.engine.count() == count, "a stored answer calls nobody"


# -- reclaim ----------------------------------------------------------------------------------------------------


async def test_a_reclaim_unloads_once_for_all_who_wait(e0: Beside):
    await is_ready(e0)
    gate = e0.engine.hold(UNLOAD)
    gone, stays = (asyncio.create_task(e0.staged.carry_out(UNLOAD_IT)) for _ in range(2))
    await e0.engine.reached(UNLOAD)
    gone.cancel()
    gate.set()
    receipt = await stays
    assert isinstance(receipt, ev.ConfirmReclaim)
    assert (receipt.reclaim_id, receipt.observed_absent) == ("reclaim-e1-7", True)
    assert receipt == await e0.staged.carry_out(UNLOAD_IT)
    assert e0.engine.count()[UNLOAD] == 1


@pytest.mark.parametrize("route, fault", [(UNLOAD, DONE_BUT_LOST), (UNLOAD, NEVER_ARRIVED), (MODELS, NEVER_ARRIVED)])
async def test_an_unknown_unload_keeps_the_slot_until_a_repeat_confirms(e0: Beside, route: str, fault: str):
    """Repeated after it happened, the engine refuses it: what it lists decides (rules 12, 16)."""
    await is_ready(e0)
    e0.engine.will(route, fault)
    unknown = await e0.staged.carry_out(UNLOAD_IT)
    assert isinstance(unknown, ev.ReclaimUnknown)
    receipt = await e0.staged.carry_out(UNLOAD_IT)
    assert isinstance(receipt, ev.ConfirmReclaim)
    assert e0.engine.adapters == {}


async def test_an_unload_that_is_refused_while_the_name_is_there_confirms_nothing(e0: Beside):
    await is_ready(e0)
    e0.engine.will(UNLOAD, "not now")
    assert isinstance(await e0.staged.carry_out(UNLOAD_IT), ev.ReclaimUnknown)
    assert NAME in e0.engine.adapters


async def test_a_version_of_which_this_executor_knows_nothing_is_unloaded_all_the_same(e0: Beside):
    """The executor before this one loaded it; the key is closed for ever, so it goes."""
    e0.engine.adapters[NAME] = "/copies/of/before"
    assert isinstance(await e0.staged.carry_out(UNLOAD_IT), ev.ConfirmReclaim)
    assert e0.engine.adapters == {}


async def test_where_it_never_was_nothing_is_unloaded(e0: Beside):
    assert isinstance(await e0.staged.carry_out(UNLOAD_IT), ev.ConfirmReclaim)
    assert e0.engine.count()[UNLOAD] == 0


async def test_a_reclaimed_version_is_never_loaded_again(e0: Beside):
    await is_ready(e0)
    await e0.staged.carry_out(UNLOAD_IT)
    assert isinstance(await e0.staged.carry_out(begin(9)), ev.TargetFailed)
    assert isinstance(await e0.staged.carry_out(load(10)), ev.RepairFailed)
    assert e0.engine.count()[LOAD] == 1


async def test_an_unload_waits_for_a_repair_that_is_loading_the_version(e0: Beside):
    """The repair was withdrawn by the claim, but its load runs already: it must not survive the receipt (rule 11)."""
    gate = e0.engine.hold(LOAD)
    loading = asyncio.create_task(e0.staged.carry_out(load()))
    await e0.engine.reached(LOAD)
    unloading = asyncio.create_task(e0.staged.carry_out(UNLOAD_IT))
    done, _ = await asyncio.wait({unloading}, timeout=0.05)
    assert done == set()
    gate.set()
    assert isinstance(await unloading, ev.ConfirmReclaim)
    assert isinstance(await loading, ev.RepairReady)
    assert e0.engine.adapters == {}


# -- repair, inventory, strays ----------------------------------------------------------------------------------


async def test_a_repair_stages_loads_and_proves(e0: Beside):
    ready = await e0.staged.carry_out(load(5))
    assert isinstance(ready, ev.RepairReady)
    assert (ready.number, ready.key, ready.digest, ready.probe_ok) == (5, KEY, DIGEST, True)
    assert ready == await e0.staged.carry_out(load(5))
    assert e0.engine.count()[LOAD] == 1


async def test_a_repair_that_fails_says_why_and_an_unknown_one_says_nothing(e0: Beside):
    e0.engine.will(LOAD, "no slot is free", NEVER_ARRIVED)
    failed = await e0.staged.carry_out(load(5))
    assert isinstance(failed, ev.RepairFailed)
    assert "no slot is free" in failed.reason
    assert await e0.staged.carry_out(load(6)) is None


async def test_the_inventory_lists_what_it_loaded_by_number_and_the_rest_by_name(e0: Beside):
    await is_ready(e0, number=3)
    foreign = lora_name(VersionKey("e0", 1), "f" * 64)
    e0.engine.adapters |= {foreign: "/x", "an-operators-own": "/y"}
    listed = await e0.staged.carry_out(LOOK)
    assert isinstance(listed, ev.EngineUp)
    assert listed.residents == {Resident(KEY, DIGEST, 3)}
    assert listed.foreign == {foreign}, "a name without the managed prefix is nobody's business"
    assert listed.base_fingerprint == BASE


async def test_an_inventory_is_as_old_as_its_beginning(e0: Beside):
    """What is answered while the list is on its way is newer than the list (protocol section 2)."""
    gate = e0.engine.hold(MODELS)
    looking = asyncio.create_task(e0.staged.carry_out(LOOK))
    await e0.engine.reached(MODELS)
    ready = await is_ready(e0)
    gate.set()
    listed = await looking
    assert isinstance(listed, ev.EngineUp)
    assert listed.seq < ready.seq


async def test_without_an_answer_there_is_no_inventory(e0: Beside):
    e0.engine.will(MODELS, NEVER_ARRIVED)
    assert await e0.staged.carry_out(LOOK) is None
    assert isinstance(await e0.staged.carry_out(LOOK), ev.EngineUp)


def stray(number: int) -> UnloadStray:
    return UnloadStray(**ADDRESSEE, operation_key=f"stray-{NAME}-{number}", lora_name=NAME, number=number)


async def test_a_stray_is_removed_and_tried_again_when_nobody_knows(e0: Beside):
    e0.engine.adapters[NAME] = "/x"
    e0.engine.will(UNLOAD, NEVER_ARRIVED)
    assert await e0.staged.carry_out(stray(0)) is None
    assert NAME in e0.engine.adapters
    assert await e0.staged.carry_out(stray(0)) is None
    assert e0.engine.adapters == {}


async def test_a_late_order_against_a_stray_spares_a_later_load(e0: Beside):
    await is_ready(e0, number=8)
    for late in (0, 2):
        await e0.staged.carry_out(stray(late))
        assert NAME in e0.engine.adapters
    await e0.staged.carry_out(stray(8))
    assert e0.engine.adapters == {}

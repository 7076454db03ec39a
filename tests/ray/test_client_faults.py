"""Clients under faults, with the actor's class in this process: what is asked for happens once, and all is answered."""

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lorafsm.errors import InvalidField
from lorafsm.events import AuthorizeBucket, CloseAndRelease, Heartbeat, OwnerUp, Prepared, Reserve
from lorafsm.identity import VersionKey
from lorafsm.manifest import Plan
from lorafsm.outcomes import Code, Lease, Outcome
from lorafsm_asyncio.client import RegistryUnavailable
from lorafsm_asyncio.refusals import Refused, require
from lorafsm_ray import AsyncClient, Patience, RegistryActor
from lorafsm_ray.coalesce import Coalescer
from lorafsm_ray.patience import Tries
from lorafsm_tla.trace import check_journal
from tests.adapters.journal_stories import ENGINES, EPOCH, life
from tests.ray.local import TickingClock, local_actor
from tests.ray.local import settings as settings_in
from tests.ray.lossy import Fault, LocalCalls, LossyCalls
from tests.ray.programs import publisher, require_story_was_told, shard
from tests.spec.test_tla_trace import needs_tlc

QUICK = Patience(deadline_s=20, try_s=5, pause_s=0.0001, longest_pause_s=0.001)
FAULTS = st.lists(st.sampled_from(Fault), max_size=80)
TURNS = st.lists(st.integers(0, 5), max_size=80)


async def deployment(folder: Path, faults: list[Fault], turns: list[int], coalesce: bool) -> None:
    clock = TickingClock()
    local = LocalCalls(RegistryActor(settings_in(folder), clock))

    async def restart() -> None:
        await local.actor.stop()
        local.actor = RegistryActor(settings_in(folder), clock)

    lossy = LossyCalls(local, faults, turns, restart)
    clients = [AsyncClient(lossy, "local", QUICK, coalesce=coalesce) for _ in range(3)]
    async with asyncio.timeout(60):
        _, *bound = await asyncio.gather(
            publisher(clients[0]), *(shard(client, f"o{n}", 3) for n, client in enumerate(clients))
        )
    await lossy.settle()
    await local.actor.stop()
    require_story_was_told(folder / "local.journal", [one for each in bound for one in each])


@given(faults=FAULTS, turns=TURNS, coalesce=st.booleans())
@settings(max_examples=60)
def test_losses_duplicates_delays_and_restarts_do_nothing_twice(faults: list[Fault], turns: list[int], coalesce: bool):
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(deployment(Path(folder), faults, turns, coalesce))


@pytest.mark.parametrize("fault", Fault)
def test_one_fault_at_every_call(tmp_path: Path, fault: Fault):
    asyncio.run(deployment(tmp_path, [fault, Fault.NONE] * 60, [], coalesce=False))


@needs_tlc
def test_tlc_accepts_the_journal_of_a_deployment_with_every_fault(tmp_path: Path):
    asyncio.run(deployment(tmp_path, [*Fault] * 4, [0, 1, 2, 3] * 10, coalesce=True))
    assert "are a behaviour of LoraRegistry.tla" in check_journal(tmp_path / "local.journal")


async def test_every_event_given_again_is_answered_as_the_first_time(tmp_path: Path):
    """What a client relies on when it repeats; the two exceptions are those that its page names."""
    actor = local_actor(tmp_path)
    for event in life():
        first, again = await actor.apply(event), await actor.apply(event)
        if isinstance(event, CloseAndRelease):
            assert (first.code, again.code) == (Code.OK, Code.ALREADY_CLOSED)
        else:
            assert again == first, event


async def test_a_lost_permission_for_a_bucket_is_not_given_again(tmp_path: Path):
    local = LocalCalls(local_actor(tmp_path))
    sure = AsyncClient(local, "local", QUICK)
    for event in life()[1:3]:
        await sure.apply(event)
    reserve = Reserve(key=VersionKey(EPOCH, 1), digest="1" * 64, plan=Plan(2, "f" * 64), token="t1")
    await sure.apply_all([reserve, *(Prepared(number=1, engine=e, incarnation=1, seq=2) for e in ENGINES)])
    lossy = AsyncClient(LossyCalls(local, [Fault.REPLY_LOST]), "local", QUICK)
    outcome = await lossy.apply(AuthorizeBucket(number=1, token="t1", bucket=0))
    assert outcome.code is Code.ALREADY_AUTHORIZED


async def test_a_client_gives_up_at_its_deadline_and_says_what_is_unknown(tmp_path: Path):
    silent = LossyCalls(LocalCalls(local_actor(tmp_path)), [Fault.CALL_LOST] * 10_000)
    for coalesce in (False, True):
        client = AsyncClient(silent, "local", Patience(deadline_s=0.05, pause_s=0.001), coalesce=coalesce)
        with pytest.raises(RegistryUnavailable) as caught:
            await client.apply(OwnerUp(owner="o1"))
        assert caught.value.code == "REGISTRY_UNAVAILABLE"
        assert "ask again with the same event" in caught.value.message


async def test_a_caller_that_goes_away_takes_nothing_back(tmp_path: Path):
    actor = local_actor(tmp_path)
    client = AsyncClient(LocalCalls(actor), "local", QUICK)
    going = asyncio.create_task(client.apply(OwnerUp(owner="o1")))
    await asyncio.sleep(0)
    going.cancel()
    with pytest.raises(asyncio.CancelledError):
        await going
    assert isinstance(await client.apply(Heartbeat(owner="o1")), Lease)


async def test_concurrent_callers_share_calls_and_a_lone_one_waits_for_nobody():
    sent: list[int] = []
    gate = asyncio.Event()

    async def send(events: tuple[OwnerUp, ...]) -> tuple[Outcome, ...]:
        sent.append(len(events))
        await gate.wait()
        return tuple(Lease(event.owner, 1) for event in events)

    coalescer = Coalescer(send, in_flight=2, largest=10)
    callers = [asyncio.create_task(coalescer.apply_all([OwnerUp(owner=f"o{n}")])) for n in range(8)]
    for _ in range(3):
        await asyncio.sleep(0)
    assert sent == [8]
    callers += [asyncio.create_task(coalescer.apply_all([OwnerUp(owner=f"o{n}")])) for n in range(8, 40)]
    for _ in range(3):
        await asyncio.sleep(0)
    assert sent == [8, 10], "two calls are under way, the others wait"
    gate.set()
    assert [outcome.owner for [outcome] in await asyncio.gather(*callers)] == [f"o{n}" for n in range(40)]
    assert sent == [8, 10, 10, 10, 2]
    assert len(await coalescer.apply_all([OwnerUp(owner="o")] * 25)) == 25, "one caller's row is not torn"


async def test_an_error_of_a_shared_call_is_found_to_be_one_callers():
    async def send(events: tuple[OwnerUp, ...]) -> tuple[Outcome, ...]:
        if any(event.owner == "poison" for event in events):
            raise ValueError("poison")
        return tuple(Lease(event.owner, 1) for event in events)

    coalescer = Coalescer(send)
    answers = await asyncio.gather(
        *(coalescer.apply_all([OwnerUp(owner=owner)]) for owner in ("o1", "poison", "o2")), return_exceptions=True
    )
    assert [type(answer) for answer in answers] == [tuple, ValueError, tuple]


async def test_an_outage_is_everybodys_and_nobody_is_sent_again():
    sent: list[int] = []

    async def send(events: tuple[OwnerUp, ...]) -> tuple[Outcome, ...]:
        sent.append(len(events))
        raise RegistryUnavailable("no answer")

    coalescer = Coalescer(send)
    callers = [coalescer.apply_all([OwnerUp(owner=f"o{n}")]) for n in range(3)]
    answers = await asyncio.gather(*callers, return_exceptions=True)
    assert [type(answer) for answer in answers] == [RegistryUnavailable] * 3
    assert sent == [3]


def test_a_loop_that_ends_leaves_nothing_behind(recwarn: pytest.WarningsRecorder):
    async def send(events: tuple[OwnerUp, ...]) -> tuple[Outcome, ...]:
        await asyncio.Event().wait()
        return ()

    async def run() -> list[asyncio.Task]:
        coalescer = Coalescer(send, in_flight=1, largest=1)
        callers = [asyncio.create_task(coalescer.apply_all([OwnerUp(owner=f"o{n}")])) for n in range(3)]
        for _ in range(3):
            await asyncio.sleep(0)
        return callers

    assert all(caller.cancelled() for caller in asyncio.run(run()))
    assert not recwarn.list


def test_tries_pause_longer_each_time_and_end_at_the_deadline():
    now = 0.0
    tries = Tries(Patience(deadline_s=10, try_s=4, pause_s=1, longest_pause_s=3), "registry r", clock=lambda: now)
    assert tries.timeout() == 4
    pauses = [tries.pause("lost") for _ in range(4)]
    assert all(low <= pause <= high for pause, low, high in zip(pauses, (0.5, 1, 1.5, 1.5), (1, 2, 3, 3), strict=True))
    now = 9.0
    assert tries.timeout() == 1
    with pytest.raises(RegistryUnavailable, match=r"registry r: no answer within 10 s and 2 tries \(last: lost\)"):
        tries.pause("lost")


@pytest.mark.parametrize("field", ["deadline_s", "try_s", "pause_s", "longest_pause_s"])
@pytest.mark.parametrize("value", [0, -1, True, "5", float("nan")])
def test_patience_names_the_field_that_is_wrong(field: str, value: object):
    with pytest.raises(InvalidField) as caught:
        Patience(**{field: value})
    assert caught.value.field == field


async def test_a_refusal_is_a_value_until_somebody_requires_a_yes(tmp_path: Path):
    client = AsyncClient(LocalCalls(local_actor(tmp_path)), "local", QUICK)
    outcome = await client.apply(Heartbeat(owner="nobody"))
    with pytest.raises(Refused) as caught:
        require(outcome, Lease)
    assert caught.value.code == "UNKNOWN_OWNER"
    assert await client.apply_all([]) == ()

"""Leases (rules 9, 10): judged by the owner's own clock, renewed by heartbeats, and what follows when one runs out."""

from __future__ import annotations

import asyncio

import pytest

from lorafsm.events import BindFirst, CloseAndRelease, Heartbeat, OwnerExpired
from lorafsm_asyncio import Reclaimer, RegistryUnavailable, SessionBinder
from tests.adapters.asyncio_services.fault_injection import Fault
from tests.adapters.asyncio_services.stage import A, B, C, Stage, name_of, stage
from tests.adapters.asyncio_services.test_dispatch import ANSWER, send
from tests.adapters.asyncio_services.virtual_time import now_ms, virtually

LEASE_S = 30


def code_of(binder: SessionBinder, session) -> str:
    try:
        return binder.may_dispatch(session).code
    except Exception as error:
        return error.code


def reclaimer(s: Stage) -> Reclaimer:
    return Reclaimer(s.client, s.executors, clock=now_ms, notify=s.notices.append)


def test_a_lease_counts_from_when_the_heartbeat_was_sent_less_a_margin():
    async def story() -> None:
        async with stage() as s:
            binder = await s.binder()
            session = binder.open()
            await binder.ensure(session)
            s.client.faults.append(Fault.REPLY_LATE)  # a second on its way back
            sent = now_ms()
            await binder.renew()
            assert now_ms() == sent + 1_000
            await asyncio.sleep((sent + LEASE_S * 1000 - 1_000 - now_ms() - 1) / 1000)
            assert code_of(binder, session) == "OK"
            await asyncio.sleep(0.002)
            assert code_of(binder, session) == "LEASE_STALE"
            assert s.r.now < s.r.owners[binder.owner].lease_until, "the registry still holds it for alive"

    virtually(story())


def test_a_repeated_registration_does_not_stretch_the_lease():
    async def story() -> None:
        async with stage() as s:
            s.client.faults.extend([Fault.DOUBLED, None])
            binder = await s.binder()
            assert len(s.client.outcomes_of(Heartbeat)) == 1
            session = binder.open()
            await binder.ensure(session)
            assert code_of(binder, session) == "OK"

    virtually(story())


def test_run_keeps_the_lease_through_a_short_outage():
    async def story() -> None:
        async with stage() as s:
            binder = await s.binder()
            session = binder.open()
            await binder.ensure(session)
            s.on(binder.run())
            await asyncio.sleep(100)
            assert code_of(binder, session) == "OK"
            s.client.out = True
            await asyncio.sleep(15)
            assert code_of(binder, session) == "OK"
            s.client.out = False
            await asyncio.sleep(100)
            assert code_of(binder, session) == "OK"
            assert "REGISTRY_UNAVAILABLE" in s.codes()

    virtually(story())


def test_during_a_long_outage_nothing_is_sent_and_afterwards_sessions_go_on():
    async def story() -> None:
        async with stage() as s:
            binder = await s.binder()
            session = binder.open()
            assert await send(binder, session, "r:0", ANSWER) == "OK"
            s.on(binder.run())
            s.client.out = True
            await asyncio.sleep(60)
            assert await send(binder, session, "r:1", ANSWER) == "LEASE_STALE"
            s.client.out = False  # nobody expired this owner meanwhile
            await asyncio.sleep(5)
            assert await send(binder, session, "r:2", ANSWER) == "OK"
            assert s.refs(A) == 1

    virtually(story())


def test_a_heartbeats_reply_carries_revocations():
    async def story() -> None:
        async with stage(capacity=2, max_version_lag=1) as s:
            binder = await s.binder()
            old, new = binder.open(), binder.open()
            await binder.ensure(old)
            await s.publish(B)
            assert code_of(binder, old) == "OK", "it has not heard of it yet; the engine's closed set is the last line"
            await binder.renew()
            assert code_of(binder, old) == "VERSION_RETIRED_BY_POLICY"
            assert (await binder.ensure(new)).key == B
            assert s.refs(A) == 0
            assert (await binder.close_and_release(old)).released is None

    virtually(story())


def test_a_dead_shard_leaks_session_refs_no_more():
    """Its lease runs out, its refs return, A is reclaimed, and its late calls are refused."""

    async def story() -> None:
        async with stage() as s:
            s.on(reclaimer(s).run())
            shard, other = await s.binder("shard-0"), await s.binder("shard-1")
            s.on(other.run())
            sessions = [shard.open() for _ in range(5)]
            for session in sessions:
                await shard.ensure(session)
            await s.publish(B)
            assert s.refs(A) == 5  # the shard is killed here: no heartbeat, no close
            await s.until(lambda: s.refs(A) == 0, within_s=LEASE_S + 2)
            await s.until(lambda: s.state(A) == "RECLAIMED")
            for event in (BindFirst(session=sessions[0]), Heartbeat(owner=shard.owner)):
                assert (await s.tell(event)).code == "SESSION_EXPIRED"
            assert (await s.tell(CloseAndRelease(session=sessions[0]))).code == "ALREADY_CLOSED"
            assert code_of(shard, sessions[0]) == "LEASE_STALE"
            assert s.hosts["E0"].serves("late:0", name_of(A)) is False
            assert other.lost is False
            assert (await s.reserve(C)).ok, "the slot is free"
            assert len(s.client.outcomes_of(OwnerExpired)) == 1

    virtually(story())


def test_an_owner_that_the_registry_ended_is_replaced_and_its_sessions_stay_refused():
    async def story() -> None:
        async with stage() as s:
            s.on(reclaimer(s).run())
            binder = await s.binder("shard-3")
            before, old = binder.owner, binder.open("before")
            await binder.ensure(old)
            await asyncio.sleep(LEASE_S + 2)  # this process hung: no heartbeat
            assert s.r.owners[before].state == "EXPIRED"
            await binder.renew()
            assert binder.owner != before
            assert binder.owner.startswith("shard-3.")
            assert code_of(binder, old) == "SESSION_EXPIRED"
            fresh = binder.open("after")
            assert (await binder.ensure(fresh)).key == A
            assert code_of(binder, fresh) == "OK"
            assert (await binder.close_and_release(old)).released is None
            assert (await binder.close_and_release(old)).code == "ALREADY_CLOSED"
            assert "OWNER_LOST" in s.codes()

    virtually(story())


def test_a_bind_tells_that_the_owner_was_ended():
    async def story() -> None:
        async with stage() as s:
            s.on(reclaimer(s).run())
            binder = await s.binder()
            first, second = binder.open(), binder.open()
            await asyncio.sleep(LEASE_S + 2)
            with pytest.raises(Exception, match="SESSION_EXPIRED"):
                await binder.ensure(first)
            assert binder.lost
            with pytest.raises(Exception, match="SESSION_EXPIRED"):
                await binder.ensure(second)
            with pytest.raises(Exception, match="SESSION_EXPIRED"):
                binder.open()
            assert len(s.client.outcomes_of(BindFirst)) == 1, "the second did not even ask"

    virtually(story())


def test_owner_ids_are_never_reused():
    async def story() -> None:
        async with stage() as s:
            binders = [await s.binder("shard-0") for _ in range(20)]
            assert len({binder.owner for binder in binders}) == 20
            assert len(s.r.owners) == 20

    virtually(story())


def test_stop_gives_every_ref_back_at_once():
    async def story() -> None:
        async with stage() as s:
            binder = await s.binder()
            session = binder.open()
            await binder.ensure(session)
            await binder.stop()
            assert s.refs(A) == 0
            assert code_of(binder, session) == "SESSION_EXPIRED"

    virtually(story())


def test_a_start_without_a_registry_is_a_typed_error():
    async def story() -> None:
        async with stage() as s:
            s.client.out = True
            with pytest.raises(RegistryUnavailable):
                await s.binder()
            s.client.out = False
            s.client.faults.append(Fault.REPLY_LOST)
            with pytest.raises(RegistryUnavailable):
                await s.binder()
            binder = await s.binder()
            assert (await binder.ensure(binder.open())).key == A

    virtually(story())

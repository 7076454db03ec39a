"""The reclaimer (RFC 5): claims what nobody holds, unloads everywhere once, names who holds it up, outlives crashes."""

from __future__ import annotations

import asyncio

import pytest

from lorafsm.engine.orders import Listed
from lorafsm.events import ClaimReclaim, ConfirmReclaim, EngineUp
from lorafsm.identity import VersionKey
from lorafsm.lifecycle import UnloadState
from lorafsm.orders import Unload
from lorafsm.outcomes import Committed
from lorafsm.records import Resident
from lorafsm_asyncio import EngineSilent, Reclaimer, Refused
from lorafsm_asyncio.reclaimer import holders
from tests.adapters.asyncio_services.agent_process import BASE, EngineClient
from tests.adapters.asyncio_services.fault_injection import Fault
from tests.adapters.asyncio_services.stage import EPOCH, A, B, C, Stage, digest_of, name_of, stage
from tests.adapters.asyncio_services.virtual_time import now_ms, virtually


def reclaimer(s: Stage, **more) -> Reclaimer:
    return Reclaimer(s.client, s.executors, clock=now_ms, notify=s.notices.append, **more)


def unloads(s: Stage) -> list[int]:
    return [host.running().unloads.count(name_of(A)) for host in s.hosts.values()]


def test_a_retired_version_that_nobody_holds_is_reclaimed():
    async def story() -> None:
        async with stage() as s:
            s.on(reclaimer(s).run())
            binder = await s.binder()
            session = binder.open()
            await binder.ensure(session)
            await s.publish(B)
            await asyncio.sleep(5)
            assert s.state(A) == "RETIRED"
            await binder.close_and_release(session)
            began = now_ms()
            await s.until(lambda: s.state(A) == "RECLAIMED")
            assert now_ms() - began <= 100
            assert unloads(s) == [1, 1]

    virtually(story())


def test_a_running_request_holds_its_version_and_nothing_else():
    """A drain of minutes: B serves, C waits for the slot, the request is named; then each engine unloads once."""

    async def story() -> None:
        async with stage() as s:
            s.on(reclaimer(s, stuck_after_ms=60_000).run())
            engine = s.hosts["E0"].running()
            engine.admit("long:0", name_of(A))
            await s.publish(B)
            await s.until(lambda: s.state(A) == "RECLAIMING")
            await s.until(lambda: s.r.reclaims[f"reclaim-{A}"].unloads["E1"].state is UnloadState.UNLOADED)
            assert (await s.reserve(C)).code == "CAPACITY_ERROR"
            await asyncio.sleep(100)
            assert s.codes() == ["RECLAIM_STUCK"]
            [notice] = s.notices
            assert notice.engine == "E0"
            assert "long:0" in notice.text
            assert f"{A} on E0" in notice.text
            await asyncio.sleep(100)
            assert s.codes() == ["RECLAIM_STUCK"] * 2, "again after twice the time"
            engine.end("long:0")
            await s.until(lambda: s.state(A) == "RECLAIMED")
            assert unloads(s) == [1, 1]
            assert isinstance(await s.publish(C), Committed)

    virtually(story())


def test_reclaim_runs_outside_any_training_step():
    """A drain as long as the RFC's 93.6 s delays no publication that has a slot."""

    async def story() -> None:
        async with stage(capacity=3, engine_slots=4) as s:
            s.on(reclaimer(s).run())
            engine = s.hosts["E0"].running()
            engine.admit("long:0", name_of(A))
            await s.publish(B)
            await s.until(lambda: s.state(A) == "RECLAIMING")
            began = now_ms()
            assert isinstance(await s.publish(C), Committed)
            assert now_ms() - began < 2_000
            await asyncio.sleep(93.6)
            engine.end("long:0")
            await s.until(lambda: s.state(A) == "RECLAIMED")

    virtually(story())


@pytest.mark.parametrize("fault", list(Fault))
def test_a_lost_claim_reply_leaves_no_RECLAIMING_for_ever(fault: Fault):
    """The reclaim has a stable id: whoever looks next goes on with it."""

    async def story() -> None:
        async with stage() as s:
            s.client.at[ClaimReclaim] = fault
            await s.publish(B)
            first = s.on(reclaimer(s).run())
            await s.until(lambda: ClaimReclaim not in s.client.at)
            await s.kill(first)
            s.on(reclaimer(s).run())
            await s.until(lambda: s.state(A) == "RECLAIMED")
            assert unloads(s) == [1, 1]
            assert len(s.r.reclaims) == 1

    virtually(story())


@pytest.mark.parametrize("kind", [ConfirmReclaim, ClaimReclaim])
def test_a_reclaimer_that_dies_at_any_point_is_replaced(kind: type):
    async def story() -> None:
        async with stage() as s:
            await s.publish(B)
            for _ in range(5):  # killed again and again, each time when it is about to speak
                s.client.at[kind] = Fault.REQUEST_LOST
                service = s.on(reclaimer(s).run())
                await s.until(lambda: kind not in s.client.at)
                await s.kill(service)
            s.on(reclaimer(s).run())
            await s.until(lambda: s.state(A) == "RECLAIMED")
            assert unloads(s) == [1, 1]

    virtually(story())


def test_a_lost_unload_reply_is_asked_for_again_and_unloads_once():
    async def story() -> None:
        async with stage() as s:
            client = s.executors["E1"]
            assert isinstance(client, EngineClient)
            client.lose_replies += [Unload, Unload]
            await s.publish(B)
            s.on(reclaimer(s).run())
            await s.until(lambda: s.state(A) == "RECLAIMED")
            assert unloads(s) == [1, 1]

    virtually(story())


def test_one_unconfirmed_unload_blocks_its_own_slot_and_no_later_publication():
    """A request of A never ends on E0; B, C, D and E are published and reclaimed, without a redeploy."""

    async def story() -> None:
        async with stage(capacity=3, engine_slots=4) as s:
            s.on(reclaimer(s).run())
            s.hosts["E0"].running().admit("leaked:0", name_of(A))
            for number in range(2, 6):
                key = VersionKey(EPOCH, number)
                assert isinstance(await s.publish(key), Committed)
                await s.until(lambda: len(s.r.slots) == 2)
                assert s.state(A) in ("RETIRED", "RECLAIMING")
            assert s.state(A) == "RECLAIMING"
            s.hosts["E0"].running().end("leaked:0")
            await s.until(lambda: s.state(A) == "RECLAIMED")
            assert unloads(s) == [1, 1]

    virtually(story())


def test_while_an_engine_hangs_sessions_go_on_and_the_refusal_names_what_holds_the_slot():
    async def story() -> None:
        async with stage() as s:
            s.on(reclaimer(s, stuck_after_ms=30_000).run())
            binder = await s.binder()
            s.on(binder.run())
            await s.publish(B)
            s.hosts["E1"].running().hung = True
            await asyncio.sleep(120)
            assert s.state(A) == "RECLAIMING"
            assert "RECLAIM_STUCK" in s.codes()
            refused = await s.reserve(C)
            assert (refused.code, [b.key for b in refused.blockers]) == ("CAPACITY_ERROR", [A, B])
            assert "E1" in str(refused.blockers[0])
            assert (await binder.ensure(binder.open())).key == B
            s.hosts["E1"].running().hung = False
            await s.until(lambda: s.state(A) == "RECLAIMED")

    virtually(story())


def test_reclaim_of_one_version_answers_its_end_or_why_not():
    async def story() -> None:
        async with stage() as s:
            binder = await s.binder()
            session = binder.open()
            await binder.ensure(session)
            service = reclaimer(s)
            with pytest.raises(Refused) as caught:
                await service.reclaim(C)
            assert caught.value.code == "UNKNOWN_VERSION"
            with pytest.raises(Refused) as caught:
                await service.reclaim(A)
            assert caught.value.code == "SESSION_REFS_HELD"
            await binder.close_and_release(session)
            with pytest.raises(Refused) as caught:
                await service.reclaim(A)
            assert caught.value.code == "NOT_RETIRED"
            await s.publish(B)
            assert await service.reclaim(A) == "RECLAIMED"
            assert await service.reclaim(A) == "RECLAIMED"
            assert unloads(s) == [1, 1]

    virtually(story())


def test_a_reclaim_with_patience_names_the_silent_engine():
    async def story() -> None:
        async with stage() as s:
            await s.publish(B)
            s.hosts["E1"].running().hung = True
            with pytest.raises(EngineSilent) as caught:
                await reclaimer(s).reclaim(A, patience=3)
            assert caught.value.message.startswith("E1 does not say how Unload")

    virtually(story())


def test_a_silent_engine_does_not_fill_the_journal():
    async def story() -> None:
        async with stage() as s:
            await s.publish(B)
            s.hosts["E1"].running().hung = True
            s.on(reclaimer(s).run())
            await asyncio.sleep(60)
            rows = len(s.journaled.journal)
            await asyncio.sleep(3_600)
            assert len(s.journaled.journal) == rows
            assert "ENGINE_SILENT" in s.codes()

    virtually(story())


def test_an_order_to_a_new_process_does_not_wait_for_one_to_its_predecessor():
    """E1's unload is under way for minutes when its process is replaced by one that holds A again."""

    async def story() -> None:
        async with stage() as s:
            host = s.hosts["E1"]
            host.running().admit("long:0", name_of(A))
            await s.publish(B)
            s.on(reclaimer(s).run())
            await s.until(lambda: s.state(A) == "RECLAIMING")
            await asyncio.sleep(5)
            held, old = Resident(A, digest_of(A), 1), s.executors["E1"]
            host.kill()
            fresh = host.start()
            s.executors["E1"] = host.connect(2)
            fresh.loaded.add(name_of(A))
            fresh.give(Listed(names=frozenset(fresh.loaded), seq=fresh.agent.seq))
            up = EngineUp(
                engine="E1", incarnation=2, seq=9, base_fingerprint=BASE, residents=frozenset({held}), now=now_ms()
            )
            assert (await s.tell(up)).ok
            assert s.state(A) == "RECLAIMING"
            assert old is not s.executors["E1"]
            await s.until(lambda: any(isinstance(o, Unload) for o in s.executors["E1"].given), within_s=3)

    virtually(story())


def test_who_holds_a_version_is_asked_of_engines_that_can_say():
    async def story() -> None:
        async with stage() as s:
            s.hosts["E0"].running().admit("r:1", name_of(A))
            assert await holders(s.executors["E0"], name_of(A)) == ("r:1",)
            s.hosts["E0"].kill()
            assert await holders(s.executors["E0"], name_of(A)) == ()
            assert await holders(object(), name_of(A)) == ()
            assert await holders(None, name_of(A)) == ()

    virtually(story())

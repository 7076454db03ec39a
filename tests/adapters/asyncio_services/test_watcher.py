"""The watcher and the repairer (rules 14, 15): death, silence and return of engines become events and repairs."""

from __future__ import annotations

import asyncio
from typing import Any

from attrs import evolve

from lorafsm.engine.orders import Listed
from lorafsm.errors import LoraFsmError
from lorafsm.events import EngineDead, EngineLost, EngineUp
from lorafsm.outcomes import Committed
from lorafsm_asyncio import Publisher, Reclaimer, Repairer, Seat, Watcher
from lorafsm_asyncio.questions import Routable
from tests.adapters.asyncio_services.stage import A, B, C, Stage, name_of, stage
from tests.adapters.asyncio_services.virtual_time import now_ms, virtually


def watcher(s: Stage, **more: Any) -> Watcher:
    seats = [Seat(name, host.connect, host.exited) for name, host in s.hosts.items()]
    return Watcher(
        s.client, "e1", seats, s.executors, clock=now_ms, notify=s.notices.append, **{"lost_after_ms": 10_000, **more}
    )


def watched(s: Stage, **more: Any) -> None:
    s.on(watcher(s, **more).run())
    s.on(Repairer(s.client, s.executors, clock=now_ms, notify=s.notices.append).run())


async def routable(s: Stage, key) -> tuple[str, ...]:
    return await s.client.inner.ask(Routable(key))


def test_engines_join_by_themselves_and_the_first_version_is_published():
    async def story() -> None:
        async with stage(published=None) as s:
            watched(s)
            await asyncio.sleep(3)
            assert len(s.r.engines) == 0
            s.start_engines()
            await s.until(lambda: len(s.r.engines) == 2)
            assert isinstance(await s.publish(A), Committed)
            assert await routable(s, A) == ("E0", "E1")

    virtually(story())


def test_a_restarted_engine_is_provisioned_again():
    """kill -9: dead at once, its successor routable only after each needed version was loaded and proved."""

    async def story() -> None:
        async with stage() as s:
            watched(s)
            binder = await s.binder()
            s.on(binder.run())
            old = binder.open()
            await binder.ensure(old)
            await s.publish(B)
            s.hosts["E1"].kill()
            await s.until(lambda: s.r.engines["E1"].state == "DEAD", within_s=3)
            assert s.r.engines["E1"].reason == "process 1 ended with status -9"
            assert (await routable(s, A), await routable(s, B)) == (("E0",), ("E0",))
            await asyncio.sleep(20)
            fresh = s.hosts["E1"].start()
            fresh.load_s = 2.0
            await s.until(lambda: s.r.engines["E1"].incarnation == 2)
            assert await routable(s, B) == ("E0",), "it has lost every adapter"
            await s.until(lambda: s.r.engines["E1"].state == "UP")
            assert (await routable(s, A), await routable(s, B)) == (("E0", "E1"), ("E0", "E1"))
            assert sorted(fresh.loads) == [name_of(A), name_of(B)]
            assert s.r.default_revision == 2

    virtually(story())


def test_a_restart_that_nobody_saw_is_found_by_the_new_incarnations_proof():
    async def story() -> None:
        async with stage() as s:
            s.hosts["E1"].supervised = False
            watched(s, poll_s=30.0)
            await asyncio.sleep(1)
            old = s.executors["E1"]
            s.hosts["E1"].kill()
            s.hosts["E1"].start()
            await s.until(lambda: s.r.engines["E1"].incarnation == 2)
            await s.until(lambda: s.r.engines["E1"].state == "UP")
            assert s.client.outcomes_of(EngineDead) == []
            assert old.closed
            assert not s.executors["E1"].closed
            assert await routable(s, A) == ("E0", "E1")

    virtually(story())


def test_a_silent_engine_is_lost_and_comes_back_with_what_it_holds():
    async def story() -> None:
        async with stage() as s:
            watched(s)
            engine = s.hosts["E1"].running()
            await asyncio.sleep(3)
            engine.hung = True
            await asyncio.sleep(8)
            assert s.r.engines["E1"].state == "UP", "not yet"
            await s.until(lambda: s.r.engines["E1"].state == "LOST", within_s=20)
            assert len(s.client.outcomes_of(EngineLost)) == 1
            assert await routable(s, A) == ("E0",)
            engine.hung = False
            await s.until(lambda: s.r.engines["E1"].state == "UP")
            assert await routable(s, A) == ("E0", "E1")
            assert engine.loads == [name_of(A)], "nothing is loaded again"

    virtually(story())


def test_a_publication_is_doomed_by_a_death_and_the_next_one_succeeds():
    async def story() -> None:
        async with stage() as s:
            watched(s)
            s.on(Reclaimer(s.client, s.executors, clock=now_ms, notify=s.notices.append).run())
            publisher = Publisher(s.client, s.executors, clock=now_ms, notify=s.notices.append)
            for host in s.hosts.values():
                host.running().load_s = 5.0
            await asyncio.sleep(2)
            await s.reserve(B)
            task = s.on(publisher.publish(B, f"token-{B}", patience=None))
            await s.until(lambda: s.hosts["E1"].running().loads.count(name_of(B)) == 1)
            s.hosts["E1"].kill()
            done = await task
            assert done.reason.startswith("MEMBERSHIP_CHANGED: E1")
            assert s.state(B) == "FAILED_CLEAN"
            s.hosts["E1"].start()
            await s.until(lambda: s.r.engines["E1"].state == "UP")
            assert isinstance(await s.publish(C), Committed)
            assert await routable(s, C) == ("E0", "E1")

    virtually(story())


def test_an_engine_that_died_during_a_reclaim_confirms_it_by_its_death():
    async def story() -> None:
        async with stage() as s:
            watched(s)
            s.on(Reclaimer(s.client, s.executors, clock=now_ms, notify=s.notices.append).run())
            s.hosts["E1"].running().admit("long:0", name_of(A))
            await s.publish(B)
            await s.until(lambda: s.state(A) == "RECLAIMING")
            await asyncio.sleep(5)
            s.hosts["E1"].kill()
            await s.until(lambda: s.state(A) == "RECLAIMED", within_s=5)

    virtually(story())


def test_an_adapter_that_vanished_is_loaded_again():
    async def story() -> None:
        async with stage() as s:
            watched(s, inventory_every_ms=5_000)
            await asyncio.sleep(2)
            engine = s.hosts["E1"].running()
            engine.loaded.clear()
            engine.give(Listed(names=frozenset(), seq=engine.agent.seq))
            await s.until(lambda: engine.loads.count(name_of(A)) == 2)
            await s.until(lambda: s.r.engines["E1"].state == "UP")
            assert await routable(s, A) == ("E0", "E1")

    virtually(story())


def test_a_managed_adapter_from_a_side_door_is_removed():
    async def story() -> None:
        async with stage() as s:
            watched(s, inventory_every_ms=5_000)
            await asyncio.sleep(2)
            engine = s.hosts["E1"].running()
            engine.loaded.add(name_of(C))
            engine.give(Listed(names=frozenset(engine.loaded), seq=engine.agent.seq))
            await s.until(lambda: bool(s.r.engines["E1"].strays))
            await s.until(lambda: not s.r.engines["E1"].strays)
            assert engine.loaded == {name_of(A)}
            assert engine.unloads == [name_of(C)]

    virtually(story())


def test_an_unchanged_inventory_is_not_told_again():
    async def story() -> None:
        async with stage() as s:
            watched(s, inventory_every_ms=2_000)
            await asyncio.sleep(600)
            assert len(s.client.outcomes_of(EngineUp)) == 2

    virtually(story())


def test_a_restarted_watcher_knows_what_the_registry_knows():
    async def story() -> None:
        async with stage() as s:
            first = s.on(watcher(s).run())
            await asyncio.sleep(3)
            await s.kill(first)
            assert s.executors == {}, "it closed what it had opened"
            s.hosts["E0"].kill()
            await asyncio.sleep(3)
            watched(s)
            await s.until(lambda: s.r.engines["E0"].state == "DEAD")
            s.hosts["E0"].start()
            await s.until(lambda: s.r.engines["E0"].state == "UP")
            assert await routable(s, A) == ("E0", "E1")

    virtually(story())


def test_a_process_that_was_declared_dead_and_answers_is_named_and_not_used():
    async def story() -> None:
        async with stage() as s:
            assert (await s.tell(EngineDead(engine="E1", incarnation=1, evidence="operator", now=now_ms()))).ok
            s.executors.clear()
            watched(s)
            await asyncio.sleep(5)
            assert "STALE_INCARNATION" in s.codes()
            assert list(s.executors) == ["E0"]

    virtually(story())


def test_an_engine_over_another_base_is_refused():
    async def story() -> None:
        async with stage(published=None) as s:
            s.start_engines()
            wrong = s.hosts["E1"].running()
            wrong.agent = evolve(wrong.agent, base_fingerprint="c" * 64)
            watched(s)
            await asyncio.sleep(3)
            assert list(s.r.engines) == ["E0"]
            assert "BASE_MISMATCH" in s.codes()

    virtually(story())


def test_one_hung_engine_delays_the_watch_of_no_other():
    async def story() -> None:
        async with stage() as s:
            watched(s)
            await asyncio.sleep(2)
            s.hosts["E0"].running().hung = True
            s.hosts["E1"].kill()
            began = now_ms()
            await s.until(lambda: s.r.engines["E1"].state == "DEAD")
            assert now_ms() - began <= 1_100

    virtually(story())


def test_an_outage_of_the_registry_stops_no_watch():
    async def story() -> None:
        async with stage() as s:
            watched(s)
            s.client.out = True
            await asyncio.sleep(30)
            s.hosts["E1"].kill()
            await asyncio.sleep(5)
            s.client.out = False
            await s.until(lambda: s.r.engines["E1"].state == "DEAD")

    virtually(story())


class Wired:
    """A connection to the address at which the engine was when it was made; nobody answers at an old one."""

    def __init__(self, inner: Any, addresses: dict[str, int], name: str) -> None:
        self._inner, self._addresses, self._name, self._at = inner, addresses, name, addresses[name]

    def _require_there(self) -> None:
        if self._addresses[self._name] != self._at:
            raise LoraFsmError("NO_ANSWER", f"nobody at {self._at}")

    async def attest(self) -> Any:
        self._require_there()
        return await self._inner.attest()

    async def carry_out(self, order: Any) -> Any:
        self._require_there()
        return await self._inner.carry_out(order)

    async def aclose(self) -> None:
        await self._inner.aclose()


def test_an_engine_that_comes_back_at_another_address_is_found():
    async def story() -> None:
        async with stage() as s:
            addresses = dict.fromkeys(s.hosts, 1)

            def seat(name: str) -> Seat:
                host = s.hosts[name]
                return Seat(name, lambda incarnation: Wired(host.connect(incarnation), addresses, name), host.exited)

            seats = [seat(name) for name in s.hosts]
            s.on(Watcher(s.client, "e1", seats, s.executors, clock=now_ms, notify=s.notices.append).run())
            s.on(Repairer(s.client, s.executors, clock=now_ms, notify=s.notices.append).run())
            s.hosts["E1"].kill()
            await s.until(lambda: s.r.engines["E1"].state == "DEAD")
            addresses["E1"] = 2
            s.hosts["E1"].start()
            await s.until(lambda: s.r.engines["E1"].state == "UP")
            assert await routable(s, A) == ("E0", "E1")

    virtually(story())

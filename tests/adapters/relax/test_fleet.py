"""Relax's engines as seats, and all services of a deployment in one call: recovery drives repairs by itself."""

from __future__ import annotations

import asyncio

import pytest

from lorafsm.outcomes import Committed
from lorafsm_asyncio import Seat
from lorafsm_asyncio.questions import Routable
from lorafsm_relax import guarded_seats, run_services
from tests.adapters.asyncio_services.stage import EPOCH, A, B, Stage, name_of, stage
from tests.adapters.asyncio_services.virtual_time import now_ms, virtually


def seats_of(s: Stage) -> list[Seat]:
    return [Seat(name, host.connect, host.exited) for name, host in s.hosts.items()]


def services(s: Stage):
    return run_services(s.client, EPOCH, seats_of(s), s.executors, clock=now_ms, notify=s.notices.append)


def test_a_seat_makes_a_client_of_each_new_process_where_it_is_now():
    ports = {"engine-0": 30001}
    ended = {"engine-0": None}
    [seat] = guarded_seats(["engine-0"], lambda e: f"http://host:{ports[e]}", "secret-token", exited=ended.get)
    first = seat.connect(1)
    ports["engine-0"] = 30002
    second = seat.connect(2)
    assert [(c.engine, c.incarnation, c.url) for c in (first, second)] == [
        ("engine-0", 1, "http://host:30001"),
        ("engine-0", 2, "http://host:30002"),
    ]
    assert "secret-token" not in repr(first) + repr(seat)
    assert seat.exited() is None
    ended["engine-0"] = "the Ray actor died"
    assert seat.exited() == "the Ray actor died"


@pytest.mark.parametrize("engines", [1, 3, 5])
def test_engines_are_not_fixed_to_two(engines: int):
    async def story() -> None:
        async with stage(engines=engines, published=None) as s:
            s.on(services(s))
            s.start_engines()
            await s.until(lambda: len(s.r.engines) == engines)
            assert isinstance(await s.publish(A), Committed)
            assert isinstance(await s.publish(B), Committed)
            await s.until(lambda: s.state(A) == "RECLAIMED")
            assert len(await s.client.ask(Routable(B))) == engines

    virtually(story())


def test_a_recovered_engine_is_provisioned_by_the_services_alone():
    async def story() -> None:
        async with stage() as s:
            s.on(services(s))
            await asyncio.sleep(3)
            s.hosts["E1"].kill()
            await asyncio.sleep(30)
            assert await s.client.ask(Routable(A)) == ("E0",)
            s.hosts["E1"].start()
            await s.until(lambda: s.r.engines["E1"].state == "UP" and s.r.engines["E1"].incarnation == 2)
            assert await s.client.ask(Routable(A)) == ("E0", "E1")

    virtually(story())


def test_two_processes_with_all_services_do_not_disturb_each_other():
    async def story() -> None:
        async with stage() as s:
            for _ in range(2):
                s.on(services(s))
            await s.publish(B)
            await s.until(lambda: s.state(A) == "RECLAIMED")
            assert [host.running().unloads for host in s.hosts.values()] == [[name_of(A)]] * 2

    virtually(story())


def test_a_service_that_breaks_is_named_and_started_again():
    async def story() -> None:
        async with stage() as s:
            asked, broken = s.client.ask, []

            async def ask(question):
                if type(question).__name__ == "ReclaimerOrders" and not broken:
                    broken.append(question)
                    raise RuntimeError("a bug")
                return await asked(question)

            s.client.ask = ask  # type: ignore[method-assign]
            s.on(services(s))
            await s.publish(B)
            await s.until(lambda: s.state(A) == "RECLAIMED")
            assert "SERVICE_FAILED" in s.codes()

    virtually(story())

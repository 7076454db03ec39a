"""First bind (RFC 4.1): one shared task, harmless cancellations, and a registry that is out or loses replies."""

from __future__ import annotations

import asyncio
import time

import pytest

from lorafsm.errors import InvalidField
from lorafsm.events import BindFirst, CloseAndRelease
from lorafsm.identity import SessionKey
from lorafsm.outcomes import Binding, Closed
from lorafsm_asyncio import Refused, RegistryUnavailable
from lorafsm_asyncio.questions import SessionStateOf
from tests.adapters.asyncio_services.fault_injection import Fault
from tests.adapters.asyncio_services.stage import A, B, Stage, name_of, stage
from tests.adapters.asyncio_services.virtual_time import NothingCanHappen, now_ms, virtually


async def refused(call, code: str) -> None:
    with pytest.raises(Refused) as caught:
        await call
    assert caught.value.code == code


def test_virtual_time_passes_at_once_and_a_wait_for_nothing_is_seen():
    async def hour() -> int:
        began = now_ms()
        await asyncio.sleep(3600)
        return now_ms() - began

    began = time.monotonic()
    assert virtually(hour()) == 3_600_000
    assert time.monotonic() - began < 5

    async def nothing() -> None:
        await asyncio.Event().wait()

    with pytest.raises(NothingCanHappen):
        virtually(nothing())


def test_a_session_binds_at_its_first_generation_and_not_when_it_is_opened():
    async def story() -> None:
        async with stage() as s:
            binder = await s.binder()
            old = binder.open("S_old")
            assert s.refs(A) == 0
            assert (await s.publish(B)).ok
            binding = await binder.ensure(old)
            assert (binding.key, binding.lora_name, binding.session) == (B, name_of(B), old)
            assert await binder.ensure(old) == binding
            assert (s.refs(A), s.refs(B)) == (0, 1)
            assert len(s.client.outcomes_of(BindFirst)) == 1

    virtually(story())


def test_a_bound_session_stays_with_its_version_after_a_commit():
    async def story() -> None:
        async with stage() as s:
            binder = await s.binder()
            old, new = binder.open(), binder.open()
            await binder.ensure(old)
            await s.publish(B)
            assert (await binder.ensure(old)).key == A
            assert (await binder.ensure(new)).key == B

    virtually(story())


def test_many_waiters_share_one_binding_task():
    async def story() -> None:
        async with stage() as s:
            binder = await s.binder()
            session = binder.open("many")
            bindings = await asyncio.gather(*(binder.ensure(session) for _ in range(64)))
            assert len(set(map(id, bindings))) == 1
            assert s.refs(A) == 1
            assert len(s.client.outcomes_of(BindFirst)) == 1

    virtually(story())


@pytest.mark.parametrize("cancelled", [1, 2])
def test_a_cancelled_waiter_cancels_nothing_else(cancelled: int):
    async def story() -> None:
        async with stage() as s:
            binder = await s.binder()
            session = binder.open()
            s.client.faults.append(Fault.REPLY_LATE)
            waiters = [asyncio.create_task(binder.ensure(session)) for _ in range(2)]
            await asyncio.sleep(0.1)
            for waiter in waiters[:cancelled]:
                waiter.cancel()
            ends = await asyncio.gather(*waiters, return_exceptions=True)
            assert [isinstance(end, asyncio.CancelledError) for end in ends] == [True, cancelled == 2]
            assert (await binder.ensure(session)).key == A
            assert len(s.client.outcomes_of(BindFirst)) == 1
            assert s.refs(A) == 1
            closed = await binder.close_and_release(session)
            assert closed.released == A
            assert s.refs(A) == 0

    virtually(story())


def test_a_failed_binding_is_forgotten_and_asked_for_again():
    async def story() -> None:
        async with stage(published=None) as s:
            binder = await s.binder()
            session = binder.open()
            await refused(binder.ensure(session), "NO_PUBLISHED_VERSION")
            await s.join_engines()
            await s.publish(A)
            assert (await binder.ensure(session)).key == A

    virtually(story())


def test_all_waiters_of_a_failed_binding_hear_why():
    async def story() -> None:
        async with stage(published=None) as s:
            binder = await s.binder()
            session = binder.open()
            ends = await asyncio.gather(*(binder.ensure(session) for _ in range(3)), return_exceptions=True)
            assert [getattr(end, "code", None) for end in ends] == ["NO_PUBLISHED_VERSION"] * 3
            assert len(s.client.outcomes_of(BindFirst)) == 1

    virtually(story())


def test_an_outage_is_a_typed_error_after_a_bounded_wait():
    async def story() -> None:
        async with stage() as s:
            binder = await s.binder()
            session = binder.open()
            s.client.out = True
            began = now_ms()
            with pytest.raises(RegistryUnavailable) as caught:
                await binder.ensure(session)
            assert caught.value.code == "REGISTRY_UNAVAILABLE"
            assert now_ms() - began == 2_000
            s.client.out = False
            assert (await binder.ensure(session)).key == A
            assert s.refs(A) == 1

    virtually(story())


@pytest.mark.parametrize("fault", list(Fault))
def test_a_bind_that_goes_wrong_on_its_way_binds_once(fault: Fault):
    async def story() -> None:
        async with stage() as s:
            binder = await s.binder()
            session = binder.open()
            s.client.faults.append(fault)
            try:
                first = await binder.ensure(session)
            except RegistryUnavailable:
                first = None
            await s.publish(B)
            again = await binder.ensure(session)
            late = fault is Fault.REQUEST_LOST  # nothing was bound before B
            assert again.key == (B if late else A)
            assert first in (None, again)
            await s.client.deliver_late()
            assert s.refs(A) + s.refs(B) == 1
            assert {o.key for o in s.client.outcomes_of(BindFirst) if isinstance(o, Binding)} == {again.key}

    virtually(story())


@pytest.mark.parametrize("fault", list(Fault))
def test_a_close_that_goes_wrong_on_its_way_releases_once(fault: Fault):
    async def story() -> None:
        async with stage() as s:
            binder = await s.binder()
            session = binder.open()
            await binder.ensure(session)
            s.client.faults.extend([None, fault])  # of begin_close, and of close_and_release
            await binder.begin_close(session)
            try:
                await binder.close_and_release(session)
            except RegistryUnavailable:
                assert binder.unreleased == {session}
                assert binder.live == 1, "it is forgotten only after a confirmed close"
                await binder.renew()
            assert (binder.unreleased, binder.live) == (frozenset(), 0)
            await s.client.deliver_late()
            assert (await binder.close_and_release(session)).code == "ALREADY_CLOSED"
            releases = [o for o in s.client.outcomes_of(CloseAndRelease) if isinstance(o, Closed) and o.released]
            assert len(releases) == 1
            assert s.refs(A) == 0

    virtually(story())


def test_close_waits_for_the_binding_task_and_its_ref_is_released():
    async def story() -> None:
        async with stage() as s:
            binder = await s.binder()
            session = binder.open()
            s.client.faults.append(Fault.LATE)
            waiter = asyncio.create_task(binder.ensure(session))
            await asyncio.sleep(0.1)
            assert await binder.begin_close(session) == ()
            closed = await binder.close_and_release(session)
            await refused(waiter, "SESSION_CLOSED")
            assert isinstance(closed, Closed)
            assert [event.name for event, _ in s.client.applied[-3:]] == [
                "begin_close",
                "bind_first",
                "close_and_release",
            ]
            assert s.refs(A) == 0
            assert await s.client.ask(SessionStateOf(session)) == "CLOSED"

    virtually(story())


def test_close_before_the_first_bind_wins():
    async def story() -> None:
        async with stage() as s:
            binder = await s.binder()
            session = binder.open("early")
            await binder.close_and_release(session)
            await refused(binder.ensure(session), "SESSION_CLOSED")
            assert (await s.tell(BindFirst(session=session, now=now_ms()))).code == "SESSION_CLOSED"
            assert s.refs(A) == 0

    virtually(story())


def test_two_closers_share_one_release():
    async def story() -> None:
        async with stage() as s:
            binder = await s.binder()
            session = binder.open()
            await binder.ensure(session)
            ends = await asyncio.gather(*(binder.close_and_release(session) for _ in range(3)))
            assert [end.released for end in ends] == [A, A, A]
            assert len(s.client.outcomes_of(CloseAndRelease)) == 1
            assert (await binder.close_and_release(session)).released is None
            assert s.refs(A) == 0

    virtually(story())


def test_a_cancelled_closer_does_not_stop_the_close():
    async def story() -> None:
        async with stage() as s:
            binder = await s.binder()
            session = binder.open()
            await binder.ensure(session)
            s.client.faults.append(Fault.LATE)
            closer = asyncio.create_task(binder.close_and_release(session))
            await asyncio.sleep(0.1)
            closer.cancel()
            await asyncio.gather(closer, return_exceptions=True)
            await s.until(lambda: binder.live == 0)
            assert s.refs(A) == 0

    virtually(story())


def test_a_reopened_label_is_a_new_session():
    async def story() -> None:
        async with stage() as s:
            binder = await s.binder()
            first = binder.open("episode-7")
            await binder.ensure(first)
            await binder.close_and_release(first)
            await s.publish(B)
            second = binder.open("episode-7")
            assert second != first
            assert (await binder.ensure(second)).key == B
            await refused(binder.ensure(first), "SESSION_CLOSED")

    virtually(story())


def test_a_session_of_somebody_else_is_refused():
    async def story() -> None:
        async with stage() as s:
            binder, other = await s.binder("shard-0"), await s.binder("shard-1")
            theirs = other.open()
            await refused(binder.ensure(theirs), "UNKNOWN_SESSION")
            never = SessionKey("e1", binder.owner, 99)
            await refused(binder.ensure(never), "UNKNOWN_SESSION")

    virtually(story())


@pytest.mark.parametrize(
    ("words", "field"), [({"prefix": "a b"}, "prefix"), ({"prefix": "x" * 97}, "prefix"), ({"margin_ms": -1}, "margin")]
)
def test_bad_arguments_are_named(words: dict, field: str):
    async def story() -> None:
        async with stage() as s:
            with pytest.raises(InvalidField) as caught:
                await s.binder(**words)
            assert caught.value.field == field

    virtually(story())


def test_a_margin_that_eats_the_whole_lease_is_refused():
    async def story() -> None:
        async with stage(owner_lease=500) as s:
            with pytest.raises(InvalidField) as caught:
                await s.binder()
            assert caught.value.field == "margin_ms"

    virtually(story())


def test_a_label_is_shown_by_the_registry_and_a_bad_one_is_refused():
    async def story() -> None:
        async with stage() as s:
            binder = await s.binder()
            session = binder.open("episode-7")
            await binder.ensure(session)
            assert s.r.owners[binder.owner].sessions[session.sequence].label == "episode-7"
            with pytest.raises(InvalidField) as caught:
                binder.open("two\nlines")
            assert caught.value.field == "label"

    virtually(story())


async def _live(s: Stage, sessions: int) -> int:
    binder = await s.binder()
    for _ in range(sessions):
        session = binder.open()
        await binder.ensure(session)
        await binder.begin_close(session)
        await binder.close_and_release(session)
    return binder.live + sum(len(getattr(binder, name)) for name in ("_labels", "_turns", "_rids", "_closed"))


def test_closed_sessions_leave_nothing_behind():
    async def story() -> None:
        async with stage() as s:
            assert await _live(s, 200) == 0
            assert s.refs(A) == 0
            [owner] = s.r.owners.values()
            assert (len(owner.sessions), owner.gaps) == (0, ())

    virtually(story())

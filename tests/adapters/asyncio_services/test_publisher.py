"""The publisher (RFC 3): drives to one outcome, survives lost replies and outages, and is taken over when it dies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from lorafsm.events import (
    AuthorizeBucket,
    BucketDone,
    Commit,
    EngineDead,
    Event,
    Prepared,
    Ready,
    Takeover,
    TargetUnknown,
)
from lorafsm.lifecycle import TargetState
from lorafsm.orders import Begin, Cleanup, End, SendBucket
from lorafsm.outcomes import Aborted, Authorized, Committed
from lorafsm_asyncio import EngineSilent, Publisher, Refused
from tests.adapters.asyncio_services.agent_process import EngineClient
from tests.adapters.asyncio_services.fault_injection import Fault
from tests.adapters.asyncio_services.stage import A, B, C, Stage, digest_of, name_of, stage
from tests.adapters.asyncio_services.virtual_time import now_ms, virtually


def publisher(s: Stage, **more) -> Publisher:
    return Publisher(s.client, s.executors, clock=now_ms, notify=s.notices.append, **more)


def client_of(s: Stage, name: str) -> EngineClient:
    found = s.executors[name]
    assert isinstance(found, EngineClient)
    return found


def orders(s: Stage, kind: type) -> list[str]:
    return [f"{name}" for name in s.executors for order in client_of(s, name).given if isinstance(order, kind)]


def test_a_version_is_published():
    async def story() -> None:
        async with stage() as s:
            await s.reserve(B)
            done = await publisher(s).publish(B, f"token-{B}")
            assert (done.key, done.revision, done.replaced) == (B, 2, A)
            assert isinstance(done, Committed)
            assert [s.state(A), s.state(B)] == ["RETIRED", "PUBLISHED"]
            assert [host.running().loads.count(name_of(B)) for host in s.hosts.values()] == [1, 1]

    virtually(story())


def test_a_driver_asks_one_question_a_round():
    """Orders, outcome and cleanness come together: a registry elsewhere is asked as seldom as possible."""

    async def story() -> None:
        async with stage() as s:
            await s.reserve(B)
            s.client.asked.clear()
            assert isinstance(await publisher(s).publish(B, f"token-{B}"), Committed)
            kinds = [type(question).__name__ for question in s.client.asked]
            assert (kinds[0], set(kinds[1:])) == ("VersionOf", {"DrivenAttempt"})

    virtually(story())


def test_one_damaged_copy_ends_in_a_clean_abort_with_one_outcome_for_all():
    async def story() -> None:
        async with stage() as s:
            s.hosts["E1"].running().corrupt.add(name_of(B))
            await s.reserve(B)
            done, other = await asyncio.gather(*(publisher(s).publish(B, f"token-{B}") for _ in range(2)))
            assert done == other
            assert isinstance(done, Aborted)
            assert done.reason.startswith("TARGET_FAILED: E1")
            assert s.state(B) == "FAILED_CLEAN"
            assert s.r.default == A
            assert s.hosts["E0"].running().loaded == {name_of(A)}

    virtually(story())


@pytest.mark.parametrize("kind", [Begin, End, Cleanup])
def test_an_engines_lost_reply_is_asked_for_again(kind: type):
    async def story() -> None:
        async with stage() as s:
            if kind is Cleanup:
                s.hosts["E0"].running().corrupt.add(name_of(B))
            client_of(s, "E1").lose_replies.append(kind)
            await s.reserve(B)
            done = await publisher(s).publish(B, f"token-{B}")
            assert s.state(B) == ("FAILED_CLEAN" if kind is Cleanup else "PUBLISHED")
            assert isinstance(done, Aborted if kind is Cleanup else Committed)
            assert s.hosts["E1"].running().loads.count(name_of(B)) <= 1

    virtually(story())


@pytest.mark.parametrize("kind", [Begin, End])
def test_an_order_that_never_arrived_is_given_again(kind: type):
    """Nothing came of it, so it is given again, long before the driver's lease ends (rule 16)."""

    async def story() -> None:
        async with stage() as s:
            client_of(s, "E1").lose_orders.append(kind)
            await s.reserve(B)
            lease_ends = s.r.attempts[s.r.unresolved].driver_until
            assert isinstance(await publisher(s).publish(B, f"token-{B}"), Committed)
            assert now_ms() < lease_ends
            assert s.hosts["E1"].running().loads.count(name_of(B)) == 1

    virtually(story())


@pytest.mark.parametrize("fault", list(Fault))
def test_a_lost_commit_reply_aborts_nothing(fault: Fault):
    """B is the default once, whatever happens to the commit and its reply."""

    async def story() -> None:
        async with stage() as s:
            await s.reserve(B)
            s.client.at[Commit] = fault
            done = await publisher(s).publish(B, f"token-{B}")
            assert isinstance(done, Committed)
            assert done.revision == 2
            await s.client.deliver_late()
            assert (s.r.default, s.r.default_revision) == (B, 2)

    virtually(story())


def test_an_outage_delays_a_publication_and_loses_no_answer():
    async def story() -> None:
        async with stage() as s:
            await s.reserve(B)
            task = s.on(publisher(s).publish(B, f"token-{B}"))
            await s.until(lambda: s.hosts["E0"].running().loads.count(name_of(B)) == 1)
            s.client.out = True
            await asyncio.sleep(20)
            assert s.state(B) == "LOADING"
            s.client.out = False
            assert isinstance(await task, Committed)
            assert s.hosts["E0"].running().loads.count(name_of(B)) == 1
            assert "REGISTRY_UNAVAILABLE" in s.codes()

    virtually(story())


def test_a_silent_engine_is_named_when_patience_ends_and_the_slot_stays():
    async def story() -> None:
        async with stage(driver_lease=10**9) as s:
            s.hosts["E1"].running().hung = True
            await s.reserve(B)
            with pytest.raises(EngineSilent) as caught:
                await publisher(s).publish(B, f"token-{B}", patience=5)
            assert "E1 does not say how" in caught.value.message
            assert s.state(B) == "LOADING"

    virtually(story())


def test_without_progress_the_attempt_is_given_up_and_cleaned_when_the_engine_dies():
    async def story() -> None:
        async with stage() as s:
            s.hosts["E1"].running().hung = True
            await s.reserve(B)
            task = s.on(publisher(s).publish(B, f"token-{B}", patience=None))
            await s.until(lambda: s.state(B) == "ABORTED")
            dead = EngineDead(engine="E1", incarnation=1, evidence="exited", now=now_ms())
            assert (await s.tell(dead)).ok
            done = await task
            assert isinstance(done, Aborted)
            assert done.reason.startswith("DEADLINE")
            assert "ENGINE_SILENT" in s.codes()

    virtually(story())


def test_a_version_that_was_never_reserved_is_refused():
    async def story() -> None:
        async with stage() as s:
            with pytest.raises(Refused) as caught:
                await publisher(s).publish(C, "t")
            assert caught.value.code == "UNKNOWN_VERSION"

    virtually(story())


def test_an_executor_that_breaks_stops_nobody_else():
    async def story() -> None:
        async with stage() as s:
            client, broken = client_of(s, "E0"), []

            async def breaks_once(order):
                if not broken:
                    broken.append(order)
                    raise OSError("no route")
                return await EngineClient.carry_out(client, order)

            class Breaking:
                carry_out = staticmethod(breaks_once)

            s.executors["E0"] = Breaking()
            await s.reserve(B)
            assert isinstance(await publisher(s).publish(B, f"token-{B}"), Committed)
            assert "EXECUTOR_FAILED" in s.codes()

    virtually(story())


# -- takeover ---------------------------------------------------------------------------------------------


def reached(s: Stage, phase: str) -> Callable[[], bool]:
    """When the publisher is killed."""

    def targets() -> list[TargetState]:
        return [t.state for _, t in sorted(s.r.attempts[s.r.versions[B].number].targets.items())]

    def loads() -> int:
        return sum(host.running().loads.count(name_of(B)) for host in s.hosts.values())

    return {
        "prepared": lambda: TargetState.PREPARED in targets(),
        "loading": lambda: loads() == 2 and TargetState.READY not in targets(),
        "one ready": lambda: TargetState.READY in targets(),
        "aborted": lambda: s.state(B) == "ABORTED",
        "decided": lambda: s.state(B) not in ("LOADING", "ABORTED"),
    }[phase]


PHASES = ["reserved", "prepared", "loading", "one ready", "decided"]


@pytest.mark.parametrize(
    ("phase", "corrupt"), [*((p, False) for p in PHASES), *((p, True) for p in PHASES), ("aborted", True)]
)
def test_a_dead_publisher_never_leaves_LOADING_for_ever(phase: str, corrupt: bool):
    """Killed in each phase; a standby takes over, ends the attempt, and C can be published."""

    async def story() -> None:
        async with stage() as s:
            if corrupt:
                s.hosts["E1"].running().corrupt.add(name_of(B))
            s.hosts["E1"].running().load_s = 3.0
            await s.reserve(B)
            first = s.on(publisher(s).publish(B, f"token-{B}"))
            if phase != "reserved":
                await s.until(reached(s, phase))
            await s.kill(first)
            s.on(publisher(s).run())
            await s.until(lambda: s.r.unresolved == 0)
            committed = phase == "decided" and not corrupt
            assert s.state(B) == ("PUBLISHED" if committed else "FAILED_CLEAN")
            assert s.r.default == (B if committed else A)
            loads = [host.running().loads.count(name_of(B)) for host in s.hosts.values()]
            assert max(loads) <= 1
            if not committed:
                assert isinstance(await s.publish(C), Committed)

    virtually(story())


def test_a_takeover_commits_what_is_ready_everywhere():
    async def story() -> None:
        async with stage() as s:
            await s.reserve(B)
            s.client.faults.clear()
            seen = s.client.apply

            async def apply(event: Event):
                if isinstance(event, Commit) and event.token == f"token-{B}":
                    await asyncio.Event().wait()  # the driver dies right before its commit
                return await seen(event)

            s.client.apply = apply  # type: ignore[method-assign]
            first = s.on(publisher(s).publish(B, f"token-{B}"))
            s.on(publisher(s).run())
            await s.until(lambda: all(t.state is TargetState.READY for t in s.r.attempts[2].targets.values()))
            await s.kill(first)
            await s.until(lambda: s.r.default == B)
            assert len(s.client.outcomes_of(Takeover)) == 1
            assert "TAKEOVER" in s.codes()

    virtually(story())


def test_a_living_publisher_is_not_taken_over():
    async def story() -> None:
        async with stage() as s:
            s.on(publisher(s).run())
            s.hosts["E0"].running().load_s = 30.0
            await s.reserve(B)
            assert isinstance(await publisher(s).publish(B, f"token-{B}"), Committed)
            assert s.client.outcomes_of(Takeover) == []

    virtually(story())


def test_two_standbys_do_not_disturb_each_other():
    async def story() -> None:
        async with stage() as s:
            for _ in range(2):
                s.on(publisher(s).run())
            await s.reserve(B)
            await s.until(lambda: s.r.unresolved == 0)
            assert s.state(B) == "FAILED_CLEAN"
            await s.publish(C)
            assert s.r.default == C

    virtually(story())


# -- buckets ----------------------------------------------------------------------------------------------


class Transport:
    """A transport that arms, asks for permission and reports, without any bytes: order and authority are real."""

    def __init__(self, s: Stage) -> None:
        self.s = s
        self.sent: list[int] = []
        self.fails = 0

    async def __call__(self, order: SendBucket) -> list[Event]:
        s = self.s
        if self.fails:
            self.fails -= 1
            raise OSError("an engine did not arm")
        asked = AuthorizeBucket(number=order.number, token=f"token-{B}", bucket=order.bucket, now=now_ms())
        assert isinstance(await s.client.apply(asked), Authorized)
        self.sent.append(order.bucket)
        await asyncio.sleep(0.2)
        return [
            BucketDone(
                number=order.number, engine=e, incarnation=1, seq=100 + order.bucket, bucket=order.bucket, now=now_ms()
            )
            for e in order.engines
        ]


class Answering:
    """An engine that takes any bucket: it answers begin and end as a guarded one does, and never looks at bytes."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def carry_out(self, order) -> Event | None:
        about = {"number": order.number, "engine": self.name, "incarnation": 1, "now": now_ms()}
        if isinstance(order, Begin):
            return Prepared(seq=50, **about)
        if isinstance(order, End):
            proof = {"key": B, "digest": digest_of(B), "base_fingerprint": "b" * 64, "probe_ok": True}
            return Ready(seq=200, **proof, **about)
        return TargetUnknown(**about)


def test_buckets_go_to_the_transport_in_order_and_once_each():
    async def story() -> None:
        async with stage() as s:
            s.executors.update({name: Answering(name) for name in s.hosts})
            await s.reserve(B, buckets=4)
            transport = Transport(s)
            done = await publisher(s, send=transport).publish(B, f"token-{B}")
            assert isinstance(done, Committed)
            assert transport.sent == [0, 1, 2, 3]

    virtually(story())


@pytest.mark.parametrize("fault", [Fault.REQUEST_LOST, Fault.REPLY_LOST, Fault.DOUBLED])
def test_an_engines_word_on_a_bucket_is_told_until_the_registry_has_it(fault: Fault):
    """A bucket is never sent again, so its result must not be lost between the transport and the registry."""

    async def story() -> None:
        async with stage() as s:
            s.executors.update({name: Answering(name) for name in s.hosts})
            await s.reserve(B, buckets=2)
            transport = Transport(s)
            s.client.at[BucketDone] = fault
            assert isinstance(await publisher(s, send=transport).publish(B, f"token-{B}"), Committed)
            assert transport.sent == [0, 1]

    virtually(story())


def test_a_bucket_that_was_not_authorised_is_tried_again():
    async def story() -> None:
        async with stage() as s:
            s.executors.update({name: Answering(name) for name in s.hosts})
            await s.reserve(B, buckets=2)
            transport = Transport(s)
            transport.fails = 2
            assert isinstance(await publisher(s, send=transport).publish(B, f"token-{B}"), Committed)
            assert transport.sent == [0, 1]
            assert s.codes().count("EXECUTOR_FAILED") == 2

    virtually(story())


def test_without_a_transport_an_attempt_with_buckets_is_given_up():
    async def story() -> None:
        async with stage() as s:
            await s.reserve(B, buckets=1)
            done = await publisher(s).publish(B, f"token-{B}", patience=None)
            assert isinstance(done, Aborted)
            assert "NO_TRANSPORT" in s.codes()

    virtually(story())

"""The hooks in a stand-in for Relax's session shard, over a journaled registry and engines that run the real agent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lorafsm.events import BindFirst, CloseAndRelease
from lorafsm_asyncio import RegistryUnavailable, ask_engines
from lorafsm_relax import VersionedShard
from tests.adapters.asyncio_services.fault_injection import Fault
from tests.adapters.asyncio_services.stage import EPOCH, A, B, Stage, name_of, stage
from tests.adapters.asyncio_services.virtual_time import now_ms, virtually
from tests.adapters.relax.stand_ins import AgenticSessionShard, ConnectError, Reply, SGLangBackendAdapter, Wire

DONE = {"output_ids": [7], "meta_info": {"finish_reason": {"type": "stop"}}}
ABORTED = {"output_ids": [], "meta_info": {"finish_reason": {"type": "abort"}}}


def from_engine(s: Stage, engine: str = "E0", *, tokens_s: float = 1.0):
    """The router: one engine, whose agent admits or refuses."""

    async def answer(payload: dict[str, Any]) -> Reply:
        process = s.hosts[engine].running()
        admitted = process.admit(payload["rid"], payload["lora_path"])
        if not admitted.ok:
            return Reply(400, {"error": {"message": str(admitted)}})
        await asyncio.sleep(tokens_s)
        process.end(payload["rid"])
        return Reply(200, DONE)

    return answer


def lora_of(s: Stage) -> VersionedShard:
    ask = ask_engines(lambda: [s.executors[name] for name in sorted(s.executors)])
    return VersionedShard(
        lambda: s.client, EPOCH, "agentic_session_shard_0", clock=now_ms, notify=s.notices.append, ask=ask
    )


def shard_of(s: Stage, answer: Any = None, **more: Any) -> tuple[AgenticSessionShard, Wire]:
    wire = Wire(answer or from_engine(s))
    return AgenticSessionShard(SGLangBackendAdapter(wire), lora_of(s), **more), wire


async def turn(shard: AgenticSessionShard, session: Any, request_id: str) -> Any:
    ir = shard.start_ir(session, request_id)
    await ir.runner_task
    return ir


def test_a_session_generates_under_its_version_over_every_turn():
    async def story() -> None:
        async with stage() as s:
            shard, wire = shard_of(s)
            old = shard.start_session("s-old")
            assert (await turn(shard, old, "q1")).result == DONE
            await s.publish(B)
            new = shard.start_session("s-new")
            for number in range(3):
                assert (await turn(shard, old, f"q{number + 2}")).result == DONE
                assert (await turn(shard, new, f"n{number}")).result == DONE
            paths = [(p["rid"][0], p["lora_path"]) for p in wire.payloads]
            assert set(paths) == {("q", name_of(A)), ("n", name_of(B))}
            assert len(s.client.outcomes_of(BindFirst)) == 2
            await shard._lora.stop()

    virtually(story())


def test_binding_before_admission_pins_no_old_version():
    """A session that waits for its permit while B is committed gets B."""

    async def story() -> None:
        async with stage() as s:
            shard, _ = shard_of(s, from_engine(s, tokens_s=60.0), permits=1)
            first, waits = shard.start_session("s1"), shard.start_session("s2")
            busy = shard.start_ir(first, "a1")
            queued = shard.start_ir(waits, "b1")
            await asyncio.sleep(1)
            await s.publish(B)
            assert (s.refs(A), s.refs(B)) == (1, 0)
            await asyncio.gather(busy.runner_task, queued.runner_task)
            assert shard._lora.binding("s2").key == B
            await shard._lora.stop()

    virtually(story())


def test_a_versioned_request_is_sent_once_whatever_happens():
    async def story() -> None:
        async with stage() as s:
            shard, wire = shard_of(s, lambda payload: Reply(503, None))
            ir = await turn(shard, shard.start_session("s1"), "q1")
            assert len(wire.payloads) == 1, "Relax's own helper sends seven times"
            assert (type(ir.error).__name__, ir.error.code) == ("GenerateFailed", "UNKNOWN")
            await shard._lora.stop()

    virtually(story())


def test_a_retry_after_a_doubtful_end_waits_for_the_engines_word():
    async def story() -> None:
        async with stage() as s:
            lost = {"q1:0"}

            async def answer(payload: dict[str, Any]) -> Reply:
                if payload["rid"] in lost:
                    s.hosts["E0"].running().admit(payload["rid"], payload["lora_path"])
                    raise OSError("connection reset")
                return await from_engine(s)(payload)

            shard, wire = shard_of(s, answer)
            session = shard.start_session("s1")
            assert (await turn(shard, session, "q1")).error.code == "UNKNOWN"
            retry = await turn(shard, session, "q2")
            assert retry.error.code == "ATTEMPT_IN_FLIGHT", "the engine says that the first one runs"
            s.hosts["E0"].running().end("q1:0")
            again = await turn(shard, session, "q3")
            assert again.result == DONE
            assert [p["rid"] for p in wire.payloads] == ["q1:0", "q3:0"]
            await shard._lora.stop()

    virtually(story())


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (Reply(400, {"error": {"message": "VERSION_MISSING: not served here"}}), "VERSION_MISSING"),
        (Reply(400, {"error": {"message": "Requested token count exceeds the maximum context length"}}), "REFUSED"),
        (ConnectError("refused"), "REFUSED"),
        (OSError("reset"), "UNKNOWN"),
        (Reply(200, "<html>"), "UNKNOWN"),
    ],
)
def test_how_a_call_ends_is_told_by_its_code(reply: Any, code: str):
    async def story() -> None:
        async with stage() as s:

            async def answer(payload: dict[str, Any]) -> Reply:
                if isinstance(reply, Exception):
                    raise reply
                return reply

            shard, _ = shard_of(s, answer)
            ir = await turn(shard, shard.start_session("s1"), "q1")
            assert ir.error.code == code
            if code == "REFUSED" and isinstance(reply, Reply):
                assert "maximum context length" in ir.error.message, "Relax maps this one to its own error"
            await shard._lora.stop()

    virtually(story())


def test_a_temporary_abort_and_resume_keep_the_version_and_the_ref():
    async def story() -> None:
        async with stage() as s:
            ends = [Reply(200, ABORTED), Reply(200, DONE)]
            shard, wire = shard_of(s, lambda payload: ends.pop(0))
            session = shard.start_session("s1")
            ir = await turn(shard, session, "q1")
            assert ir.abort_count == 1
            await s.publish(B)
            assert s.refs(A) == 1
            shard.run_again(session, ir)
            await ir.runner_task
            assert [(p["rid"], p["lora_path"]) for p in wire.payloads] == [("q1:0", name_of(A)), ("q1:1", name_of(A))]
            await shard._lora.stop()

    virtually(story())


def test_finish_closes_in_the_order_of_the_rfc_and_releases_once():
    async def story() -> None:
        async with stage() as s:
            shard, wire = shard_of(s, from_engine(s, tokens_s=5.0))
            session = shard.start_session("s1")
            ir = shard.start_ir(session, "q1")
            await asyncio.sleep(1)
            ends = [asyncio.create_task(shard._finish_session(session)) for _ in range(3)]
            await asyncio.sleep(1)
            late = await turn(shard, session, "q2")
            assert (late.result, len(wire.payloads)) == (None, 1)
            assert s.refs(A) == 1, "held while a runner is being cleaned up"
            await asyncio.gather(*ends)
            assert shard.steps == ["begin_close", "aborted", "runners done", "released", "record dropped"]
            assert wire.aborted == ["q1:0"]
            assert ir.result == DONE
            assert s.refs(A) == 0
            assert len(s.client.outcomes_of(CloseAndRelease)) == 1
            with pytest.raises(Exception, match="SESSION_CLOSED"):
                await shard._lora.ensure("s1")
            await shard._lora.stop()

    virtually(story())


def test_a_session_that_never_generated_closes_without_a_call():
    async def story() -> None:
        async with stage() as s:
            shard, _ = shard_of(s)
            await shard._finish_session(shard.start_session("s1"))
            assert s.client.applied == []
            assert shard.samples == {"s1": {}}

    virtually(story())


def test_a_registry_that_is_out_stops_no_finish_and_the_ref_returns_later():
    async def story() -> None:
        async with stage() as s:
            shard, _ = shard_of(s)
            session = shard.start_session("s1")
            await turn(shard, session, "q1")
            s.client.out = True
            began = now_ms()
            await shard._finish_session(session)
            assert now_ms() - began <= 4_000, "two calls, each bounded"
            assert shard._session_records == {}
            s.client.out = False
            await s.until(lambda: s.refs(A) == 0, within_s=12)
            await shard._lora.stop()

    virtually(story())


def test_a_generation_during_an_outage_is_a_typed_error_and_the_next_one_goes_on():
    async def story() -> None:
        async with stage() as s:
            shard, _ = shard_of(s)
            session = shard.start_session("s1")
            s.client.out = True
            ir = await turn(shard, session, "q1")
            assert isinstance(ir.error, RegistryUnavailable)
            s.client.out = False
            assert (await turn(shard, session, "q2")).result == DONE
            await shard._lora.stop()

    virtually(story())


def test_cancelled_runners_share_one_binding():
    async def story() -> None:
        async with stage() as s:
            shard, _ = shard_of(s)
            await shard._lora.binder()
            session = shard.start_session("s1")
            s.client.faults.append(Fault.REPLY_LATE)
            irs = [shard.start_ir(session, f"q{n}") for n in range(3)]
            await asyncio.sleep(0.1)
            irs[0].runner_task.cancel()
            await asyncio.gather(*(ir.runner_task for ir in irs))
            assert [ir.result for ir in irs] == [None, DONE, DONE]
            assert len(s.client.outcomes_of(BindFirst)) == 1
            assert s.refs(A) == 1
            await shard._lora.stop()

    virtually(story())


def test_before_the_first_version_a_generation_says_so():
    async def story() -> None:
        async with stage(published=None) as s:
            shard, wire = shard_of(s)
            ir = await turn(shard, shard.start_session("s1"), "q1")
            assert (ir.error.code, wire.payloads) == ("NO_PUBLISHED_VERSION", [])
            await shard._lora.stop()

    virtually(story())


def test_samples_carry_version_digest_and_name():
    async def story() -> None:
        async with stage() as s:
            shard, _ = shard_of(s)
            session = shard.start_session("s1")
            await turn(shard, session, "q1")
            await shard._finish_session(session)
            binding = s.r.versions[A]
            assert shard.samples["s1"] == {
                "lora_version": "e1-1",
                "lora_digest": binding.digest,
                "lora_name": binding.lora_name,
            }
            await shard._lora.stop()

    virtually(story())


def test_a_reopened_session_id_is_refused_while_it_is_open():
    async def story() -> None:
        async with stage() as s:
            shard, _ = shard_of(s)
            shard.start_session("s1")
            with pytest.raises(Exception, match="OPERATION_CONFLICT"):
                shard.start_session("s1")

    virtually(story())


def test_a_start_that_failed_is_tried_again():
    async def story() -> None:
        async with stage() as s:
            s.client.out = True
            shard, _ = shard_of(s)
            session = shard.start_session("s1")
            assert isinstance((await turn(shard, session, "q1")).error, RegistryUnavailable)
            s.client.out = False
            assert (await turn(shard, session, "q2")).result == DONE
            assert len(s.r.owners) == 1
            await shard._lora.stop()
            assert s.refs(A) == 0

    virtually(story())


def test_an_asynchronous_connect_will_do_as_well():
    async def story() -> None:
        async with stage() as s:

            async def connect():
                return s.client

            lora = VersionedShard(connect, EPOCH, "shard-1", clock=now_ms)
            lora.open("s1")
            assert (await lora.ensure("s1")).key == A
            await lora.stop()
            await lora.stop()

    virtually(story())


def test_thirty_sessions_over_a_publication_all_end_well():
    async def story() -> None:
        async with stage() as s:
            shard, wire = shard_of(s, permits=8)

            async def session(number: int) -> None:
                record = shard.start_session(f"s{number}")
                for turn_number in range(3):
                    ir = await turn(shard, record, f"{number:02}-{turn_number}")
                    assert ir.result == DONE
                await shard._finish_session(record)

            sessions = [asyncio.create_task(session(number)) for number in range(30)]
            await asyncio.sleep(1.5)
            await s.publish(B)
            await asyncio.gather(*sessions)
            used = {p["lora_path"] for p in wire.payloads}
            assert used == {name_of(A), name_of(B)}
            by_session: dict[str, set[str]] = {}
            for p in wire.payloads:
                by_session.setdefault(p["rid"][:2], set()).add(p["lora_path"])
            assert all(len(paths) == 1 for paths in by_session.values())
            assert (s.refs(A), s.refs(B)) == (0, 0)
            await shard._lora.stop()

    virtually(story())

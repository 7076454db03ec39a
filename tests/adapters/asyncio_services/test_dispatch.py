"""Dispatch (RFC 4.2, rule 10): one attempt at a time, a classified single shot, RETRY_UNSAFE until settled."""

from __future__ import annotations

import asyncio

import pytest

from lorafsm_asyncio import Call, GenerateFailed, Refused, SessionBinder, Verdict, ask_engines, classify
from lorafsm_asyncio.generate import message_in
from tests.adapters.asyncio_services.stage import A, Stage, name_of, stage
from tests.adapters.asyncio_services.virtual_time import virtually

ANSWER = Call(200, {"meta_info": {"finish_reason": {"type": "stop"}}, "output_ids": [7]})


def said(message: str, status: int = 400) -> Call:
    return Call(status, {"error": {"message": message, "code": status}})


@pytest.mark.parametrize(
    ("call", "verdict"),
    [
        (ANSWER, "DONE"),
        (Call(200, {"meta_info": {"finish_reason": {"type": "abort"}}}), "DONE"),
        (said("VERSION_MISSING: exactly this version is not served here"), "VERSION_MISSING"),
        (said("VERSION_CLOSED: closed on this incarnation"), "VERSION_MISSING"),
        (Call(400, {"error": "VERSION_CLOSED: gone"}), "VERSION_MISSING"),
        (Call(400, {"object": "error", "message": "VERSION_MISSING: no"}), "VERSION_MISSING"),
        (said("SEVERAL_SAMPLES: send n requests"), "REFUSED"),
        (said("the prompt is longer than the context"), "REFUSED"),
        (said("mentions VERSION_MISSING somewhere"), "REFUSED"),
        (said("UNAUTHORIZED", 401), "REFUSED"),
        (said("RID_SEALED: take a new rid"), "REFUSED"),
        (said("DUPLICATE_RID: request r1 is in flight"), "UNKNOWN"),
        (said("too slow", 408), "UNKNOWN"),
        (said("too early", 425), "UNKNOWN"),
        (said("no worker", 503), "UNKNOWN"),
        (said("crashed", 500), "UNKNOWN"),
        (Call(502), "UNKNOWN"),
        (Call(302), "UNKNOWN"),
        (Call(0), "UNKNOWN"),
        (Call(0, sent=False), "REFUSED"),
        (Call(200, "no JSON"), "UNKNOWN"),
        (Call(200, {"output_ids": []}), "UNKNOWN"),
        (Call(200, None), "UNKNOWN"),
    ],
)
def test_what_one_call_proves(call: Call, verdict: str):
    assert classify(call) == verdict


def test_the_engines_words_are_found_wherever_they_stand():
    assert [message_in(b) for b in ({"error": {"detail": "x"}}, {"message": "y"}, "z", None, {"error": None})] == [
        "x",
        "y",
        "z",
        "",
        "",
    ]


async def bound(s: Stage, **more):
    binder = await s.binder(**more)
    session = binder.open()
    return binder, session


async def send(binder: SessionBinder, session, rid: str, call: Call) -> str:
    """One attempt; the code that the agent layer sees."""
    try:
        async with binder.attempt(session, rid) as attempt:
            assert attempt.lora_path == name_of(A)
            attempt.heard(call)
        return "OK"
    except (Refused, GenerateFailed) as error:
        return error.code


@pytest.mark.parametrize(
    ("call", "code", "next_code"),
    [
        (ANSWER, "OK", "OK"),
        (said("VERSION_MISSING: no"), "VERSION_MISSING", "OK"),
        (said("prompt too long"), "REFUSED", "OK"),
        (Call(0), "UNKNOWN", "RETRY_UNSAFE"),
        (said("crashed", 500), "UNKNOWN", "RETRY_UNSAFE"),
    ],
)
def test_after_an_unknown_admission_nothing_is_sent_before_it_is_settled(call: Call, code: str, next_code: str):
    async def story() -> None:
        async with stage() as s:
            binder, session = await bound(s)
            assert await send(binder, session, "r:1", call) == code
            assert await send(binder, session, "r:2", ANSWER) == next_code

    virtually(story())


@pytest.mark.parametrize("leaves", ["an exception", "a cancellation", "no word"])
def test_an_attempt_that_is_left_without_a_word_is_in_doubt(leaves: str):
    async def story() -> None:
        async with stage() as s:
            binder, session = await bound(s)

            async def go() -> None:
                async with binder.attempt(session, "r:1"):
                    if leaves == "an exception":
                        raise OSError("connection reset")
                    if leaves == "a cancellation":
                        await asyncio.Event().wait()

            task = asyncio.create_task(go())
            await asyncio.sleep(0.1)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert await send(binder, session, "r:2", ANSWER) == "RETRY_UNSAFE"

    virtually(story())


def test_requests_of_one_session_take_turns():
    async def story() -> None:
        async with stage() as s:
            binder, session = await bound(s)
            running: list[str] = []

            async def go(rid: str) -> None:
                async with binder.attempt(session, rid) as attempt:
                    assert running == []
                    running.append(rid)
                    attempt.admitted()
                    await asyncio.sleep(1)
                    running.remove(rid)
                    attempt.heard(ANSWER)

            await asyncio.gather(*(go(f"r:{n}") for n in range(5)))
            assert s.refs(A) == 1

    virtually(story())


def test_sessions_do_not_wait_for_each_other():
    async def story() -> None:
        async with stage() as s:
            binder = await s.binder()
            inside: list[int] = []
            together = asyncio.Event()

            async def go(number: int) -> None:
                async with binder.attempt(binder.open(), f"r{number}:0") as attempt:
                    inside.append(number)
                    if len(inside) == 8:
                        together.set()
                    await together.wait()
                    attempt.heard(ANSWER)

            await asyncio.gather(*(go(n) for n in range(8)))
            assert len(inside) == 8

    virtually(story())


def test_a_rid_is_never_used_twice():
    async def story() -> None:
        async with stage() as s:
            binder, session = await bound(s)
            assert await send(binder, session, "r:1", said("prompt too long")) == "REFUSED"
            assert await send(binder, session, "r:1", ANSWER) == "OPERATION_CONFLICT"
            assert await send(binder, session, "not a rid", ANSWER) == "BAD_INPUT"
            assert await send(binder, session, "r:2", ANSWER) == "OK"

    virtually(story())


def with_engines(s: Stage):
    return ask_engines(lambda: [s.executors[name] for name in sorted(s.executors)])


def test_a_settled_absent_request_frees_the_session_and_its_late_original_is_refused():
    async def story() -> None:
        async with stage() as s:
            binder, session = await bound(s, ask=with_engines(s))
            assert await send(binder, session, "r:1", Call(0)) == "UNKNOWN"
            assert await binder.settle(session) == "ABSENT"
            assert await send(binder, session, "r:2", ANSWER) == "OK"
            late = [host.running().admit("r:1", name_of(A)) for host in s.hosts.values()]
            assert {str(answer.code) for answer in late} == {"RID_SEALED"}

    virtually(story())


def test_a_request_that_runs_blocks_until_it_has_ended():
    async def story() -> None:
        async with stage() as s:
            binder, session = await bound(s, ask=with_engines(s))
            assert await send(binder, session, "r:1", Call(0)) == "UNKNOWN"
            engine = s.hosts["E1"].running()
            engine.admit("r:1", name_of(A))
            assert await binder.settle(session) == "RUNNING"
            assert await send(binder, session, "r:2", ANSWER) == "ATTEMPT_IN_FLIGHT"
            engine.end("r:1")
            assert await binder.settle(session) == "ABSENT"
            assert await send(binder, session, "r:3", ANSWER) == "OK"

    virtually(story())


def test_a_silent_engine_keeps_the_request_in_doubt_and_its_death_settles_it():
    async def story() -> None:
        async with stage() as s:
            binder, session = await bound(s, ask=with_engines(s))
            assert await send(binder, session, "r:1", Call(0)) == "UNKNOWN"
            s.hosts["E0"].running().hung = True
            assert await binder.settle(session) is None
            assert await send(binder, session, "r:2", ANSWER) == "RETRY_UNSAFE"
            del s.executors["E0"]  # as the watcher does when the process is proved to have ended
            assert await binder.settle(session) == "ABSENT"

    virtually(story())


def test_without_anybody_to_ask_nothing_is_settled():
    async def story() -> None:
        async with stage() as s:
            binder, session = await bound(s)
            assert await binder.settle(session) == "TERMINAL", "nothing is in doubt"
            assert await send(binder, session, "r:1", Call(0)) == "UNKNOWN"
            assert await binder.settle(session) is None
            assert await ask_engines(lambda: ())("r:1", A) is None

    virtually(story())


def test_an_attempt_that_somebody_waits_for_is_not_settled():
    async def story() -> None:
        async with stage() as s:
            binder, session = await bound(s, ask=with_engines(s))
            async with binder.attempt(session, "r:1") as attempt:
                with pytest.raises(Refused) as caught:
                    await binder.settle(session)
                assert caught.value.code == "ATTEMPT_IN_FLIGHT"
                attempt.heard(ANSWER)

    virtually(story())


def test_begin_close_names_what_to_abort_and_stops_new_dispatch():
    async def story() -> None:
        async with stage() as s:
            binder, session = await bound(s, ask=with_engines(s))
            async with binder.attempt(session, "r:1") as attempt:
                assert await binder.begin_close(session) == ("r:1",)
                with pytest.raises(Refused) as caught:
                    binder.may_dispatch(session)
                assert caught.value.code == "SESSION_CLOSED"
                assert s.refs(A) == 1, "the ref is held until it is released"
                attempt.heard(ANSWER)
            assert await send(binder, session, "r:2", ANSWER) == "SESSION_CLOSED"

    virtually(story())


def test_a_closed_session_with_a_request_in_doubt_is_remembered_until_that_is_settled():
    async def story() -> None:
        async with stage() as s:
            binder, session = await bound(s, ask=with_engines(s))
            assert await send(binder, session, "r:1", Call(0)) == "UNKNOWN"
            engine = s.hosts["E0"].running()
            engine.admit("r:1", name_of(A))
            assert (await binder.close_and_release(session)).released == A
            await binder.renew()
            assert binder.live == 1
            engine.end("r:1")
            await binder.renew()
            assert (binder.live, s.refs(A)) == (0, 0)

    virtually(story())


def test_the_verdicts_cross_processes():
    import pickle

    error = pickle.loads(pickle.dumps(GenerateFailed(Verdict.UNKNOWN, "status 500")))
    assert (error.code, error.verdict, error.message) == ("UNKNOWN", Verdict.UNKNOWN, "status 500")

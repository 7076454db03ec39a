"""What an engine's answer proves, by fault injection: the transport is replaced, nothing listens.

The same port against real engines is in tests/engines.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from contextlib import aclosing

import httpx
import pytest

from lorafsm_sglang import (
    OK,
    AccessLogError,
    EnginePort,
    Logprobs,
    Refused,
    RequestFieldError,
    Sampling,
    Unknown,
    UnknownKind,
    control_calls,
    log_size,
)
from lorafsm_sglang.generation import Arrival

RID = "0123456789abcdef" * 2
META = {
    "id": RID,
    "finish_reason": {"type": "length", "length": 2},
    "prompt_tokens": 3,
    "completion_tokens": 2,
    "cached_tokens": 1,
}


def port_that_answers(answer, **options) -> tuple[EnginePort, list[httpx.Request]]:
    """A port whose engine is the function ``answer``, and the list of what it was sent."""
    sent: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        if isinstance(answer, Exception):
            raise answer
        return answer(request) if callable(answer) else answer

    return EnginePort("http://engine", transport=httpx.MockTransport(handle), **options), sent


LOADED = {"success": True, "error_message": "", "loaded_adapters": {"A": "/a"}}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (httpx.Response(200, json=LOADED), OK),
        (httpx.Response(400, json={**LOADED, "success": False, "error_message": "already loaded"}), Refused),
        (httpx.Response(200, json={**LOADED, "success": False, "error_message": "no"}), Refused),
        (httpx.Response(401, json={"error": "Unauthorized"}), Refused),
        (httpx.Response(422, text="not json"), Refused),
        (httpx.Response(408), UnknownKind.SERVER_ERROR),
        (httpx.Response(302), UnknownKind.SERVER_ERROR),
        (httpx.Response(500, text="Internal Server Error"), UnknownKind.SERVER_ERROR),
        (httpx.Response(503), UnknownKind.SERVER_ERROR),
        (httpx.Response(200, text="<html>"), UnknownKind.UNPARSABLE),
        (httpx.Response(200, json={"loaded_adapters": {}}), UnknownKind.UNPARSABLE),
        (httpx.Response(200, json=[]), UnknownKind.UNPARSABLE),
        (httpx.ConnectError("refused"), UnknownKind.NOT_CONNECTED),
        (httpx.ConnectTimeout("slow"), UnknownKind.NOT_CONNECTED),
        (httpx.ReadTimeout("slow"), UnknownKind.TIMEOUT),
        (httpx.ReadError("reset"), UnknownKind.CONNECTION_LOST),
        (httpx.RemoteProtocolError("disconnected"), UnknownKind.CONNECTION_LOST),
    ],
    ids=str,
)
async def test_every_answer_is_one_of_three_and_is_asked_for_once(answer, expected):
    port, sent = port_that_answers(answer)
    async with port:
        reply = await port.load("A", "/a")
    if isinstance(expected, UnknownKind):
        assert isinstance(reply, Unknown)
        assert reply.kind is expected
        assert reply.reason
    else:
        assert isinstance(reply, expected)
    assert len(sent) == 1, "nothing is retried"


async def test_a_refusal_carries_the_engines_words():
    port, _ = port_that_answers(httpx.Response(400, json={"error": {"message": "never been loaded: A"}}))
    async with port:
        assert await port.score((1,), "A", RID) == Refused(400, "never been loaded: A")


async def test_what_generate_sends():
    port, sent = port_that_answers(httpx.Response(200, json={"output_ids": [7, 8], "meta_info": META}))
    async with port:
        reply = await port.generate((1, 2, 3), "A", Sampling(max_new_tokens=2), RID, logprobs=Logprobs((5,)))
        await port.generate((1, 2, 3), None, Sampling(max_new_tokens=2), RID)
    assert isinstance(reply, OK)
    assert (reply.data.output_ids, reply.data.cached_tokens, reply.data.finish) == ((7, 8), 1, "length")
    body, base = (json.loads(request.content) for request in sent)
    assert body["lora_path"] == "A"
    assert base["lora_path"] is None
    assert (body["rid"], body["return_logprob"], body["token_ids_logprob"]) == (RID, True, [5])
    for forbidden in ("lora_id", "extra_key", "n"):
        assert forbidden not in body
        assert forbidden not in body["sampling_params"]


async def test_the_version_must_be_said():
    port, _ = port_that_answers(httpx.Response(200))
    async with port:
        with pytest.raises(TypeError, match="lora_path"):
            await port.generate((1,), sampling=Sampling(max_new_tokens=1), rid=RID)


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("lora_name", lambda port: port.load("../../etc", "/a")),
        ("lora_name", lambda port: port.load("base:A", "/a")),
        ("lora_name", lambda port: port.unload("")),
        ("lora_name", lambda port: port.probe("a/b", RID)),
        ("lora_name", lambda port: port.score((1,), "a b", RID)),
        ("lora_path", lambda port: port.load("A", "relative/folder")),
        ("lora_path", lambda port: port.load("A", "/a/../b")),
        ("rid", lambda port: port.abort("")),
        ("rid", lambda port: port.abort("abc")),
        ("rid", lambda port: port.score((1,), None, "x" * 32)),
        ("input_ids", lambda port: port.score((), None, RID)),
        ("input_ids", lambda port: port.score((1, 512), None, RID)),
        ("input_ids", lambda port: port.score((-1,), None, RID)),
    ],
)
async def test_bad_fields_are_named_and_never_sent(field, call):
    port, sent = port_that_answers(httpx.Response(200, json=LOADED), vocab_size=512)
    async with port:
        with pytest.raises(RequestFieldError) as caught:
            await call(port)
        assert port.in_flight(None) == 0
    assert caught.value.field == field
    assert sent == []


def test_zero_tokens_are_refused():
    with pytest.raises(RequestFieldError, match="max_new_tokens"):
        Sampling(max_new_tokens=0)


async def test_a_managed_name_is_a_valid_name():
    port, sent = port_that_answers(httpx.Response(200, json=LOADED))
    async with port:
        assert isinstance(await port.load("relax_policy_lora@3-17-0a1b2c3d4e5f", "/a"), OK)
    assert json.loads(sent[0].content)["pinned"] is True


class Gate(httpx.AsyncBaseTransport):
    """An engine that answers when it is told to, and counts the requests it has begun."""

    def __init__(self, response: httpx.Response | Exception) -> None:
        self.response = response
        self.open = asyncio.Event()
        self.begun = asyncio.Semaphore(0)
        self.cancelled = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.begun.release()
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if isinstance(self.response, Exception):
            raise self.response
        return self.response


@pytest.mark.parametrize(
    "response",
    [
        httpx.Response(200, json={"output_ids": [7, 8], "meta_info": META}),
        httpx.Response(400, json={"error": "no"}),
        httpx.Response(503),
        httpx.Response(200, text="broken"),
        httpx.ReadError("reset"),
    ],
    ids=["finished", "400", "503", "unparsable", "disconnect"],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_in_flight_counts_once_up_and_once_down(response, stream):
    gate = Gate(response)
    async with EnginePort("http://engine", transport=gate) as port:
        sampling = Sampling(max_new_tokens=2)
        calls = [asyncio.create_task(port.generate((1,), "A", sampling, RID, stream=stream)) for _ in range(3)]
        for _ in calls:
            await gate.begun.acquire()
        assert (port.in_flight("A"), port.in_flight("B"), port.in_flight(None)) == (3, 0, 0)
        calls[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await calls[0]
        assert port.in_flight("A") == 2
        gate.open.set()
        await asyncio.gather(*calls[1:])
        assert port.in_flight("A") == 0


@pytest.mark.parametrize("how", ["time-out", "cancelled"])
async def test_a_control_call_is_never_cancelled(how):
    gate = Gate(httpx.Response(200, json=LOADED))
    async with EnginePort("http://engine", transport=gate) as port:
        if how == "time-out":
            reply = await port.unload("A", timeout_s=0.01)
            assert isinstance(reply, Unknown)
            assert reply.kind is UnknownKind.TIMEOUT
        else:
            waiter = asyncio.create_task(port.unload("A"))
            await gate.begun.acquire()
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
        assert port.control_calls_open() == ("unload A",)
        assert gate.cancelled == 0
        gate.open.set()
    assert port.control_calls_open() == ()
    assert gate.cancelled == 0


def events(*chunks: object, done: bool = True) -> httpx.Response:
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks] + ["data: [DONE]\n\n"] * done
    return httpx.Response(200, text="".join(lines))


def chunk(tokens: list[int], total: int, finish: str | None = None, **more: object) -> dict[str, object]:
    reason = {"type": finish} if finish else None
    return {"output_ids": tokens, "meta_info": {**META, "completion_tokens": total, "finish_reason": reason, **more}}


@pytest.mark.parametrize("last", [[7, 8], [8]], ids=["cumulative", "incremental"])
async def test_a_stream_gives_arrivals_and_one_reply(last):
    port, _ = port_that_answers(events(chunk([7], 1), chunk(last, 2, "length")))
    async with port, aclosing(port.stream((1,), "A", Sampling(max_new_tokens=2), RID)) as stream:
        first, second, reply = [item async for item in stream]
    assert isinstance(first, Arrival)
    assert isinstance(second, Arrival)
    assert (first.token_ids, second.token_ids) == ((7,), (8,))
    assert first.at <= second.at
    assert isinstance(reply, OK)
    assert reply.data.output_ids == (7, 8)
    assert reply.data.arrivals == (first, second)


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (events(chunk([7], 1), done=False), UnknownKind.CONNECTION_LOST),
        (events(chunk([7], 1)), UnknownKind.CONNECTION_LOST),
        (events({"error": {"message": "gone", "code": 500}}), UnknownKind.SERVER_ERROR),
        (events({"output_ids": [1]}), UnknownKind.UNPARSABLE),
        (events(chunk([7], 3)), UnknownKind.UNPARSABLE),
        (httpx.Response(200, text="data: {broken\n\n"), UnknownKind.UNPARSABLE),
        (httpx.Response(503), UnknownKind.SERVER_ERROR),
        (events({"error": {"message": "never been loaded", "code": 400}}), Refused(400, "never been loaded")),
        (httpx.Response(400, json={"error": {"message": "no"}}), Refused(400, "no")),
    ],
    ids=["cut", "no-finish", "error-500", "no-meta", "tokens-missing", "bad-json", "503", "error-400", "400"],
)
async def test_a_broken_stream_is_never_ok(response, expected):
    port, sent = port_that_answers(response)
    async with port:
        reply = await port.generate((1,), "A", Sampling(max_new_tokens=2), RID, stream=True)
        assert port.in_flight("A") == 0
    if isinstance(expected, UnknownKind):
        assert isinstance(reply, Unknown)
        assert reply.kind is expected
    else:
        assert reply == expected
    assert len(sent) == 1


async def test_the_admin_key_is_sent_and_never_shown():
    key = uuid.uuid4().hex
    port, sent = port_that_answers(httpx.Response(401, json={"error": "Unauthorized"}), admin_api_key=key)
    async with port:
        reply = await port.unload("A")
    assert sent[0].headers["Authorization"] == f"Bearer {key}"
    assert key not in repr(port) + repr(reply)


LOG = """\
[2026-01-01 10:00:00] server_args=ServerArgs(model_path='/m')
[2026-01-01 10:00:01] INFO:     127.0.0.1:5000 - "POST /generate HTTP/1.1" 200 OK
[2026-01-01 10:00:01] Prefill batch, #new-seq: 1, #new-token: 1
[2026-01-01 10:00:02] INFO:     127.0.0.1:5001 - "POST /load_lora_adapter HTTP/1.1" 400 Bad Request
[2026-01-01 10:00:03] INFO:     127.0.0.1:5001 - "POST /pause_generation HTTP/1.1" 200 OK
[2026-01-01 10:00:03] INFO:     127.0.0.1:5001 - "POST /abort_request?rid=00ff HTTP/1.1" 200 OK
[2026-01-01 10:00:03] INFO:     127.0.0.1:5001 - "POST /abort_request?rid= HTTP/1.1" 200 OK
[2026-01-01 10:00:04] INFO:     127.0.0.1:5001 - "GET /flush_cache HTTP/1.1" 400 Bad Request
a client wrote "POST /pause_generation HTTP/1.1" into a message \xff
"""


def test_control_calls_are_counted_with_any_status(tmp_path):
    log = tmp_path / "engine.log"
    log.write_bytes(LOG.encode("latin-1"))
    counts = control_calls(log)
    assert {name: count for name, count in counts.items() if count} == {
        "generate": 1,
        "load_lora_adapter": 1,
        "pause_generation": 1,
        "abort_request": 2,
        "abort_request_without_rid": 1,
        "flush_cache": 1,
    }
    assert counts["continue_generation"] == counts["unload_lora_adapter"] == 0
    mark = log_size(log)
    with log.open("a") as more:
        more.write('[2026-01-01 10:00:05] INFO:     127.0.0.1:5001 - "POST /continue_generation HTTP/1.1" 200 OK\n')
    assert sum(control_calls(log, since=mark).values()) == 1


def test_a_log_without_access_lines_proves_nothing(tmp_path):
    log = tmp_path / "engine.log"
    log.write_text("[2026-01-01 10:00:00] The server is fired up and ready to roll!\n")
    with pytest.raises(AccessLogError, match="no access line"):
        control_calls(log)

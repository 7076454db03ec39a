"""Whole engines: what their logs prove, and how one dies and comes back.  Last, as it kills the second one."""

from __future__ import annotations

import os
import socket
from contextlib import aclosing

import httpx
import psutil
import pytest

from lorafsm_sglang import OK, EnginePort, Sampling, Unknown, UnknownKind, control_calls, log_size, wait_all_ready
from lorafsm_sglang.generation import Arrival
from tests.engines.conftest import DEADLINE_S, wait_until

pytestmark = pytest.mark.engines


async def test_the_log_counts_a_deliberate_pause(throw_away, http, new_rid):
    """The count that the demo shows as zero is able to be more than zero."""
    before = control_calls(throw_away.log_path)
    assert (before["pause_generation"], before["flush_cache"]) == (0, 0)
    mark = log_size(throw_away.log_path)
    client = http(throw_away)
    assert client.post("/pause_generation", json={"mode": "abort"}).status_code == httpx.codes.OK
    assert client.post("/continue_generation", json={}).status_code == httpx.codes.OK
    assert client.post("/flush_cache").status_code in (httpx.codes.OK, httpx.codes.BAD_REQUEST)
    assert client.post("/abort_request", json={"abort_all": True}).status_code == httpx.codes.OK
    async with EnginePort(throw_away.url) as port:
        assert await port.abort(new_rid()) == OK(None)
        assert isinstance(await port.score((4, 5), None, new_rid()), OK)

    expected = {
        "pause_generation": 1,
        "continue_generation": 1,
        "flush_cache": 1,
        "abort_request": 2,
        "abort_request_without_rid": 1,
        "generate": 1,
        "load_lora_adapter": 0,
    }

    def counted():
        counts = control_calls(throw_away.log_path, since=mark)
        return {name: counts[name] for name in expected}

    wait_until(lambda: counted() == expected, f"{expected} in the log")


async def test_a_killed_engine_is_unknown_then_back_on_another_port(throw_away, new_rid):
    tree = [throw_away.pid, *(child.pid for child in psutil.Process(throw_away.pid).children(recursive=True))]
    assert len(tree) >= 3, "server, scheduler, detokenizer"
    async with EnginePort(throw_away.url) as port:
        sampling = Sampling(max_new_tokens=1500, ignore_eos=True)
        async with aclosing(port.stream((4, 5), None, sampling, new_rid())) as items:
            assert isinstance(await anext(items), Arrival)
            throw_away.kill()
            *_, reply = [item async for item in items]
        assert isinstance(reply, Unknown)
        assert reply.kind is UnknownKind.CONNECTION_LOST
        assert port.in_flight(None) == 0
        reply = await port.models()
        assert isinstance(reply, Unknown)
        assert reply.kind is UnknownKind.NOT_CONNECTED
    assert not throw_away.alive()
    assert not [pid for pid in tree if _runs(pid)]

    old_port = throw_away.port
    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        squatter.bind((throw_away.host, old_port))
        squatter.listen()
        throw_away.start()
        lines: list[str] = []
        wait_all_ready([throw_away], DEADLINE_S, lambda name, elapsed, line: lines.append(line))
    assert throw_away.port != old_port
    assert lines[-1] == "ready"
    assert os.getsid(throw_away.pid) == throw_away.pid
    async with EnginePort(throw_away.url) as port:
        assert await port.models() == OK({}), "a new process has no adapters"


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

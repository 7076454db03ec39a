"""One engine over HTTP: one method an operation, each answer an `OK`, a `Refused` or an `Unknown`.

Nothing is retried here, at any level: whether a request may be sent again is decided by the agent layer
(RFC 4.2).  Each request has its own connection, so that no answer is lost to one that the server closed
while it was idle.

Control calls (load, unload) are owned by the port.  SGLang gives the reply of a cancelled control call to
the next one, so a time-out or a cancelled caller ends only the waiting; the call goes on to its end.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import attrs
import httpx

from lorafsm_sglang.generation import Arrival, Generation, read_generation, reply_or_none, stream_generation
from lorafsm_sglang.replies import OK, Reply, Unknown, UnknownKind, classify, lost
from lorafsm_sglang.requests import Logprobs, Sampling, check_adapter_path, check_lora_name, check_rid, generate_body

T = TypeVar("T")

PROBE_INPUT_IDS = (3, 5, 7)
"""Prompt of a probe; it leaves this prefix in the KV cache of the probed version."""

_CONNECT_TIMEOUT_S = 5.0


@attrs.frozen
class Resident:
    """Names the engine has after a load or an unload, with the path each came from."""

    adapters: Mapping[str, str]


@attrs.frozen
class EngineStatus:
    """What an engine says of itself; counts are of requests."""

    version: str
    model_path: str
    dtype: str
    max_running_requests: int
    running: int
    waiting: int
    settings: Mapping[str, Any] = attrs.field(repr=False)
    """All server arguments, as the engine resolved them (the check of the supported configuration)."""


class EnginePort:
    """Async client of one SGLang engine; use as ``async with EnginePort(url) as port``.

    ``vocab_size`` bounds token ids (give it: an id outside ends a CPU engine).  ``admin_api_key`` goes into
    the Authorization header and nowhere else.  ``transport`` replaces the network in fault injection.
    """

    def __init__(
        self,
        base_url: str,
        *,
        vocab_size: int | None = None,
        admin_api_key: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self.base_url = base_url
        self._vocab_size = vocab_size
        self._client = httpx.AsyncClient(
            base_url=base_url,
            headers={"Authorization": f"Bearer {admin_api_key}"} if admin_api_key else None,
            transport=transport or httpx.AsyncHTTPTransport(retries=0, limits=limits, trust_env=False),
            trust_env=False,
            follow_redirects=False,
        )
        self._control: set[asyncio.Task[Any]] = set()
        self._in_flight: collections.Counter[str | None] = collections.Counter()

    def __repr__(self) -> str:
        return f"EnginePort({self.base_url!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self, grace_s: float = 30.0) -> None:
        """Wait up to ``grace_s`` seconds for control calls that are still open, then close.

        A call that is open after that is cut: do not send this engine another control call.
        """
        if self._control:
            _, late = await asyncio.wait(self._control, timeout=grace_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await self._client.aclose()

    # -- control --------------------------------------------------------------------------------------

    async def load(
        self, lora_name: str, path: Path | str, *, pinned: bool = True, timeout_s: float | None = 60.0
    ) -> Reply[Resident]:
        """Load an adapter from a folder on the engine's host (RFC 3.2: one fresh load an attempt).

        A name that is there already is refused, whatever its content.  Weights are on the CPU afterwards;
        only `probe` puts them into a slot.  Pinned adapters stay until an explicit unload.
        """
        body = {"lora_name": check_lora_name(lora_name), "lora_path": check_adapter_path(path), "pinned": pinned}
        return await self._owned("load", "/load_lora_adapter", body, _resident, timeout_s)

    async def unload(self, lora_name: str, *, timeout_s: float | None = 600.0) -> Reply[Resident]:
        """Unregister the name, wait for the engine's own requests of it to end, unload (RFC 5.1).

        The call stays open as long as such a request runs, and holds the engine's one LoRA lock.
        """
        body = {"lora_name": check_lora_name(lora_name)}
        return await self._owned("unload", "/unload_lora_adapter", body, _resident, timeout_s)

    def control_calls_open(self) -> tuple[str, ...]:
        """Names of control calls that have no answer yet, their callers gone or not."""
        return tuple(sorted(task.get_name() for task in self._control))

    async def _owned(
        self,
        operation: str,
        route: str,
        body: Mapping[str, Any],
        read: Callable[[Any], T],
        timeout_s: float | None,
    ) -> Reply[T]:
        timeout = httpx.Timeout(None, connect=_CONNECT_TIMEOUT_S)
        name = f"{operation} {body['lora_name']}"
        task = asyncio.create_task(self._exchange("POST", route, read, timeout, json=body), name=name)
        self._control.add(task)
        task.add_done_callback(self._control.discard)
        # asyncio.wait leaves the task alone, both when time is up and when this caller is cancelled.
        done, _ = await asyncio.wait({task}, timeout=timeout_s)
        if not done:
            return Unknown(UnknownKind.TIMEOUT, f"{name}: no answer after {timeout_s} s; the call is still open")
        return task.result()

    # -- generation -----------------------------------------------------------------------------------

    async def probe(self, lora_name: str, rid: str, *, timeout_s: float | None = 60.0) -> Reply[Generation]:
        """Generate one token under exactly this version: the proof behind READY (RFC 3.2)."""
        return await self.score(PROBE_INPUT_IDS, check_lora_name(lora_name), rid, timeout_s=timeout_s)

    async def score(
        self,
        input_ids: Sequence[int],
        lora_path: str | None,
        rid: str,
        *,
        token_ids: Sequence[int] = (),
        timeout_s: float | None = 60.0,
    ) -> Reply[Generation]:
        """Log-probabilities (nats) of the next token: the greedy one's and those of ``token_ids``."""
        sampling = Sampling(max_new_tokens=1)
        logprobs = Logprobs(token_ids=tuple(token_ids))
        return await self.generate(input_ids, lora_path, sampling, rid, logprobs=logprobs, timeout_s=timeout_s)

    async def generate(
        self,
        input_ids: Sequence[int],
        lora_path: str | None,
        sampling: Sampling,
        rid: str,
        *,
        logprobs: Logprobs | None = None,
        stream: bool = False,
        timeout_s: float | None = None,
    ) -> Reply[Generation]:
        """Generate under exactly ``lora_path``; the base model only by an explicit ``None`` (RFC 4.2).

        ``rid`` is ``uuid4().hex`` of the caller.  With ``stream`` the result carries `Arrival`s.
        ``timeout_s`` bounds the silence between bytes; a caller that gives up closes the connection, which
        SGLang takes as an abort.
        """
        if stream:
            reply: Reply[Generation] | None = None
            async with aclosing(
                self.stream(input_ids, lora_path, sampling, rid, logprobs=logprobs, timeout_s=timeout_s)
            ) as items:
                async for item in items:
                    reply = reply_or_none(item)
            return reply or Unknown(UnknownKind.CONNECTION_LOST, "the stream ended without a reply")
        body = generate_body(input_ids, lora_path, sampling, rid, logprobs, stream=False, vocab_size=self._vocab_size)
        timeout = httpx.Timeout(timeout_s, connect=_CONNECT_TIMEOUT_S)
        with _Held(self._in_flight, lora_path):
            return await self._exchange("POST", "/generate", read_generation, timeout, json=body)

    async def stream(
        self,
        input_ids: Sequence[int],
        lora_path: str | None,
        sampling: Sampling,
        rid: str,
        *,
        logprobs: Logprobs | None = None,
        timeout_s: float | None = None,
    ) -> AsyncGenerator[Arrival | Reply[Generation], None]:
        """Like `generate`; yields each `Arrival` when it comes and, last, exactly one reply.

        Close it (``contextlib.aclosing``) when leaving early; the connection and the count end with it.
        """
        body = generate_body(input_ids, lora_path, sampling, rid, logprobs, stream=True, vocab_size=self._vocab_size)
        timeout = httpx.Timeout(timeout_s, connect=_CONNECT_TIMEOUT_S)
        with _Held(self._in_flight, lora_path):
            try:
                async with self._client.stream("POST", "/generate", json=body, timeout=timeout) as response:
                    async for item in stream_generation(response):
                        yield item
            except httpx.HTTPError as error:
                yield lost(error)

    async def abort(self, rid: str, *, timeout_s: float = 10.0) -> Reply[None]:
        """Ask the engine to end one request; `OK` says that it was asked, not that anything ended.

        The query string repeats the rid, so that the access log shows an abort of one request.
        """
        timeout = httpx.Timeout(timeout_s)
        body, query = {"rid": check_rid(rid)}, {"rid": rid}
        return await self._exchange("POST", "/abort_request", _nothing, timeout, json=body, params=query)

    def in_flight(self, lora_name: str | None) -> int:
        """Requests of a version (``None``: base) now open through this port.

        SGLang does not show its own counts; a request sent around this port is not in this one.
        """
        return self._in_flight[lora_name]

    # -- questions ------------------------------------------------------------------------------------

    async def models(self, *, timeout_s: float = 10.0) -> Reply[Mapping[str, str]]:
        """Registered adapter names and their paths; a name that is being unloaded is gone already."""
        return await self._exchange("GET", "/v1/models", _adapters, httpx.Timeout(timeout_s))

    async def status(self, *, timeout_s: float = 10.0) -> Reply[EngineStatus]:
        """Version, settings and load, asked of the scheduler: an answer shows that it is alive."""
        timeout = httpx.Timeout(timeout_s)
        loads = await self._exchange("GET", "/v1/loads", lambda body: body["loads"][0], timeout)
        if not isinstance(loads, OK):
            return loads
        return await self._exchange("GET", "/server_info", lambda body: _status(body, loads.data), timeout)

    async def _exchange(
        self,
        method: str,
        route: str,
        read: Callable[[Any], T],
        limit: httpx.Timeout,
        *,
        json: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
    ) -> Reply[T]:
        try:
            response = await self._client.request(method, route, json=json, params=params, timeout=limit)
        except httpx.HTTPError as error:
            return lost(error)
        return classify(response, read)


class _Held:
    """Counts one request from before it is sent until it ends, however it ends: once up, once down."""

    def __init__(self, counts: collections.Counter[str | None], version: str | None) -> None:
        self._counts = counts
        self._version = version

    def __enter__(self) -> None:
        self._counts[self._version] += 1

    def __exit__(self, *exc_info: object) -> None:
        self._counts[self._version] -= 1
        if not self._counts[self._version]:
            del self._counts[self._version]


def _resident(body: Any) -> Resident:
    if body["success"] is not True:
        raise ValueError("no success field that is true")
    return Resident(dict(body["loaded_adapters"] or {}))


def _adapters(body: Any) -> Mapping[str, str]:
    return {card["id"]: card["root"] for card in body["data"] if card["parent"] is not None}


def _status(info: Any, load: Mapping[str, Any]) -> EngineStatus:
    settings = {name: value for name, value in info.items() if not name.endswith("_key")}
    return EngineStatus(
        version=str(info["version"]),
        model_path=str(info["model_path"]),
        dtype=str(info["dtype"]),
        max_running_requests=int(load["max_running_requests"]),
        running=int(load["num_running_reqs"]),
        waiting=int(load["num_waiting_reqs"]),
        settings=settings,
    )


def _nothing(body: Any) -> None:
    return None

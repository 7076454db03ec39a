"""A fault-injection stand-in for one SGLang engine, behind the real `EnginePort`.

It speaks the four routes that the executor uses and does what was seen of real engines: one load or unload at a
time, a name that is there is refused, an unload of a name that is not there is refused.  Faults are put in by hand.
What real engines do is in tests/engines.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter, deque
from pathlib import Path
from typing import Any

import httpx
from attrs import define, field

from lorafsm.errors import LoraFsmError
from lorafsm.identity import VersionKey, lora_name
from lorafsm_sglang import EnginePort
from lorafsm_sglang.staged import StagedEngine

LOAD, UNLOAD, GENERATE, MODELS = "/load_lora_adapter", "/unload_lora_adapter", "/generate", "/v1/models"
BASE = "b" * 64

DONE_BUT_LOST = "the engine did it; the answer was lost"
NEVER_ARRIVED = "the connection broke before the engine read the call"


@define
class EngineStandIn:
    """Adapters of one engine.  `faults[route]` are used up one a call: one of the two texts above, or a refusal."""

    adapters: dict[str, str] = field(factory=dict)
    faults: dict[str, deque[str]] = field(factory=dict)
    gates: dict[str, asyncio.Event] = field(factory=dict)  # a route waits for its gate before it does anything
    calls: list[tuple[str, str]] = field(factory=list)  # (route, adapter), in the order of arrival
    arrived: dict[str, asyncio.Event] = field(factory=dict)
    _lock: asyncio.Lock = field(factory=asyncio.Lock)

    def will(self, route: str, *faults: str) -> None:
        """The next calls of this route fail like this."""
        self.faults.setdefault(route, deque()).extend(faults)

    def hold(self, route: str) -> asyncio.Event:
        """Calls of this route wait until the event that is returned is set."""
        self.gates[route] = asyncio.Event()
        return self.gates[route]

    async def reached(self, route: str) -> None:
        """Wait for the first call of this route."""
        await asyncio.wait_for(self.arrived.setdefault(route, asyncio.Event()).wait(), 5)

    def count(self) -> Counter[str]:
        """How often each route was called."""
        return Counter(route for route, _ in self.calls)

    def port(self) -> EnginePort:
        """The real port, this stand-in at its other end."""
        return EnginePort("http://stand-in", transport=httpx.MockTransport(self._answer))

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        route, body = request.url.path, json.loads(request.content or b"{}")
        self.calls.append((route, body.get("lora_name") or body.get("lora_path") or ""))
        self.arrived.setdefault(route, asyncio.Event()).set()
        if route in (LOAD, UNLOAD):
            async with self._lock:
                return await self._judged(route, body)
        return await self._judged(route, body)

    async def _judged(self, route: str, body: dict[str, Any]) -> httpx.Response:
        if route in self.gates:
            await self.gates[route].wait()
        fault = self.faults[route].popleft() if self.faults.get(route) else ""
        if fault == NEVER_ARRIVED:
            raise httpx.ReadError(fault)
        if fault and fault != DONE_BUT_LOST:
            return _refused(fault)
        answer = self._done(route, body)
        if fault:
            raise httpx.ReadError(fault)
        return answer

    def _done(self, route: str, body: dict[str, Any]) -> httpx.Response:
        if route == MODELS:
            cards = [{"id": name, "root": path, "parent": "base"} for name, path in self.adapters.items()]
            return httpx.Response(200, json={"data": [{"id": "base", "root": "/m", "parent": None}, *cards]})
        if route == GENERATE:
            return self._generated(body)
        name = body["lora_name"]
        if (name in self.adapters) == (route == LOAD):
            return _refused(f"{name} is already loaded" if route == LOAD else f"{name} does not exist")
        if route == LOAD:
            self.adapters[name] = body["lora_path"]
        else:
            del self.adapters[name]
        return httpx.Response(200, json={"success": True, "error_message": "", "loaded_adapters": self.adapters})

    def _generated(self, body: dict[str, Any]) -> httpx.Response:
        if body["lora_path"] not in self.adapters:
            return httpx.Response(400, json={"error": {"message": f"never been loaded: {body['lora_path']}"}})
        meta = {
            "id": body["rid"],
            "finish_reason": {"type": "length", "length": 1},
            "prompt_tokens": len(body["input_ids"]),
            "completion_tokens": 1,
            "cached_tokens": 0,
            "output_token_logprobs": [[-1.0, 7, None]],
        }
        return httpx.Response(200, json={"output_ids": [7], "meta_info": meta})


def _refused(message: str) -> httpx.Response:
    return httpx.Response(400, json={"success": False, "error_message": message, "loaded_adapters": {}})


class NoSuchArtifact(LoraFsmError):
    """What a copy that cannot be made or proved raises here."""


@define
class Copies:
    """Stands in for a host's own copies: which names are there, which cannot be fetched, which are damaged."""

    root: Path = Path("/copies")
    names: set[str] = field(factory=set)
    missing: set[str] = field(factory=set)
    damaged: set[str] = field(factory=set)
    fetching: threading.Event = field(factory=threading.Event)
    slow: threading.Event | None = None  # a fetch waits for it

    def fetch(self, key: VersionKey, digest: str) -> None:
        name = lora_name(key, digest)
        self.fetching.set()
        if self.slow is not None:
            assert self.slow.wait(5)
        if name in self.missing:
            raise NoSuchArtifact("ARTIFACT_MISSING", f"{name} is not in the store")
        self.names.add(name)

    def check(self, lora_name: str, digest: str) -> Path:
        if lora_name not in self.names or lora_name in self.damaged:
            raise NoSuchArtifact("ARTIFACT_INVALID", f"the copy of {lora_name} is damaged")
        return self.root / lora_name

    def discard(self, lora_name: str) -> None:
        self.names.discard(lora_name)


class Ticks:
    """A clock that goes on by one at each look."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 1
        return self.now


@define
class Beside:
    """A stand-in engine, its port, the copies on its host and the executor beside it."""

    engine: EngineStandIn
    port: EnginePort
    copies: Any
    staged: StagedEngine


def beside(
    name: str = "E0", *, incarnation: int = 1, source: Any = None, engine: EngineStandIn | None = None
) -> Beside:
    """One engine that stands ready; close its port at the end."""
    stand_in = engine or EngineStandIn()
    copies = Copies() if source is None else source
    port = stand_in.port()
    staged = StagedEngine(
        engine=name, incarnation=incarnation, port=port, source=copies, base_fingerprint=BASE, clock=Ticks()
    )
    return Beside(stand_in, port, copies, staged)

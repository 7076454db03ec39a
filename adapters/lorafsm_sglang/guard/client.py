"""`GuardedEngine`: the executor of one guarded engine as the driver sees it, over the guard's own routes.

It remembers nothing: every order may be given again, by this client or another one, and the engine's agent joins,
answers or refuses it.  An answer that does not come is an unknown result, never a refusal.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import httpx
from attrs import define, field

from lorafsm.engine.actions import AskQuarantine
from lorafsm.engine.answers import Answer, Pending, Unknown
from lorafsm.engine.orders import ArmBucket, EngineOrder, ReceiveBucket, Settle
from lorafsm.engine.report import as_event
from lorafsm.errors import InvalidField
from lorafsm.events import Event, ReclaimUnknown, TargetUnknown
from lorafsm.orders import Begin, Cleanup, End, Order, SendBucket, Unload
from lorafsm_sglang.guard.attestation import Attestation, AttestationError, judge
from lorafsm_sglang.guard.settings import TOKEN_HEADER
from lorafsm_sglang.guard.wire import read_answer, write_order

Passing: TypeAlias = Callable[[EngineOrder], Awaitable[None]]
"""Waited for before an order is sent: where a story holds an engine back."""

_CONNECT_S = 5.0
_SLACK_S = 10.0  # of a call beyond what the engine may wait
_REFUSED_AGAIN_S = 0.05
_KEPT_S = 1.0  # of an idle connection: well below the time after which SGLang's server closes it (5 s)


Announce: TypeAlias = Callable[[Begin], Mapping[str, Any] | None]
"""The announcement that goes with a begin (`lorafsm_torch.BucketSender.announcement`); None: nothing is announced."""


async def _unheld(order: EngineOrder) -> None:
    return None


def _unannounced(order: Begin) -> None:
    return None


@define
class GuardedEngine:
    """One guarded engine at `url`.

    `wait_s` is how long one call waits inside the engine, `deadline_s` how long `carry_out` asks again before it
    says that the result is unknown (seconds).  `clock` gives ms for the events.
    """

    engine: str
    incarnation: int
    url: str
    token: str = field(repr=False)
    clock: Callable[[], int]
    wait_s: float = 20.0
    deadline_s: float = 600.0
    passing: Passing = _unheld
    announce: Announce = _unannounced
    transport: httpx.AsyncBaseTransport | None = None
    _client: httpx.AsyncClient | None = None

    async def carry_out(self, order: Order) -> Event | None:
        """The event that reports the order's result; None where there is nothing to report."""
        if isinstance(order, SendBucket):
            raise TypeError("SendBucket is an order to the transport")
        if order.incarnation != self.incarnation or order.engine != self.engine:
            return None  # another process's order: this one creates nothing and claims nothing
        await self.passing(order)
        answer, quarantine = await self._answer(order)
        if isinstance(answer, Unknown) and quarantine:
            return as_event(AskQuarantine(self.incarnation, quarantine[0]), self.engine, self.clock())
        if answer is None or isinstance(answer, Pending):
            return self._unknown(order)
        return as_event(answer, self.engine, self.clock())

    async def give(self, order: EngineOrder, wait_s: float = 0.0) -> Answer | None:
        """One call: the agent's answer, or None where none came."""
        answer, _ = await self._call(order, wait_s)
        return answer

    async def settle(self, settle: Settle) -> Answer | None:
        """Where a request stands (rule 10); None where no answer came."""
        body = await self._exchange("POST", "/lorafsm/settle", json=write_order(settle))
        return None if body is None else read_answer(body["answer"])

    async def attest(self) -> Attestation:
        """The engine's proof that it is guarded and is this engine; AttestationError where it has none."""
        try:
            response = await self._http().get("/lorafsm/attestation")
            data = response.json() if response.status_code == httpx.codes.OK else None
        except (httpx.HTTPError, ValueError) as error:
            raise AttestationError(f"no answer: {type(error).__name__}") from error
        if data is None:
            raise AttestationError(f"HTTP {response.status_code}: the guard is not there, or the token is wrong")
        proof = judge(data)
        if proof.engine != self.engine:
            raise AttestationError(f"this is {proof.engine}", "engine")
        if self.incarnation and proof.incarnation != self.incarnation:
            raise AttestationError(f"this is incarnation {proof.incarnation}", "incarnation")
        return proof

    async def status(self) -> Mapping[str, Any]:
        """What the engine's agent remembers and who holds what; empty where no answer came."""
        return await self._exchange("GET", "/lorafsm/status") or {}

    async def operations(self, since: int = 0) -> list[Mapping[str, Any]]:
        """What was done to the engine after the operation of index `since`; empty where no answer came."""
        body = await self._exchange("GET", "/lorafsm/operations", params={"since": str(since)})
        return list(body["operations"]) if body else []

    async def send_bucket(self, number: int, bucket: int, data: bytes) -> bool:
        """Deliver the bytes of an armed bucket; whether the engine took them."""
        return await self._exchange("PUT", f"/lorafsm/buckets/{number}/{bucket}", content=data) is not None

    async def aclose(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()

    async def _answer(self, order: EngineOrder) -> tuple[Answer | None, tuple[str, ...]]:
        """Give the order until the answer is not Pending any more, or time is up."""
        end = time.monotonic() + self.deadline_s
        while True:
            began = time.monotonic()
            answer, quarantine = await self._call(order, max(0.0, min(self.wait_s, end - began)))
            if not isinstance(answer, Pending) or time.monotonic() >= end:
                return answer, quarantine
            if time.monotonic() - began < _REFUSED_AGAIN_S:
                await asyncio.sleep(_REFUSED_AGAIN_S)

    async def _call(self, order: EngineOrder, wait_s: float) -> tuple[Answer | None, tuple[str, ...]]:
        body = await self._exchange("POST", "/lorafsm/orders", json=self._written(order, wait_s))
        if body is None:
            return None, ()
        try:
            return read_answer(body["answer"]), tuple(body["quarantine"])
        except (InvalidField, KeyError, TypeError):
            return None, ()  # what this engine says cannot be read: that proves nothing

    def _written(self, order: EngineOrder, wait_s: float) -> dict[str, Any]:
        transfer = self.announce(order) if isinstance(order, Begin) and order.plan.buckets else None
        return {**write_order(order), "wait_s": wait_s, **({} if transfer is None else {"transfer": transfer})}

    async def _exchange(self, method: str, route: str, **more: Any) -> dict[str, Any] | None:
        try:
            response = await self._http().request(method, route, **more)
            body = response.json() if response.status_code == httpx.codes.OK else None
        except (httpx.HTTPError, ValueError):
            return None
        return body if isinstance(body, dict) else None

    def _http(self) -> httpx.AsyncClient:
        if self._client is None:
            limits = httpx.Limits(max_connections=None, keepalive_expiry=_KEPT_S)
            self._client = httpx.AsyncClient(
                base_url=self.url,
                headers={TOKEN_HEADER: self.token},
                timeout=httpx.Timeout(self.wait_s + _SLACK_S, connect=_CONNECT_S),
                transport=self.transport or httpx.AsyncHTTPTransport(retries=0, limits=limits, trust_env=False),
                trust_env=False,
            )
        return self._client

    def _unknown(self, order: EngineOrder) -> Event | None:
        if isinstance(order, Begin | End | Cleanup | ArmBucket | ReceiveBucket):
            return TargetUnknown(
                number=order.number, engine=self.engine, incarnation=self.incarnation, now=self.clock()
            )
        if isinstance(order, Unload):
            return ReclaimUnknown(
                reclaim_id=order.reclaim_id, engine=self.engine, incarnation=self.incarnation, now=self.clock()
            )
        return None

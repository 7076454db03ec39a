"""The guard's own HTTP routes on SGLang's server.  Every one needs the token; no one logs it.

GET  /lorafsm/attestation   is the guard active, and for what
POST /lorafsm/orders        one order; waits up to `wait_s` seconds for its result.  A Begin may bring `transfer`, the
                            announcement of buckets that come over torch.distributed
POST /lorafsm/settle        is this request running
GET  /lorafsm/status        what the agent remembers and who holds what
GET  /lorafsm/operations    what was done to the engine since `?since=`
PUT  /lorafsm/buckets/{number}/{bucket}   the bytes of an armed bucket
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import attrs
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from lorafsm.engine.answers import Answer
from lorafsm.engine.orders import Settle
from lorafsm.errors import InvalidField
from lorafsm.identity import is_managed
from lorafsm.orders import Begin
from lorafsm_sglang.guard import relax_wire
from lorafsm_sglang.guard.executor import LONGEST_WAIT_S
from lorafsm_sglang.guard.guard import LoraGuard
from lorafsm_sglang.guard.settings import TOKEN_HEADER
from lorafsm_sglang.guard.stash import LARGEST_BUCKET, StashError
from lorafsm_sglang.guard.versions import GUARD_VERSION, self_test
from lorafsm_sglang.guard.wire import LARGEST_ANNOUNCEMENT, LARGEST_ORDER, read_json, read_order, write_answer

log = logging.getLogger(__name__)

Handler = Callable[[Request], Awaitable[JSONResponse]]
_HTTP_SERVER = "sglang.srt.entrypoints.http_server"


def install(guard: LoraGuard) -> bool:
    """Put the routes before SGLang's own, if this process has an HTTP server at all (`Engine` has none)."""
    if _HTTP_SERVER not in sys.modules:
        return False
    put_first(routes(guard))
    read_model_names()
    return True


def put_first(own: Sequence[Route]) -> None:
    """Before SGLang's own, so that no route of its own can hide these."""
    sys.modules[_HTTP_SERVER].app.router.routes[0:0] = own


def read_model_names() -> None:
    """In OpenAI's routes a `model` that is a managed name means that version, exactly.

    SGLang takes any name without a colon for the base model, and would answer with the base.
    """
    from sglang.srt.entrypoints.openai.serving_base import OpenAIServingBase

    native = OpenAIServingBase._resolve_lora_path

    def resolve(self: Any, request_model: str, explicit_lora_path: Any) -> Any:
        return request_model if is_managed(request_model) else native(self, request_model, explicit_lora_path)

    OpenAIServingBase._resolve_lora_path = resolve


def routes(guard: LoraGuard) -> list[Route]:
    """The routes of one guard, each behind the token."""
    handlers = Handlers(guard)

    def route(path: str, handler: Handler, method: str) -> Route:
        return Route(path, with_token(guard.settings.token, handler), methods=[method])

    return [
        route("/lorafsm/attestation", handlers.attestation, "GET"),
        route("/lorafsm/orders", handlers.orders, "POST"),
        route("/lorafsm/settle", handlers.settle, "POST"),
        route("/lorafsm/status", handlers.status, "GET"),
        route("/lorafsm/operations", handlers.operations, "GET"),
        route("/lorafsm/buckets/{number:int}/{bucket:int}", handlers.bucket, "PUT"),
        route(relax_wire.ROUTE, handlers.relax, "POST"),
    ]


def with_token(token: str, handler: Handler) -> Handler:
    """The handler behind the token (constant-time compare); bad input ends as 400 with a code."""
    wanted = token.encode()

    async def checked(request: Request) -> JSONResponse:
        given = request.headers.get(TOKEN_HEADER, "").encode()
        if not hmac.compare_digest(given, wanted):
            return _error(401, "UNAUTHORIZED", f"send the guard's token in {TOKEN_HEADER}")
        try:
            return await handler(request)
        except InvalidField as error:
            return _error(400, error.code, error.message, error.field)

    return checked


def _error(status: int, code: str, message: str, field: str | None = None) -> JSONResponse:
    return JSONResponse({"error": {"code": code, "message": message, "field": field}}, status)


class Handlers:
    """One method a route."""

    def __init__(self, guard: LoraGuard) -> None:
        self._guard = guard

    async def attestation(self, request: Request) -> JSONResponse:
        """The proof; the self-test runs again on the classes as they are now."""
        return JSONResponse(attest(self._guard))

    async def orders(self, request: Request) -> JSONResponse:
        """The agent's answer.  A pending one means: give the same order again."""
        raw = await request.body()
        # An announcement may be long: it is read beside SGLang's event loop.
        data = await asyncio.to_thread(read_json, raw, LARGEST_ANNOUNCEMENT)
        wait_s, transfer = data.pop("wait_s", 0.0), data.pop("transfer", None)
        if transfer is None and len(raw) > LARGEST_ORDER:
            raise InvalidField("body", f"is larger than {LARGEST_ORDER} bytes")
        if type(wait_s) not in (int, float) or not 0 <= wait_s <= LONGEST_WAIT_S:
            raise InvalidField("wait_s", f"must be 0 to {LONGEST_WAIT_S:.0f} seconds")
        order = read_order(data)
        if isinstance(order, Settle):
            raise InvalidField("order", "a settle goes to /lorafsm/settle")
        if transfer is not None and not isinstance(order, Begin):
            raise InvalidField("transfer", "comes with a Begin and with nothing else")
        answer = await self._guard.carry_out(order, wait_s, transfer)
        quarantine = [each.reason for each in self._guard.executor.quarantine]
        return JSONResponse({"answer": write_answer(answer), "quarantine": quarantine})

    async def settle(self, request: Request) -> JSONResponse:
        """Running, or absent and sealed from now on (rule 10)."""
        order = read_order(read_json(await request.body()))
        if not isinstance(order, Settle):
            raise InvalidField("order", "must be a Settle")
        return JSONResponse({"answer": write_answer(self._guard.settle(order))})

    async def status(self, request: Request) -> JSONResponse:
        """What the agent remembers, for people and for tests."""
        return JSONResponse(self._guard.status())

    async def operations(self, request: Request) -> JSONResponse:
        """Operations after index `since`, with times on the host's monotonic clock."""
        since = request.query_params.get("since", "0")
        if not since.isdigit():
            raise InvalidField("since", "must be the index of an operation")
        found = [attrs.asdict(each) for each in self._guard.executor.operations if each.index > int(since)]
        return JSONResponse({"operations": found})

    async def bucket(self, request: Request) -> JSONResponse:
        """The bytes of a bucket whose receive is posted."""
        length = request.headers.get("content-length", "")
        if not length.isdigit() or int(length) > LARGEST_BUCKET:
            raise StashError("content-length", f"must be at most {LARGEST_BUCKET}")
        number, bucket = request.path_params["number"], request.path_params["bucket"]
        await self._guard.executor.deliver(number, bucket, await request.body())
        return JSONResponse({"ok": True})

    async def relax(self, request: Request) -> JSONResponse:
        """An order in Relax's words; waits as long as a call may."""
        data = read_json(await request.body())
        agent = self._guard.executor.agent
        orders = relax_wire.read_call(data, agent.engine, agent.epoch, agent.incarnation)
        answer: Answer | None = None
        for order in orders:
            answer = await self._guard.carry_out(order, LONGEST_WAIT_S)
            if not answer.ok:
                break
        assert answer is not None
        status, receipt = relax_wire.write_receipt(answer, data, agent.epoch)
        return JSONResponse(receipt, status)


def attest(guard: LoraGuard) -> dict[str, Any]:
    """What this engine can prove of itself."""
    import sglang

    agent, settings = guard.executor.agent, guard.settings
    failed = (*self_test(sglang.__version__, guard.hooked_classes()), *guard.lost_hooks())
    ready = guard.base_fingerprint is not None
    faults = [*guard.faults, *(() if ready else ("the base fingerprint is still being computed",))]
    return {
        "guard_version": GUARD_VERSION,
        "sglang_version": sglang.__version__,
        "active": not faults and not failed,
        "faults": faults,
        "self_test": list(failed),
        "engine": settings.engine,
        "epoch": settings.epoch,
        "incarnation": agent.incarnation,
        "base_fingerprint": guard.base_fingerprint or "",
        "capacity": settings.capacity,
        "unmanaged": settings.unmanaged,
        "configuration": guard.configuration,
    }

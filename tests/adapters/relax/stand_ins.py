"""Stand-ins for the parts of Relax that the hooks go into: named signatures and asynchronous manners, nothing else.

Relax itself cannot be installed here.  Each place where a hook stands is marked `# lorafsm`; the lines are those of
adapters/lorafsm_relax/README.md.  With `lora=None` (the switch is off) none of them does anything.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from attrs import define, field

from lorafsm_relax import VersionedShard, VersionedUpdate, post_once, versioned_attempt, versioned_payload


class HTTPStatusError(Exception):
    """What Relax's HTTP helper raises for a 4xx or 5xx (httpx's)."""

    def __init__(self, response: Any) -> None:
        super().__init__(f"HTTP {response.status_code}")
        self.response = response


class ConnectError(Exception):
    """No connection was made (httpx's)."""


@define
class Reply:
    """An HTTP response."""

    status_code: int
    body: Any

    def json(self) -> Any:
        return self.body


@define
class Wire:
    """The router behind Relax's HTTP client.  `answer` is asked for every request that is really sent."""

    answer: Callable[[dict[str, Any]], Any]
    payloads: list[dict[str, Any]] = field(factory=list)
    aborted: list[str] = field(factory=list)

    async def send(self, payload: dict[str, Any]) -> Reply:
        """One plain request."""
        self.payloads.append(payload)
        reply = self.answer(payload)
        return await reply if asyncio.iscoroutine(reply) else reply

    async def post(self, payload: dict[str, Any]) -> Any:
        """Relax's helper: repeats six times on any error."""
        for attempt in range(7):
            try:
                reply = await self.send(payload)
                if reply.status_code < 400:
                    return reply.json()
                raise HTTPStatusError(reply)
            except Exception:
                if attempt == 6:
                    raise
        raise AssertionError


class SGLangBackendAdapter:
    """Stand-in: `generate` and `abort_request`."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    async def generate(
        self,
        *,
        input_ids: list[int],
        sampling_params: dict[str, Any],
        session_id: str | None,
        request_id: str,
        attempt: Any = None,  # lorafsm
    ) -> dict[str, Any]:
        payload = {"input_ids": input_ids, "sampling_params": sampling_params, "rid": request_id}
        payload = versioned_payload(payload, attempt)  # lorafsm
        if attempt is not None:  # lorafsm
            output = await post_once(attempt, lambda: self.wire.send(payload), not_sent=(ConnectError,))
        else:
            output = await self.wire.post(payload)
        return dict(output)

    async def abort_request(self, request_id: str) -> None:
        self.wire.aborted.append(request_id)


@define(eq=False)
class InflightRequest:
    """Stand-in."""

    request_id: str
    abort_count: int = 0
    runner_task: asyncio.Task[None] | None = None
    backend_started: bool = False
    result: Any = None
    error: Exception | None = None


def _backend_request_id(ir: InflightRequest) -> str:
    return f"{ir.request_id}:{ir.abort_count}"


@define(eq=False)
class _SessionRecord:
    """Stand-in."""

    session_id: str
    lock: asyncio.Lock = field(factory=asyncio.Lock)
    phase: str = "ACTIVE"
    finish_task: asyncio.Task[None] | None = None
    live_irs: list[InflightRequest] = field(factory=list)


class AgenticSessionShard:
    """Stand-in: sessions, the permit, `_run_ir`, `_finish_session`, `_finish_session_once`."""

    def __init__(self, backend: SGLangBackendAdapter, lora: VersionedShard | None, permits: int = 512) -> None:
        self._generation_backend = backend
        self._lora = lora  # lorafsm
        self._permits = asyncio.Semaphore(permits)
        self._session_records: dict[str, _SessionRecord] = {}
        self.samples: dict[str, dict[str, Any]] = {}
        self.steps: list[str] = []

    def start_session(self, session_id: str) -> _SessionRecord:
        record = self._session_records[session_id] = _SessionRecord(session_id)
        if self._lora is not None:  # lorafsm
            self._lora.open(session_id)
        return record

    def start_ir(self, session: _SessionRecord, request_id: str) -> InflightRequest:
        ir = InflightRequest(request_id)
        session.live_irs.append(ir)
        self.run_again(session, ir)
        return ir

    def run_again(self, session: _SessionRecord, ir: InflightRequest) -> None:
        ir.runner_task = asyncio.create_task(self._run_ir(session, ir))

    @contextlib.asynccontextmanager
    async def _sglang_request_permit(self):
        async with self._permits:
            yield

    async def _run_ir(self, session: _SessionRecord, ir: InflightRequest) -> None:
        runner_task = asyncio.current_task()

        def is_current() -> bool:
            return session.phase == "ACTIVE" and ir in session.live_irs and ir.runner_task is runner_task

        try:
            async with self._sglang_request_permit():
                if self._lora is not None:  # lorafsm
                    await self._lora.ensure(session.session_id)
                async with session.lock:
                    if not is_current():
                        return
                    backend_request_id = _backend_request_id(ir)
                    ir.backend_started = True
                async with versioned_attempt(self._lora, session.session_id, backend_request_id) as attempt:  # lorafsm
                    result = await self._generation_backend.generate(
                        input_ids=[1, 2, 3],
                        sampling_params={"max_new_tokens": 8},
                        session_id=session.session_id,
                        request_id=backend_request_id,
                        attempt=attempt,
                    )
        except asyncio.CancelledError:
            return
        except Exception as error:
            ir.error = error
            ir.backend_started = False
            return
        ir.backend_started = False
        if result["meta_info"]["finish_reason"]["type"] == "abort" and is_current():
            ir.abort_count += 1
            return
        ir.result = result

    async def _finish_session(self, session: _SessionRecord) -> None:
        async with session.lock:
            finish_task = session.finish_task
            if finish_task is None:
                session.phase = "FINALIZING"
                finish_task = asyncio.create_task(self._finish_session_once(session))
                session.finish_task = finish_task
        await asyncio.shield(finish_task)

    async def _finish_session_once(self, session: _SessionRecord) -> None:
        if self._lora is not None:  # lorafsm
            self.samples[session.session_id] = self._lora.sample_fields(session.session_id)
            await self._lora.begin_close(session.session_id)
        self.steps.append("begin_close")
        irs = [ir for ir in session.live_irs if ir.runner_task is not None and not ir.runner_task.done()]
        for ir in irs:
            if not ir.backend_started:
                ir.runner_task.cancel()
        rids = [_backend_request_id(ir) for ir in irs if ir.backend_started]
        await asyncio.gather(*(self._generation_backend.abort_request(rid) for rid in rids))
        self.steps.append("aborted")
        await asyncio.gather(*(ir.runner_task for ir in irs), return_exceptions=True)
        self.steps.append("runners done")
        if self._lora is not None:  # lorafsm
            await self._lora.close_and_release(session.session_id)
        self.steps.append("released")
        del self._session_records[session.session_id]
        self.steps.append("record dropped")


class DeviceDirectBackend:
    """Stand-in: one rank's `update_weights_for_rollout`, its collectives and calls noted in `events` in their order."""

    def __init__(
        self, lora: VersionedUpdate | None, all_reduce_max: Callable[[int], int] = lambda flag: flag, rank: int = 0
    ) -> None:
        self._lora = lora  # lorafsm
        self._all_reduce_max = all_reduce_max
        self.rank = rank
        self.weight_version = 0
        self.events: list[str] = []

    def _note(self, event: str) -> None:
        self.events.append(event)

    def _push_lora_adapter_distributed(self) -> None:
        self._note("push")

    def update_weights_for_rollout(self, rollout_only: bool = False, actor_fwd_only: bool = False) -> None:
        self.weight_version += 1
        pauses = not actor_fwd_only
        if self._lora is not None:  # lorafsm
            pauses = self._lora.pauses(actor_fwd_only=actor_fwd_only)
        if pauses:
            self._note("pause")
            self._note("flush")
        if not actor_fwd_only:
            self._note("barrier")
        self._note("base")
        if not rollout_only:
            self._note("actor_fwd")
            self._note("weight_updated_stop")
        flag = 0
        if not actor_fwd_only:
            if self._lora is not None:  # lorafsm
                flag = self._lora.push(self.weight_version)
            else:
                self._push_lora_adapter_distributed()
            flag = self._all_reduce_max(flag)
            self._note(f"all_reduce {flag}")
            if pauses:
                self._note("continue")
            self._note("barrier")
            if self._lora is not None:  # lorafsm
                self._lora.settle(flag)

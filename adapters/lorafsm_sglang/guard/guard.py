"""The guard of one engine: its agent, its executor, and the references of requests in flight."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from attrs import define

from lorafsm.engine import new_agent
from lorafsm.engine.answers import AgentCode, Answer, Pending, Refused
from lorafsm.engine.orders import Acquire, ArmBucket, EngineOrder, Release, Settle
from lorafsm.identity import is_managed
from lorafsm.orders import Begin, End, Load
from lorafsm_sglang.guard.admission import (
    GuardCode,
    RequestRefused,
    Rids,
    Screen,
    Sessions,
    is_managed_request,
)
from lorafsm_sglang.guard.configuration import agent_slots, faults_in
from lorafsm_sglang.guard.executor import Executor, Source
from lorafsm_sglang.guard.fingerprint import after_base_change, base_fingerprint
from lorafsm_sglang.guard.native import NativeSide
from lorafsm_sglang.guard.settings import GuardSettings
from lorafsm_sglang.guard.stash import Stash

log = logging.getLogger(__name__)

_MAKING = (Begin, ArmBucket, End, Load)
_HOOKS = "lorafsm_sglang.guard.tokenizer"
OVERRIDDEN = (
    "generate_request",
    "_resolve_lora_path",
    "_release_lora_once",
    "_unload_lora_adapter_locked",
    "abort_request",
    "open_session",
    "close_session",
    "load_lora_adapter",
    "load_lora_adapter_from_tensors",
    "unload_lora_adapter",
    "update_weights_from_disk",
    "update_weights_from_distributed",
    "update_weights_from_tensor",
    "update_weights_from_ipc",
    "begin_weight_update",
    "release_memory_occupation",
)
_HELD_SHOWN = 64  # rids of one adapter that a status names


@define
class Held:
    """One request's reference; `counted` once SGLang's own counter has it."""

    lora_name: str
    counter: Any
    counted: bool = False


class LoraGuard:
    """What stands between SGLang and everything that carries a managed name.

    `faults` say why nothing managed is served in this configuration; empty: the guard is active.
    """

    def __init__(
        self,
        manager: Any,
        settings: GuardSettings,
        configuration: Mapping[str, Any],
        source: Source,
        *,
        listing: bool = True,
    ) -> None:
        self.settings = settings
        self.configuration = dict(configuration)
        self.faults = faults_in(configuration, capacity=settings.capacity, unmanaged=settings.unmanaged)
        self.side = NativeSide(manager, lists_by_unload=listing)
        slots = 1 if self.faults else agent_slots(configuration, unmanaged=settings.unmanaged)
        # A process that starts later has a larger incarnation and remembers nothing (rule 14).
        agent = new_agent(settings.engine, time.time_ns() // 1_000_000, settings.epoch, slots=slots)
        self.executor = Executor(agent, self.side, source, Stash(settings.stash, settings.engine))
        self.screen = Screen(settings.unmanaged, self.side.spent_ids)
        self.sessions = Sessions()
        self.released_once = 0  # references that were dropped
        self.released_again = 0  # later terminals of the same requests, which dropped nothing
        self.base_fingerprint: str | None = None
        self._held: dict[str, Held] = {}
        self._rids = Rids()
        self._manager = manager
        self._tasks: set[asyncio.Task[None]] = set()
        threading.Thread(target=self._read_base, name="base-fingerprint", daemon=True).start()

    # -- the base -------------------------------------------------------------------------------------

    def _read_base(self) -> None:
        try:
            self.base_fingerprint = base_fingerprint(self._manager.model_path)
        except OSError as error:
            self.faults = (*self.faults, f"the base model's files cannot be read: {error}")

    def base_changed(self, route: str, weight_version: str | None) -> None:
        """The base weights were replaced through one of SGLang's own routes."""
        if self.base_fingerprint is not None:
            self.base_fingerprint = after_base_change(self.base_fingerprint, route, weight_version)

    # -- orders ---------------------------------------------------------------------------------------

    async def carry_out(self, order: EngineOrder, wait_s: float = 0.0, transfer: object = None) -> Answer:
        """The answer to an order, waited for up to `wait_s` seconds (RFC 3.2-3.4, 5.1); as `Executor.carry_out`."""
        agent = self.executor.agent
        if self.faults and isinstance(order, _MAKING):
            return Refused(
                code=AgentCode.NO_RESOURCES,
                reason=f"this engine is not guarded: {self.faults[0]}"[:400],
                incarnation=agent.incarnation,
                seq=agent.seq,
                number=order.number,
                repair=isinstance(order, Load),
            )
        if self.base_fingerprint is None:
            return Pending(waits_for="the base fingerprint", incarnation=agent.incarnation, seq=agent.seq)
        if agent.base_fingerprint != self.base_fingerprint:
            self.executor.with_base(self.base_fingerprint)
        return await self.executor.carry_out(order, wait_s, transfer)

    def settle(self, order: Settle) -> Answer:
        """Where a request stands (rule 10)."""
        return self.executor.give(order)

    # -- requests -------------------------------------------------------------------------------------

    def check(self, request: Any) -> None:
        """The first look at a request; RequestRefused ends it before SGLang knows of it."""
        self.screen.check(request)
        if not is_managed_request(request.lora_path):
            self.sessions.check(request, None)

    async def admit(self, request: Any) -> None:
        """Take one reference for each part of the request, or none and refuse (RFC 4.2).

        Everything that decides happens before the first await; the control lock is not touched.
        """
        parts = [(request.rid, request.lora_path)]
        if not isinstance(request.lora_path, str):
            parts = list(zip(request.rid, request.lora_path, strict=True))
        taken: list[str] = []
        try:
            for rid, name in parts:
                self.sessions.check(request, name or None)
                if name:
                    self._take(rid, name)
                    taken.append(rid)
        except RequestRefused:
            for rid in taken:
                self._drop(rid)
            raise
        ids = [self.side.lora_ids[name] if name else None for _, name in parts]
        request.lora_id = ids[0] if isinstance(request.lora_path, str) else ids
        for i, part in request.__dict__.get("_sub_obj_cache", {}).items():
            part.lora_id = ids[i]
        for rid in taken:
            if (held := self._held.get(rid)) is not None:
                await held.counter.increment(notify_all=False)
                held.counted = True

    def _take(self, rid: str, name: str) -> None:
        if self.faults:
            raise RequestRefused(GuardCode.GUARD_INACTIVE, self.faults[0])
        counter = self.side.counter(name)
        if rid in self.side.probes:
            self._held[rid] = Held(name, counter)
            return
        answer = self.executor.give(Acquire(rid=rid, lora_name=name))
        if isinstance(answer, Refused):
            raise RequestRefused(answer.code, answer.reason)
        try:
            self._rids.add(rid)
        except RequestRefused:
            self.executor.give(Release(rid=rid))
            raise
        self._held[rid] = Held(name, counter)

    def _drop(self, rid: str) -> Held | None:
        """Drop the reference at the request's first terminal; None at any later one."""
        held = self._held.pop(rid, None)
        if held is None:
            self.released_again += 1
            return None
        self._rids.discard(rid)
        self.executor.give(Release(rid=rid))
        self.released_once += 1
        return held

    def holds(self, rid: str) -> bool:
        """Whether this request has a reference of a managed version."""
        return rid in self._held

    def release(self, rid: str) -> asyncio.Task[None] | None:
        """A terminal of this request, whichever: its reference goes at the first one."""
        held = self._drop(rid)
        if held is None or not held.counted:
            return None
        task = asyncio.get_running_loop().create_task(held.counter.decrement())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def neighbours(self, rid: str) -> list[str]:
        """Other requests that SGLang's abort of `rid` would hit, where a managed one is among them."""
        others = [other for other in self._manager.rid_to_state if other != rid and other.startswith(rid)]
        return others if any(other in self._held for other in (rid, *others)) else []

    # -- the hooks ------------------------------------------------------------------------------------

    def hooked_classes(self) -> dict[str, type]:
        """SGLang's classes as they are now, for the self-test."""
        registry = self._manager.lora_registry
        from sglang.srt.utils import ConcurrentCounter

        return {
            "TokenizerManager": next(
                each for each in type(self._manager).__mro__ if each.__name__ == "TokenizerManager"
            ),
            "LoRARegistry": type(registry),
            "ConcurrentCounter": ConcurrentCounter,
        }

    def lost_hooks(self) -> tuple[str, ...]:
        """What somebody took away again after the guard was put in."""
        manager, faults = self._manager, []
        for name in OVERRIDDEN:
            method = getattr(type(manager), name, None)
            if name in vars(manager) or getattr(method, "__module__", "") != _HOOKS:
                faults.append(f"{name} is not the guard's any more")
        if any(is_managed(name) for name in manager.lora_ref_cache):
            faults.append("lora_ref_cache remembers managed names")
        server = sys.modules.get("sglang.srt.entrypoints.http_server")
        state = getattr(server, "_global_state", None)
        if state is not None and state.tokenizer_manager is not manager:
            faults.append("the HTTP server uses another tokenizer manager")
        return tuple(faults)

    # -- what is seen from outside --------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Everything the agent remembers, and who still holds each version."""
        agent = self.executor.agent
        held: dict[str, list[str]] = {}
        for rid, each in self._held.items():
            held.setdefault(each.lora_name, []).append(rid)
        return {
            "engine": agent.engine,
            "incarnation": agent.incarnation,
            "seq": agent.seq,
            "fence": agent.fence,
            "adapters": [
                {
                    "lora_name": name,
                    "state": str(adapter.state),
                    "number": adapter.number,
                    "refs": adapter.refs,
                    "sglang_count": counter.value() if (counter := self.side.counter(name)) is not None else None,
                    "held_by": held.get(name, [])[:_HELD_SHOWN],
                }
                for name, adapter in sorted(agent.adapters.items())
            ],
            "works": [
                {"number": work.number, "lora_name": work.lora_name, "state": str(work.state), "detail": work.detail}
                for _, work in sorted(agent.works.items())
            ],
            "closed": sorted(str(key) for key in agent.closed),
            "stash": str(self.executor.stash_folder),
            "quarantine": [each.reason for each in self.executor.quarantine],
            "released_once": self.released_once,
            "released_again": self.released_again,
        }

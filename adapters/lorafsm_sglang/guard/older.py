"""SGLang before 0.5.22 does not release each reference once; here the guard settles requests by what it sees itself.

Native releases of managed adapters are ignored.  A reference goes when the scheduler says that the request ended
(last output or abort echo, known to SGLang or not), or when the request failed before it was sent there.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterable
from typing import Any

from lorafsm_sglang.guard.guard import LoraGuard
from lorafsm_sglang.guard.versions import Supported


def settling(base: Any, supported: Supported) -> Any:
    """A subclass of SGLang's TokenizerManager `base` that tells the guard of each end of a request."""
    failure = "_release_req_states_on_failure"
    if not hasattr(base, failure):
        failure = "_discard_pending_req_states"

    class SettlingTokenizerManager(base):  # type: ignore[misc]
        lora_guard: LoraGuard

        def init_lora(self) -> None:
            super().init_lora()
            self._guard_sent: set[str] = set()
            native = self.lora_registry.release

            async def release(lora_id: Any) -> None:
                spent = self.lora_guard.side.spent_ids
                others = [each for each in _listed(lora_id) if each is not None and each not in spent]
                if others:
                    await native(others)

            self.lora_registry.release = release

        def _handle_abort_req(self, recv_obj: Any) -> Any:
            result = super()._handle_abort_req(recv_obj)
            self._guard_settle(recv_obj.rid)
            return result

        async def _handle_batch_output(self, recv_obj: Any) -> Any:
            result = await super()._handle_batch_output(recv_obj)
            for rid, reason in zip(recv_obj.rids, recv_obj.finished_reasons, strict=True):
                if reason is not None:
                    self._guard_settle(rid)
            return result

        def _guard_settle(self, rid: str) -> None:
            self._guard_sent.discard(rid)
            if self.lora_guard.holds(rid):
                self.lora_guard.release(rid)

    def sending(name: str) -> None:
        """Note which requests reached the scheduler: those are aborted, and end when it says so."""

        def note(self: Any, sent: Any) -> None:
            self._guard_sent.update(each.rid for each in _listed(sent) if self.lora_guard.holds(each.rid))

        native = getattr(base, name)
        if inspect.iscoroutinefunction(native):

            async def send(self: Any, sent: Any, *more: Any) -> Any:
                note(self, sent)  # before it is sent: an answer cannot overtake the note
                return await native(self, sent, *more)

            setattr(SettlingTokenizerManager, name, send)
        else:

            def send_now(self: Any, sent: Any, *more: Any) -> Any:
                note(self, sent)
                return native(self, sent, *more)

            setattr(SettlingTokenizerManager, name, send_now)

    def failed(self: Any, what: Any, *more: Any) -> Any:
        held = [rid for rid in _listed(getattr(what, "rid", what)) if self.lora_guard.holds(rid)]
        for rid in held:
            if rid in self._guard_sent:
                self.abort_request(rid)  # while SGLang still knows it; afterwards it would not be sent
        result = getattr(super(SettlingTokenizerManager, self), failure)(what, *more)
        for rid in held:
            if rid not in self._guard_sent:
                self._guard_settle(rid)
        return result

    async def generate_request(self: Any, obj: Any, request: Any = None) -> AsyncIterator[Any]:
        try:
            async for answer in super(SettlingTokenizerManager, self).generate_request(obj, request):
                yield answer
        except (asyncio.CancelledError, GeneratorExit):
            for rid in _listed(obj.rid):
                if self.lora_guard.holds(rid) and rid in self._guard_sent:
                    self.abort_request(rid)
                elif self.lora_guard.holds(rid):
                    self._guard_settle(rid)
            raise

    if not supported.aborts_cancelled:
        SettlingTokenizerManager.generate_request = generate_request
    for name in ("_send_one_request", "_send_batch_request"):
        sending(name)
    setattr(SettlingTokenizerManager, failure, failed)
    return SettlingTokenizerManager


def _listed(value: Any) -> list[Any]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        return [value]
    return list(value)

"""SGLang's TokenizerManager with the guard in it: a subclass, made from whichever class SGLang has.

Only entry points are overridden, each for one promise; everything else is SGLang's own code.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from sglang.srt.environ import envs
from sglang.srt.managers.io_struct import (
    CloseSessionReqInput,
    LoadLoRAAdapterFromTensorsReqOutput,
    LoadLoRAAdapterReqOutput,
    OpenSessionReqInput,
    UnloadLoRAAdapterReqOutput,
)

from lorafsm.identity import is_managed
from lorafsm_sglang.guard.admission import GuardCode, RequestRefused, is_managed_request
from lorafsm_sglang.guard.configuration import SETTINGS
from lorafsm_sglang.guard.guard import LoraGuard
from lorafsm_sglang.guard.session_cache import SessionCache, why_off
from lorafsm_sglang.guard.settings import GuardSettings
from lorafsm_sglang.guard.versions import Supported

log = logging.getLogger(__name__)


class ForgetsManagedNames(dict[str, Any]):
    """SGLang's memory of what it once loaded: without it there is no implicit reload."""

    def __setitem__(self, name: str, ref: Any) -> None:
        if not is_managed(name):
            super().__setitem__(name, ref)


def configuration_of(server_args: Any) -> dict[str, Any]:
    """The settings that the guard judges, as SGLang resolved them."""
    resolved = server_args.resolved_dict() if hasattr(server_args, "resolved_dict") else vars(server_args)
    chosen = {name: resolved[name] for name in SETTINGS if name in resolved}
    paths = chosen.get("lora_paths") or []
    rust = getattr(envs, "SGLANG_RUST_SERVER", None)  # older versions have none
    chosen["rust_server"] = rust is not None and bool(rust.get())
    chosen["lora_paths"] = [getattr(path, "lora_name", None) or str(path) for path in paths]
    return chosen


def guarded(base: Any, settings: GuardSettings, supported: Supported) -> Any:
    """A subclass of SGLang's TokenizerManager `base` that the guard stands in."""

    class GuardedTokenizerManager(base):  # type: ignore[misc]
        guarded_from = base
        lora_guard: LoraGuard
        session_cache: SessionCache
        lora_ref_cache: dict[str, Any]

        def __init__(self, server_args: Any, port_args: Any, *args: Any, **more: Any) -> None:
            self._guard_arguments = server_args
            super().__init__(server_args, port_args, *args, **more)
            from lorafsm_sglang.guard.routes import install
            from lorafsm_sglang.guard.session_cache import install_sessions

            if install(self.lora_guard):
                install_sessions(self.session_cache, settings.token)

        def init_lora(self) -> None:
            from sglang import __version__ as sglang_version

            from lorafsm_torch import ArtifactStore, Replica

            super().init_lora()
            self.lora_ref_cache = ForgetsManagedNames(
                {name: ref for name, ref in self.lora_ref_cache.items() if not is_managed(name)}
            )
            source = Replica(ArtifactStore(settings.store), settings.host)
            self.lora_guard = LoraGuard(
                self, settings, configuration_of(self._guard_arguments), source, listing=supported.lists_by_unload
            )
            off = why_off(sglang_version, self._guard_arguments)
            self.session_cache = SessionCache(off, self._open_in_cache, self._close_in_cache)
            self._guard_calls: set[asyncio.Task[Any]] = set()

        # -- requests ---------------------------------------------------------------------------------

        def generate_request(self, obj: Any, request: Any = None) -> Any:
            self.lora_guard.check(obj)
            self.session_cache.check(obj)
            return super().generate_request(obj, request)

        async def _resolve_lora_path(self, obj: Any) -> None:
            if is_managed_request(obj.lora_path):
                await self.lora_guard.admit(obj)
            else:
                await super()._resolve_lora_path(obj)

        def _release_lora_once(self, state: Any) -> Any:
            if state.lora_released:
                return None
            rid = state.obj.rid
            if self.lora_guard.holds(rid):
                state.lora_released = True
                return self.lora_guard.release(rid)
            if state.obj.lora_id is None or is_managed_request(state.obj.lora_path):
                state.lora_released = True  # it never took a reference (native 0.5.23 would drop another's)
                return None
            return super()._release_lora_once(state)

        def abort_request(self, rid: str = "", abort_all: bool = False) -> None:
            if rid and not abort_all and (neighbours := self.lora_guard.neighbours(rid)):
                log.warning("abort of %s is not sent: SGLang would also abort %s", rid, neighbours[0])
                return
            super().abort_request(rid, abort_all)

        # -- sessions ---------------------------------------------------------------------------------

        async def _open_in_cache(self, engine_id: str) -> Any:
            return await super().open_session(OpenSessionReqInput(capacity_of_str_len=0, session_id=engine_id))

        async def _close_in_cache(self, engine_id: str) -> None:
            await super().close_session(CloseSessionReqInput(session_id=engine_id))

        async def open_session(self, obj: Any, request: Any = None) -> Any:
            self.session_cache.check_foreign(obj.session_id)
            session = await super().open_session(obj, request)
            if session is not None:
                self.lora_guard.sessions.close(session)  # an earlier session of this id timed out
            return session

        async def close_session(self, obj: Any, request: Any = None) -> Any:
            self.session_cache.check_foreign(obj.session_id)
            self.lora_guard.sessions.close(obj.session_id)
            return await super().close_session(obj, request)

        # -- ordinary control routes ------------------------------------------------------------------

        async def load_lora_adapter(self, obj: Any, _: Any = None) -> Any:
            if refused := self._refuse_load(obj):
                return LoadLoRAAdapterReqOutput(success=False, error_message=refused)
            return await self._uncancelled(super().load_lora_adapter(obj, _))

        async def load_lora_adapter_from_tensors(self, obj: Any, _: Any = None) -> Any:
            if refused := self._refuse_load(obj):
                return LoadLoRAAdapterFromTensorsReqOutput(success=False, error_message=refused)
            return await self._uncancelled(super().load_lora_adapter_from_tensors(obj, _))

        async def unload_lora_adapter(self, obj: Any, _: Any = None) -> Any:
            if is_managed(obj.lora_name or ""):
                return UnloadLoRAAdapterReqOutput(success=False, error_message=_MANAGED)
            return await self._uncancelled(super().unload_lora_adapter(obj, _))

        async def _unload_lora_adapter_locked(self, obj: Any) -> Any:
            if is_managed(obj.lora_name or ""):  # the LRU eviction would come this way
                raise ValueError(_MANAGED)
            return await super()._unload_lora_adapter_locked(obj)

        def _refuse_load(self, obj: Any) -> str | None:
            if is_managed(obj.lora_name or ""):
                return _MANAGED
            if not settings.unmanaged:
                return f"{GuardCode.UNMANAGED_REFUSED}: this engine serves managed adapters only"
            if obj.pinned:
                return f"{GuardCode.UNMANAGED_REFUSED}: the pinned slots are the managed adapters'"
            return None

        async def _uncancelled(self, call: Coroutine[Any, Any, Any]) -> Any:
            # The reply of a cancelled control call goes to the next one (native 0.5.23).
            task = asyncio.create_task(call)
            self._guard_calls.add(task)
            task.add_done_callback(self._guard_calls.discard)
            return await asyncio.shield(task)

        # -- base weights -----------------------------------------------------------------------------

        async def update_weights_from_disk(self, obj: Any, request: Any = None) -> Any:
            if self.lora_guard.executor.in_use:
                return False, _IN_USE, 0
            return self._noted("disk", obj, await super().update_weights_from_disk(obj, request))

        async def update_weights_from_distributed(self, obj: Any, request: Any = None) -> Any:
            if self.lora_guard.executor.in_use:
                return False, _IN_USE
            return self._noted("distributed", obj, await super().update_weights_from_distributed(obj, request))

        async def update_weights_from_tensor(self, obj: Any, request: Any = None) -> Any:
            if self.lora_guard.executor.in_use:
                return False, _IN_USE
            return self._noted("tensor", obj, await super().update_weights_from_tensor(obj, request))

        async def update_weights_from_ipc(self, obj: Any, request: Any = None) -> Any:
            if self.lora_guard.executor.in_use:
                return False, _IN_USE
            return self._noted("ipc", obj, await super().update_weights_from_ipc(obj, request))

        async def begin_weight_update(self, obj: Any, request: Any = None) -> Any:
            if self.lora_guard.executor.in_use:
                return False, _IN_USE
            return await super().begin_weight_update(obj, request)

        async def release_memory_occupation(self, obj: Any, request: Any = None) -> Any:
            if self.lora_guard.executor.in_use:
                raise RequestRefused(GuardCode.BASE_IN_USE, "managed versions are here; reclaim them first")
            return await super().release_memory_occupation(obj, request)

        def _noted(self, route: str, obj: Any, result: Any) -> Any:
            # Also a failed one may have written some weights.
            self.lora_guard.base_changed(route, getattr(obj, "weight_version", None))
            return result

    GuardedTokenizerManager.__qualname__ = GuardedTokenizerManager.__name__ = "GuardedTokenizerManager"
    return GuardedTokenizerManager


_MANAGED = f"{GuardCode.MANAGED_NAME}: managed adapters are loaded and unloaded by the publisher's orders only"
_IN_USE = f"{GuardCode.BASE_IN_USE}: managed versions rest on the base weights; reclaim them first"

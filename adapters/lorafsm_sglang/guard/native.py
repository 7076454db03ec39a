"""What the executor asks of SGLang's own tokenizer manager; imported only in SGLang's process.

Loads and unloads go straight to the scheduler's serialised channel and never take `lora_update_lock`: a native
unload that waits for its own requests holds that lock, and would block other versions (a native defect).
"""

from __future__ import annotations

import asyncio
import time
import uuid
from contextlib import aclosing
from pathlib import Path
from typing import Any

from attrs import define, field
from sglang.srt.lora.lora_registry import LoRARef
from sglang.srt.managers.io_struct import GenerateReqInput, LoadLoRAAdapterReqInput, UnloadLoRAAdapterReqInput

from lorafsm.identity import is_managed
from lorafsm_sglang.guard.executor import Loaded
from lorafsm_sglang.port import PROBE_INPUT_IDS

_PROBE_DEADLINE_S = 60.0
_ZERO_WAIT_S = 1.0
_ZERO_POLL_S = 0.005


@define
class NativeSide:
    """One SGLang process, through its TokenizerManager `manager`."""

    manager: Any
    lists_by_unload: bool = True  # whether SGLang survives the unload of an id that nobody has
    lora_ids: dict[str, str] = field(factory=dict)  # SGLang's id of each managed adapter here
    spent_ids: set[str] = field(factory=set)  # every id that KV blocks may still lie under
    probes: set[str] = field(factory=set)  # rids of our own probes
    _calls: set[asyncio.Task[Any]] = field(factory=set)

    def counter(self, lora_name: str) -> Any:
        """SGLang's counter of the adapter's requests, or None."""
        return self.manager.lora_registry._counters.get(self.lora_ids.get(lora_name))

    async def load(self, lora_name: str, folder: Path) -> Loaded:
        """One fresh pinned load; a load that failed on the way is taken back, and what remains is observed."""
        ref = LoRARef(lora_name=lora_name, lora_path=str(folder), pinned=True)
        order = LoadLoRAAdapterReqInput(lora_name=lora_name, lora_path=str(folder), pinned=True, lora_id=ref.lora_id)
        self.lora_ids[lora_name] = ref.lora_id
        self.spent_ids.add(ref.lora_id)
        replies = await self._ask(order)
        fault = next((str(r.error_message) for r in replies if not r.success), None)
        if fault is None and all(lora_name in (r.loaded_adapters or {}) for r in replies):
            await self.manager.lora_registry.register(ref)
            return Loaded(True)
        fault = fault or "SGLang said success and does not list it"
        if any(lora_name in (r.loaded_adapters or {}) for r in replies) and not await self.unload(lora_name):
            return Loaded(True, fault)
        self.lora_ids.pop(lora_name, None)
        return Loaded(False, fault)

    async def probe(self, lora_name: str) -> str | None:
        """One token under exactly the id that was just loaded."""
        rid = uuid.uuid4().hex
        request = GenerateReqInput(
            input_ids=list(PROBE_INPUT_IDS),
            sampling_params={"max_new_tokens": 1, "temperature": 0.0},
            lora_path=lora_name,
            rid=rid,
        )
        self.probes.add(rid)
        try:
            async with asyncio.timeout(_PROBE_DEADLINE_S), aclosing(self.manager.generate_request(request)) as answers:
                answer = await anext(answers)
        except TimeoutError:
            return f"the probe did not end within {_PROBE_DEADLINE_S:.0f} s"
        except Exception as error:  # whatever SGLang raises: the version is then not proved
            return f"the probe failed: {type(error).__name__}: {error}"
        finally:
            self.probes.discard(rid)
        ended = answer["meta_info"]["finish_reason"]["type"]
        if ended not in ("length", "stop"):
            return f"the probe ended with {ended}"
        if request.lora_id != self.lora_ids.get(lora_name):
            return "the probe ran on another adapter"
        return None

    async def unregister(self, lora_name: str) -> None:
        """Take the name out of SGLang's registry, if it is there."""
        if lora_name in self.manager.lora_registry.get_all_adapters():
            await self.manager.lora_registry.unregister(lora_name)

    async def count(self, lora_name: str) -> int | None:
        """SGLang's counter, and the requests that SGLang itself still knows; a little patience for the last release."""
        lora_id, counter = self.lora_ids.get(lora_name), self.counter(lora_name)
        if lora_id is None or counter is None:
            return None
        end = time.monotonic() + _ZERO_WAIT_S
        while True:
            count = int(counter.value())
            if count >= 0:
                count = max(count, self._states(lora_id))
            if count <= 0 or time.monotonic() > end:
                return count
            await asyncio.sleep(_ZERO_POLL_S)

    async def unload(self, lora_name: str) -> bool:
        """The physical unload; absent only if every rank listed what it holds and the name is not among it."""
        lora_id = self.lora_ids.get(lora_name)
        if lora_id is None:
            return lora_name not in (await self.listing() or {lora_name})
        self.manager.lora_registry._counters.pop(lora_id, None)
        replies = await self._ask(UnloadLoRAAdapterReqInput(lora_name=lora_name, lora_id=lora_id))
        absent = all(r.success and lora_name not in (r.loaded_adapters or {}) for r in replies)
        if absent:
            self.lora_ids.pop(lora_name, None)
        return absent

    async def listing(self) -> frozenset[str] | None:
        """Ask the scheduler: the unload of an id that nobody has changes nothing and lists everything.

        Where that would end the scheduler, what this process was told is all there is.
        """
        if not self.lists_by_unload:
            return frozenset(name for name in self.manager.lora_registry.get_all_adapters() if is_managed(name))
        replies = await self._ask(UnloadLoRAAdapterReqInput(lora_name="lorafsm-listing", lora_id=uuid.uuid4().hex))
        if any(r.loaded_adapters is None for r in replies):
            return None
        return frozenset(name for r in replies for name in r.loaded_adapters if is_managed(name))

    def _states(self, lora_id: str) -> int:
        return sum(state.obj.lora_id == lora_id for state in self.manager.rid_to_state.values())

    async def _ask(self, order: Any) -> list[Any]:
        """One control call in a task of its own: a cancelled one gives its reply to the next (a native defect)."""
        self.manager.auto_create_handle_loop()
        task = asyncio.create_task(self.manager.update_lora_adapter_communicator(order))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        replies: list[Any] = await asyncio.shield(task)
        return replies

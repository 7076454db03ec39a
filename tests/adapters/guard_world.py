"""SGLang's real TokenizerManager, with or without the guard, beside a stand-in scheduler; what its scenarios share."""

from __future__ import annotations

import asyncio
import importlib
import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sglang.srt.lora.lora_registry import LoRARef
from sglang.srt.managers import io_struct as io
from sglang.srt.managers import tokenizer_manager as tm_module
from sglang.srt.server_args import PortArgs, ServerArgs

from lorafsm.identity import VersionKey, lora_name
from lorafsm.manifest import store_plan
from lorafsm.orders import Begin, End, Unload
from lorafsm_sglang.guard.plugin import guarded_class
from lorafsm_sglang.guard.settings import settings_from
from lorafsm_sglang.tiny_model import lora_fixture, write_lora
from lorafsm_torch import ArtifactStore, freeze_snapshot
from tests.adapters.guard_scheduler import Scheduler


class Gone:
    """A client that disconnects when told."""

    headers: dict[str, str] = {}

    def __init__(self) -> None:
        self.gone = False

    async def is_disconnected(self) -> bool:
        return self.gone


class World:
    """One tokenizer manager and its scheduler; adapters by letters, managed ones where the guard is."""

    def __init__(self, model: Path, folder: Path, guard: bool, seeds: tuple[LoRARef, ...] = ()) -> None:
        args = ServerArgs(
            model_path=str(model),
            device="cpu",
            skip_tokenizer_init=True,
            enable_lora=True,
            max_lora_rank=8,
            lora_target_modules=["q_proj"],
            max_loras_per_batch=3,
            max_loaded_loras=3,
            lora_strict_loading=True,
            disable_overlap_schedule=True,
            context_length=64,
            lora_paths=list(seeds) or None,
        )
        publish = getattr(importlib.import_module("sglang.srt.runtime_context"), "publish", None)
        if publish is not None:  # 0.5.17 and later
            publish(args, role="tokenizer")
        ports = PortArgs.init_new(args)
        settings = settings_from(os.environ)
        assert settings is not None
        kind = guarded_class(tm_module.TokenizerManager, settings) if guard else tm_module.TokenizerManager
        self.tm = kind(args, ports)
        self.guard = self.tm.lora_guard if guard else None
        self.settings, self.folder = settings, folder
        self.scheduler = Scheduler(ports)
        self.numbers = iter(range(1, 10_000))
        self.versions: dict[str, Any] = {}

    async def start(self) -> None:
        self.pump = asyncio.create_task(self.scheduler.run())
        self.tm.auto_create_handle_loop()
        if self.guard is not None:
            await until(lambda: self.guard.base_fingerprint is not None)

    async def load(self, letter: str) -> str:
        """A fresh adapter with these weights; its name."""
        number = next(self.numbers)
        if self.guard is None:
            name = f"{letter}-{number}"
            path = write_lora(self.folder / name, letter)
            done = await self.tm.load_lora_adapter(io.LoadLoRAAdapterReqInput(lora_name=name, lora_path=str(path)))
            assert done.success, done
            return name
        snapshot = freeze_snapshot(*reversed(lora_fixture(letter)))
        key = VersionKey(self.settings.epoch, number)
        name = lora_name(key, snapshot.digest)
        ArtifactStore(self.settings.store).put(key, snapshot)
        self.versions[name] = {"key": key, "digest": snapshot.digest, "lora_name": name}
        order = {**self.who, **self.versions[name], "number": number}
        for each in (Begin(**order, plan=store_plan()), End(**order)):
            answer = await self.guard.carry_out(each, 10)
            assert answer.ok, answer
        return name

    @property
    def who(self) -> dict[str, Any]:
        agent = self.guard.executor.agent
        return {"epoch": agent.epoch, "engine": agent.engine, "incarnation": agent.incarnation}

    async def unload(self, name: str, wait_s: float = 2.0) -> str:
        """How the unload ended: done, pending after `wait_s` seconds, or refused."""
        if self.guard is None:
            call = self.tm.unload_lora_adapter(io.UnloadLoRAAdapterReqInput(lora_name=name))
            try:
                return "done" if (await asyncio.wait_for(call, wait_s)).success else "refused"
            except TimeoutError:
                return "pending"
        answer = await self.guard.carry_out(
            Unload(**self.who, **self.versions[name], reclaim_id=f"r-{name[-20:]}"), wait_s
        )
        return {"Unloaded": "done", "Pending": "pending"}.get(type(answer).__name__, "refused")

    def refs(self, name: str) -> int:
        """SGLang's own count of requests on the adapter."""
        ref = self.tm.lora_registry.get_all_adapters()[name]
        return self.tm.lora_registry._counters[ref.lora_id].value()

    def ask(self, name: Any, *, tokens: int = 4, request: Any = None, **more: Any) -> asyncio.Task[Any]:
        """A request that runs until the scheduler ends it; the task's `rid` is its rid."""
        rid = more.pop("rid", None) or uuid.uuid4().hex
        parameters = {"max_new_tokens": 8, **more.pop("sampling", {})}
        prompt = more.pop("input_ids", [5] * tokens)
        item = io.GenerateReqInput(input_ids=prompt, sampling_params=parameters, lora_path=name, rid=rid, **more)

        async def go() -> Any:
            answers = []
            async for answer in self.tm.generate_request(item, request):
                answers.append(answer)
            return answers

        task = asyncio.create_task(go())
        task.rid = rid  # type: ignore[attr-defined]
        return task

    async def running(self, task: Any) -> None:
        await until(lambda: task.rid in self.scheduler.running)


async def until(condition: Callable[[], Any], deadline_s: float = 5.0) -> bool:
    """Whether the condition came true in time."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.005)
    return True


async def ended(task: Any) -> str:
    """How a request's task ended, in one word."""
    done, _ = await asyncio.wait({task}, timeout=8)  # SGLang looks for a disconnect every 4 s
    if not done:
        return "open"
    if task.cancelled():
        return "cancelled"
    error = task.exception()
    return "answered" if error is None else str(error).partition(":")[0].partition(" ")[0]

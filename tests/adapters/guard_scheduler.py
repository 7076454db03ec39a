"""SGLang's real TokenizerManager, with or without the guard, beside a stand-in scheduler that ends requests as told.

Run as a program with the engine's environment: each scenario prints one JSON line of what was seen.  The sockets,
the message types and everything in the tokenizer process are SGLang's own; only the scheduler's answers are made up,
because a real one cannot be told to answer 503 twice.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import importlib
import json
import os
import sys
import time
import uuid
from array import array
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import zmq
import zmq.asyncio
from sglang.srt.managers import io_struct as io
from sglang.srt.managers import tokenizer_manager as tm_module
from sglang.srt.server_args import PortArgs, ServerArgs

from lorafsm.engine.answers import Refused
from lorafsm.identity import VersionKey, lora_name
from lorafsm.manifest import store_plan
from lorafsm.orders import Begin, End, Unload
from lorafsm_sglang.guard.plugin import TARGET, activate, guarded_class
from lorafsm_sglang.guard.settings import LAUNCHER, settings_from
from lorafsm_sglang.tiny_model import lora_fixture, write_lora
from lorafsm_torch import ArtifactStore, freeze_snapshot
from tests.adapters.guard_scheduler_ends import ENDS

STOP = {"type": "stop", "matched": None}


def end_with(code: int) -> dict[str, Any]:
    return {"type": "abort", "message": f"made up {code}", "status_code": code}


def message(kind: Any, **known: Any) -> Any:
    """A message of SGLang with these fields, None in the others that it needs."""
    if dataclasses.is_dataclass(kind):  # before 0.5.17
        needed = [
            f.name
            for f in dataclasses.fields(kind)
            if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        ]
    else:
        needed = [f.name for f in msgspec.structs.fields(kind) if f.required]
    return kind(**known, **{name: None for name in needed if name not in known})


class Scheduler:
    """Answers over the real sockets.  Requests run until `end` or `echo` is called, probes end at once."""

    def __init__(self, ports: PortArgs) -> None:
        context = zmq.asyncio.Context.instance()
        self._from, self._to = context.socket(zmq.PULL), context.socket(zmq.PUSH)
        self._from.connect(ports.scheduler_input_ipc_name)
        self._to.connect(ports.tokenizer_ipc_name)
        self.adapters: dict[str, Any] = {}
        self.running: dict[str, Any] = {}
        self.received: list[str] = []
        self.loads = self.unloads = 0
        self.on_abort: str = "echo"  # echo: as from the waiting queue; end: as when it ran; drop: no answer
        self.load_delay_s = 0.0
        self.fault: str | None = None

    async def run(self) -> None:
        while True:
            receive = getattr(io, "async_sock_recv", None)  # before 0.5.17 messages were pickled
            await self._take(await (receive(self._from) if receive else self._from.recv_pyobj()))

    async def _take(self, item: Any) -> None:
        kind = type(item).__name__
        if kind == "LoadLoRAAdapterReqInput":
            await asyncio.sleep(self.load_delay_s)
            fault, self.fault = self.fault, None
            if fault is None:
                self.loads += 1
                self.adapters[item.lora_id] = item
            await self._lora(fault)
        elif kind == "UnloadLoRAAdapterReqInput":
            self.unloads += self.adapters.pop(item.lora_id, None) is not None
            await self._lora(None)
        elif kind == "TokenizedGenerateReqInput":
            self.received.append(item.rid)
            self.running[item.rid] = item
            if item.sampling_params.max_new_tokens == 1:
                await self.end(item.rid)
        elif kind == "BatchTokenizedGenerateReqInput":
            for each in item.batch:
                await self._take(each)
        elif kind == "AbortReq":
            for rid in [r for r in self.running if item.abort_all or r.startswith(item.rid)]:
                if self.on_abort == "echo":
                    await self.echo(rid)
                elif self.on_abort == "end":
                    await self.end(rid, {"type": "abort", "message": "aborted"})

    async def _lora(self, fault: str | None) -> None:
        listed = {each.lora_name: each.lora_path for each in self.adapters.values()}
        await self._send(io.LoRAUpdateOutput(success=fault is None, error_message=fault, loaded_adapters=listed))

    async def end(self, rid: str, reason: dict[str, Any] = STOP, *, keep: bool = False) -> None:
        """A last batch output of this request."""
        if not keep:
            self.running.pop(rid, None)
        counts = {"prompt_tokens": [1], "completion_tokens": [1], "reasoning_tokens": [0], "cached_tokens": [0]}
        output = {"output_strs": ["x"], "output_ids": [array("q", [5])], "retraction_counts": [0]}
        await self._send(message(io.BatchStrOutput, rids=[rid], finished_reasons=[reason], **counts, **output))

    async def echo(self, rid: str, reason: dict[str, Any] | None = None, *, keep: bool = False) -> None:
        """An abort echo, as for a request that never ran."""
        if not keep:
            self.running.pop(rid, None)
        await self._send(io.AbortReq(rid=rid, **({"finished_reason": reason} if reason else {})))

    async def _send(self, item: Any) -> None:
        send = getattr(io, "async_sock_send", None)
        await (send(self._to, item) if send else self._to.send_pyobj(item))


class Gone:
    """A client that disconnects when told."""

    headers: dict[str, str] = {}

    def __init__(self) -> None:
        self.gone = False

    async def is_disconnected(self) -> bool:
        return self.gone


class World:
    """One tokenizer manager and its scheduler; adapters by letters, managed ones where the guard is."""

    def __init__(self, model: Path, folder: Path, guard: bool) -> None:
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


async def end_of_one(world: World, how: str) -> dict[str, Any]:
    """r2 runs; r1 ends as `how` says; r2 ends; the adapter is unloaded (RFC 7.1)."""
    scheduler = world.scheduler
    name = await world.load("A")
    r2 = world.ask(name)
    await world.running(r2)
    gone = Gone()
    early = {"over context": {"tokens": 100}, "bad sampling": {"sampling": {"top_p": 7.0}}}.get(how, {})
    r1 = world.ask(name, request=gone if how.startswith("gone") else None, **early)
    during = None
    if not early:
        await world.running(r1)
        during = world.refs(name)
    scheduler.on_abort = "end" if how.endswith("running") else "echo"
    match how:
        case "finish" | "finish, late echo" | "finish twice":
            await scheduler.end(r1.rid)
            if how == "finish, late echo":
                await scheduler.echo(r1.rid)
            elif how == "finish twice":
                await scheduler.end(r1.rid)
        case "echo, late finish":
            await scheduler.echo(r1.rid)
            await scheduler.end(r1.rid)
        case "400 output" | "500 output" | "503 output":
            await scheduler.end(r1.rid, end_with(int(how[:3])))
        case "400 echo" | "500 echo" | "503 echo":
            await scheduler.echo(r1.rid, end_with(int(how[:3])))
        case "abort queued" | "abort running":
            world.tm.abort_request(r1.rid)
        case "gone queued" | "gone running":
            gone.gone = True
        case "cancelled queued" | "cancelled running":
            r1.cancel()
    ending = await ended(r1)
    settled = await until(lambda: world.refs(name) == 1, 3)
    after = world.refs(name)
    held = "pending"
    if not settled or world.guard is None:
        held = "not asked"
    else:
        held = await world.unload(name, 0.1)
    await scheduler.end(r2.rid)
    await ended(r2)
    await asyncio.sleep(0.02)
    unloaded = await world.unload(name, 2)
    scheduler.on_abort = "echo"
    return {
        "during": during,
        "after": after,
        "r1": ending,
        "unload while r2 runs": held,
        "unload": unloaded,
        "states left": len(world.tm.rid_to_state),
    }


async def late_after(world: World) -> dict[str, Any]:
    """A request of a version that is unloaded."""
    name = await world.load("A")
    await world.unload(name)
    loads = world.scheduler.loads
    late = world.ask(name)
    if world.guard is None:
        await world.running(late)
        await world.scheduler.end(late.rid)
    return {"late": await ended(late), "loads": world.scheduler.loads - loads}


async def late_during(world: World) -> dict[str, Any]:
    """A request of a version whose unload waits; the control lock is free meanwhile."""
    name = await world.load("A")
    r1 = world.ask(name)
    await world.running(r1)
    unload = asyncio.create_task(world.unload(name, 5))
    await until(lambda: name not in world.tm.lora_registry.get_all_adapters())
    loads, start = world.scheduler.loads, time.monotonic()
    late = world.ask(name)
    at_once = await until(late.done, 0.5)
    locked = world.tm.lora_update_lock.locked()
    waited = time.monotonic() - start
    await world.scheduler.end(r1.rid)
    outcome = await unload
    await until(lambda: late.done() or late.rid in world.scheduler.running, 2)
    if not late.done():
        await world.scheduler.end(late.rid)
    return {
        "late": await ended(late),
        "at once": at_once and waited < 0.5,
        "control lock held": locked,
        "unload": outcome,
        "loads": world.scheduler.loads - loads,
    }


async def foreign_lora_id(world: World) -> dict[str, Any]:
    """A bad name with a live adapter's id."""
    name = await world.load("A")
    r1 = world.ask(name)
    await world.running(r1)
    live = world.tm.lora_registry.get_all_adapters()[name].lora_id
    missing = f"{name[:-4]}0000" if world.guard is not None else "never-loaded"
    bad = await ended(world.ask(missing, lora_id=live))
    await asyncio.sleep(0.05)
    after = world.refs(name)
    await world.scheduler.end(r1.rid)
    await ended(r1)
    await asyncio.sleep(0.02)
    return {"bad": bad, "refs": after, "unload": await world.unload(name)}


async def cancelled_load(world: World) -> dict[str, Any]:
    """The caller of an ordinary load goes away; the next control call must not read its reply."""
    folder = write_lora(world.folder / f"gone-{next(world.numbers)}", "B")
    world.scheduler.load_delay_s = 0.3
    order = io.LoadLoRAAdapterReqInput(lora_name=f"visitor-{next(world.numbers)}", lora_path=str(folder))
    call = asyncio.create_task(world.tm.load_lora_adapter(order))
    await asyncio.sleep(0.05)
    call.cancel()
    await asyncio.wait({call})
    if world.guard is not None:
        name = await world.load("A")
    else:
        name = f"B-{next(world.numbers)}"
        second = io.LoadLoRAAdapterReqInput(lora_name=name, lora_path=str(folder))
        await world.tm.load_lora_adapter(second)
    there = any(each.lora_name == name for each in world.scheduler.adapters.values())
    world.scheduler.load_delay_s = 0.0
    await asyncio.sleep(0.6)
    return {"in the scheduler when the load was answered": there}


async def batch(world: World) -> dict[str, Any]:
    """Two requests in one call, the second too long: neither leaves a reference."""
    name = await world.load("A")
    both = world.ask([name, None], input_ids=[[5] * 4, [5] * 100], rid=["b" * 32, "c" * 32])
    outcome = await ended(both)
    await until(lambda: not world.scheduler.running, 1)
    return {"batch": outcome, "refs": world.refs(name), "unload": await world.unload(name)}


async def samples(world: World) -> dict[str, Any]:
    """n = 4 on one adapter."""
    name = await world.load("A")
    return {"outcome": await ended(world.ask(name, sampling={"n": 4})), "refs": world.refs(name)}


async def samples_part(world: World) -> dict[str, Any]:
    """n = 4, and the third sample cannot be sent: what is left when the two that were sent have ended."""
    name = await world.load("A")
    send, calls = world.tm._send_one_request, 0

    async def fails(item: Any) -> None:
        nonlocal calls
        calls += item.sampling_params.max_new_tokens > 0  # the common prefix is warmed up with none
        if calls == 3:
            raise OSError("made up: the socket is gone")
        await send(item)

    world.tm._send_one_request = fails
    task = world.ask(name, sampling={"n": 4})
    try:
        await until(lambda: task.done() or world.scheduler.running, 2)
        for _ in range(2):  # the warm-up, then the samples
            for rid in list(world.scheduler.running):
                await world.scheduler.end(rid)
            await until(lambda: task.done(), 0.5)
    finally:
        world.tm._send_one_request = send
    outcome = await ended(task)
    await until(lambda: world.refs(name) == 0, 1)
    return {"outcome": outcome, "refs": world.refs(name), "unload": await world.unload(name, 0.5)}


async def lost_tasks(world: World) -> dict[str, Any]:
    """Errors that nobody learns of: the release of an unknown name, and of an adapter that was unloaded too early."""
    lost: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, about: lost.append(type(about.get("exception")).__name__))
    name = await world.load("A")
    await ended(world.ask(f"{name[:-4]}0000"))
    gc.collect()
    unknown = list(lost)
    r1 = world.ask(name)
    await world.running(r1)
    live = world.tm.lora_registry.get_all_adapters()[name].lora_id
    await ended(world.ask(f"{name[:-4]}0001", lora_id=live))
    await asyncio.sleep(0.05)
    lost.clear()
    early = await world.unload(name, 0.3)
    await world.scheduler.end(r1.rid)
    await ended(r1)
    await until(lambda: bool(lost), 0.5)
    gc.collect()
    loop.set_exception_handler(None)
    late = await world.unload(name)
    return {"unknown name": unknown, "unload while r1 runs": early, "after": list(lost), "unload": late}


async def failed_load(world: World) -> dict[str, Any]:
    """SGLang refuses a load: the agent says so and nothing is left."""
    snapshot = freeze_snapshot(*reversed(lora_fixture("C")))
    number = next(world.numbers)
    key = VersionKey(world.settings.epoch, number)
    ArtifactStore(world.settings.store).put(key, snapshot)
    what = {**world.who, "key": key, "digest": snapshot.digest, "lora_name": lora_name(key, snapshot.digest)}
    world.scheduler.fault = "made up: rank too large"
    await world.guard.carry_out(Begin(**what, number=number, plan=store_plan()), 10)
    answer = await world.guard.carry_out(End(**what, number=number), 10)
    assert not isinstance(answer, Refused)
    return {
        "answer": type(answer).__name__,
        "reason": getattr(answer, "reason", ""),
        "left": len(world.scheduler.adapters),
    }


async def sessions(world: World) -> dict[str, Any]:
    """One SGLang session, two versions."""
    a, b = await world.load("A"), await world.load("B")
    session = {"session_params": {"id": "s1"}}
    first = world.ask(a, **session)
    await world.running(first)
    seen = {"other version": await ended(world.ask(b, **session)), "base": await ended(world.ask(None, **session))}
    await world.scheduler.end(first.rid)
    await ended(first)
    await world.tm.close_session(io.CloseSessionReqInput(session_id="s1"))
    again = world.ask(b, **session)
    await world.running(again)
    await world.scheduler.end(again.rid)
    seen["after it was closed"] = await ended(again)
    for name in (a, b):
        await world.unload(name)
    return seen


async def model_names(world: World) -> dict[str, Any]:
    """OpenAI's `model`: a managed name without a base in front of it."""
    from sglang.srt.entrypoints.openai.serving_base import OpenAIServingBase

    from lorafsm_sglang.guard.routes import read_model_names

    class Serving(OpenAIServingBase):
        def __init__(self) -> None:
            self.tokenizer_manager = world.tm

        _convert_to_internal_request = _request_id_prefix = None

    name = await world.load("A")
    serving = Serving()
    native = serving._resolve_lora_path(name, None)
    read_model_names()
    asked = (name, f"base:{name}", "base", "base:visitor")
    return {"native": native, "guarded": [serving._resolve_lora_path(model, None) for model in asked], "name": name}


async def plugin_twice(world: World) -> dict[str, Any]:
    """The entry point is seen twice: from what is installed, and from PYTHONPATH."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    os.environ.pop(LAUNCHER, None)
    activate()
    activate()
    return {"hooks": len(HookRegistry._hooks.pop(TARGET))}


async def stress(world: World) -> dict[str, Any]:
    """60 requests that end in every way, all at once."""
    name = await world.load("A")
    released = world.guard.released_once
    tasks = [world.ask(name, **({"tokens": 100} if i % 5 == 0 else {})) for i in range(60)]
    await until(lambda: len(world.scheduler.running) == 48)
    for i, task in enumerate(tasks):
        if i % 5 == 1:
            await world.scheduler.end(task.rid)
            await world.scheduler.echo(task.rid)
        elif i % 5 == 2:
            await world.scheduler.end(task.rid, end_with(503))
        elif i % 5 == 3:
            task.cancel()
        elif i % 5 == 4:
            await world.scheduler.echo(task.rid, end_with(500))
            await world.scheduler.end(task.rid)
    await asyncio.wait(tasks, timeout=5)
    await until(lambda: world.refs(name) == 0)
    return {
        "refs": world.refs(name),
        "dropped": world.guard.released_once - released,
        "unload": await world.unload(name),
        "states left": len(world.tm.rid_to_state),
    }


async def cost(world: World) -> dict[str, Any]:
    """What the guard does for one request: steps of the agent, and CPU time of its own code in µs.

    The time is the least of five medians of 200: a core that is shared with others is two or three times slower at
    times; the least is what the code takes.
    """
    name = await world.load("A")
    given: list[str] = []
    give = world.guard.executor.give

    def noted(item: Any) -> Any:
        given.append(type(item).__name__)
        return give(item)

    world.guard.executor.give = noted
    await _pass_through(world, name)
    del world.guard.executor.give
    medians = []
    for _ in range(5):
        seen = [await _pass_through(world, name) for _ in range(200)]
        medians.append(sorted(seen)[len(seen) // 2])
    await world.unload(name)
    return {"steps": given, "cpu_us": min(medians)}


async def _pass_through(world: World, name: str) -> float:
    """A request comes to the guard and ends; the µs of processor time that it took."""
    item = io.GenerateReqInput(input_ids=[5], sampling_params={}, lora_path=name, rid=uuid.uuid4().hex)
    start = time.thread_time_ns()
    world.guard.check(item)
    await world.guard.admit(item)
    release = world.guard.release(item.rid)
    assert release is not None
    await release
    return (time.thread_time_ns() - start) / 1000


async def scenarios(world: World, only: str) -> None:
    """All of them, or `only` this one."""
    both = (late_after, late_during, foreign_lora_id, cancelled_load, lost_tasks)
    chosen: list[tuple[str, Coroutine[Any, Any, Any]]] = [(each.__name__, each(world)) for each in both]
    if world.guard is None:
        chosen.append(("samples_part", samples_part(world)))
    else:
        chosen = [(how, end_of_one(world, how)) for how in ENDS] + chosen
        chosen += [
            (each.__name__, each(world))
            for each in (samples, batch, failed_load, sessions, model_names, plugin_twice, stress, cost)
        ]
    for name, work in chosen:
        if only not in ("", name):
            work.close()
            continue
        try:
            seen = await asyncio.wait_for(work, 30)
        except Exception as error:
            seen = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps({"scenario": name, **seen}), flush=True)
        await _clear(world)


async def _clear(world: World) -> None:
    for rid in list(world.scheduler.running):
        await world.scheduler.end(rid)
    if world.guard is not None:
        for name in list(world.guard.executor.agent.adapters):
            await world.unload(name)
    else:
        for name in list(world.tm.lora_registry.get_all_adapters()):
            await world.unload(name, 1)


async def main() -> None:
    model, folder, guard, only = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] == "guarded", sys.argv[4]
    tm_module.kill_process_tree = lambda *args, **more: print(json.dumps({"scenario": "server died"}), flush=True)
    world = World(model, folder, guard)
    await world.start()
    await scenarios(world, only)
    world.pump.cancel()


if __name__ == "__main__":
    asyncio.run(main())
    sys.stdout.flush()
    os._exit(0)  # SGLang's own threads and signal handlers would keep it

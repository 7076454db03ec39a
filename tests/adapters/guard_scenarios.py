"""Versions that come and go under requests, and what else only a whole process shows; each answers what was seen."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from pathlib import Path
from typing import Any

from sglang.srt.lora.lora_registry import LoRARef
from sglang.srt.managers import io_struct as io

from lorafsm.engine.answers import Refused
from lorafsm.identity import VersionKey, lora_name
from lorafsm.manifest import store_plan
from lorafsm.orders import Begin, End
from lorafsm_sglang.guard.attestation import judge
from lorafsm_sglang.guard.configuration import faults_in
from lorafsm_sglang.guard.plugin import TARGET, GuardRefused, activate, guarded_class
from lorafsm_sglang.guard.settings import LAUNCHER
from lorafsm_sglang.tiny_model import lora_fixture, write_lora
from lorafsm_torch import ArtifactStore, freeze_snapshot
from tests.adapters.guard_world import World, ended, until


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


async def two_workers(world: World) -> dict[str, Any]:
    """Two of SGLang's tokenizer managers over one scheduler, as its `--tokenizer-worker-num 2` has them.

    There each has a process of its own; what each knows of adapters and requests is its own either way.
    """
    seed = LoRARef(lora_id="5eed" * 8, lora_name="seed", lora_path=str(write_lora(world.folder / "seed", "B")))
    one, two = (World(Path(world.tm.model_path), world.folder, False, (seed,)) for _ in range(2))
    two.scheduler.adapters = one.scheduler.adapters
    for each in (one, two):
        await each.start()
    request = two.ask("seed")
    await two.running(request)
    unload = await one.unload("seed")
    seen = {"unload by the other worker": unload, "its request": "runs" if not request.done() else await ended(request)}
    await two.scheduler.end(request.rid)
    await ended(request)
    late = two.ask(await one.load("A"))
    await asyncio.wait({late}, timeout=5)
    for each in (one, two):
        each.pump.cancel()
    return {**seen, "known to the other worker": str(late.exception() if late.done() else "answered")}


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


async def proof(world: World) -> dict[str, Any]:
    """What the attestation says: as it is, after somebody replaced a method, and once all is as before."""
    from lorafsm_sglang.guard.routes import attest

    sound = attest(world.guard)
    world.tm.abort_request = lambda *args, **more: None
    replaced = attest(world.guard)
    del world.tm.abort_request
    again = attest(world.guard)
    return {
        "active": [each["active"] for each in (sound, replaced, again)],
        "self_test": replaced["self_test"],
        "judged": judge(again).engine,
    }


async def unknown_version(world: World) -> dict[str, Any]:
    """The same SGLang under a version that the table does not have, and under its own with a method renamed."""
    import sglang

    def refusal(base: Any) -> str:
        try:
            guarded_class(base, world.settings)
        except GuardRefused as error:
            return str(error)
        return "guarded"

    class Renamed:
        """A TokenizerManager without anything that the guard hooks."""

    base, version = type(world.tm).guarded_from, sglang.__version__
    sglang.__version__ = "0.5.99"
    try:
        unknown = refusal(base)
    finally:
        sglang.__version__ = version
    return {"unknown": unknown, "renamed": refusal(Renamed)}


async def unsupported_setting(world: World) -> dict[str, Any]:
    """M23 in a whole process: a setting that is not supported stops every begin and every managed request."""
    from lorafsm_sglang.guard.routes import attest

    name, guard = await world.load("A"), world.guard
    guard.faults = faults_in({**guard.configuration, "tp_size": 2}, capacity=2, unmanaged=False)
    key = VersionKey(world.settings.epoch, next(world.numbers))
    what = {"key": key, "digest": "a" * 64, "lora_name": lora_name(key, "a" * 64)}
    try:
        begun = await guard.carry_out(Begin(**world.who, **what, number=key.version_id, plan=store_plan()))
        seen = {"request": await ended(world.ask(name)), "active": attest(guard)["active"]}
    finally:
        guard.faults = ()
    return {"begin": str(getattr(begun, "code", begun)), "reason": begun.reason, **seen}

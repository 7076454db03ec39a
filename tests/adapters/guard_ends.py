"""How requests end, one by one and many at once, and what each end does to the references; each says what was seen."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any

from sglang.srt.managers import io_struct as io

from tests.adapters.guard_scheduler import end_with
from tests.adapters.guard_world import Gone, World, ended, until


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

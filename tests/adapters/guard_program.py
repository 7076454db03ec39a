"""Runs the scenarios in SGLang's real TokenizerManager, with or without the guard, beside a stand-in scheduler.

A program with the engine's environment: each scenario prints one JSON line of what was seen.  The sockets, the
message types and everything in the tokenizer process are SGLang's own; only the scheduler's answers are made up.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from sglang.srt.managers import tokenizer_manager as tm_module

from tests.adapters.guard_end_names import ENDS
from tests.adapters.guard_ends import batch, cost, end_of_one, samples, samples_part, stress
from tests.adapters.guard_scenarios import (
    cancelled_load,
    failed_load,
    foreign_lora_id,
    late_after,
    late_during,
    lost_tasks,
    model_names,
    plugin_twice,
    proof,
    sessions,
    two_workers,
    unknown_version,
    unsupported_setting,
)
from tests.adapters.guard_world import World

PROOF = (proof, unknown_version, unsupported_setting)


async def scenarios(world: World, only: str) -> None:
    """All of them, or `only` this one."""
    both = (late_after, late_during, foreign_lora_id, cancelled_load, lost_tasks)
    chosen: list[tuple[str, Coroutine[Any, Any, Any]]] = [(each.__name__, each(world)) for each in both]
    if world.guard is None:
        chosen += [("samples_part", samples_part(world)), ("two_workers", two_workers(world))]
    else:
        chosen = [(how, end_of_one(world, how)) for how in ENDS] + chosen
        chosen += [
            (each.__name__, each(world))
            for each in (samples, batch, failed_load, sessions, model_names, plugin_twice, stress, cost, *PROOF)
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

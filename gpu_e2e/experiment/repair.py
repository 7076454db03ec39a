"""An engine dies of SIGKILL and comes back: proved dead, a new incarnation, repaired, published to (rules 14, 15).

It is idle when it dies: what becomes of requests that die with their engine is the agent layer's, and is shown by
`tests/engines`.  The other engine goes on all the time, with held and with arriving sessions.
"""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import attrs

from gpu_e2e import fleet
from gpu_e2e.conversation import token_ids
from gpu_e2e.guarded import RecordedEngine
from gpu_e2e.story import until
from lorafsm_asyncio import Repairer, Watcher
from lorafsm_asyncio.questions import Routable
from lorafsm_asyncio.watcher import Seat
from lorafsm_sglang.guard import GuardedEngine

if TYPE_CHECKING:
    from gpu_e2e.experiment.online import Stage


async def act(stage: Stage) -> None:
    """Kill the last engine, start it again, wait for its repair, use it, and publish R to the whole fleet."""
    place, load, expect = stage.place, stage.load, stage.expect
    name = list(place.fleet.ports)[-1]
    before = (await stage.scores(stage.default))[name]
    load.closed_to.add(name)
    there = [held for held in stage.holds if held.person.engine == name]
    await load.let_go(there)
    stage.holds = [held for held in stage.holds if held not in there]
    port, lora_name = place.port(name), place.lora_name(stage.default)
    await until(lambda: port.in_flight(lora_name) == 0, place.context.plan.deadlines.request_s)
    turns = sum(held.person.turns for held in stage.holds)
    incarnation = place.guards[name].incarnation
    process = place.engines.processes[name]
    start = stage.recorder.now()
    await asyncio.to_thread(process.kill)
    await _repaired(stage, name)
    stage.facts["repair_s"] = round(stage.recorder.now() - start, 1)
    expect.at_least(f"{name} came back as a later incarnation", incarnation + 1, place.guards[name].incarnation)
    expect.at_least("turns on the other engine meanwhile", 1, sum(held.person.turns for held in stage.holds) - turns)
    after = (await stage.scores(stage.default))[name]
    worst = max(abs(after[token] - before[token]) for token in before)
    what = f"scores of {stage.default} on {name} after its repair: max |Δ| to those before"
    expect.at_most(what, place.context.plan.numeric.epsilon, worst)
    load.closed_to.discard(name)
    again = await load.hold(f"S_{stage.default}_again", name, token_ids("again", place.context.plan.load.prompt_tokens))
    expect.expect(f"a session on the repaired {name} gets", stage.default, again.person.version)
    stage.holds.append(again)
    expect.expect("R is published to all engines", "PUBLISHED", str(await stage.publish("R")))
    await place.guards[name].aclose()


async def _repaired(stage: Stage, name: str) -> None:
    """Watcher and repairer stand by until the engine may serve the default again."""
    place, client = stage.place, stage.place.story.services.client
    process, old = place.engines.processes[name], place.guards[name]
    clock = stage.recorder.clock
    live: MutableMapping[str, Any] = {}

    def connect(incarnation: int) -> GuardedEngine:
        return attrs.evolve(old, incarnation=incarnation, url=process.url, client=None)

    def exited() -> str | None:
        return None if process.alive() else "its process was killed"

    watcher = Watcher(client, place.engines.epoch, [Seat(name, connect, exited)], live, poll_s=0.2, clock=clock)
    await watcher.look()  # the proof of its end comes before the new process
    stage.expect.expect(
        f"engines that may serve {stage.default} while {name} is dead", _but(stage, name), await _serve(stage)
    )
    process.start()
    await fleet.wait_ready({name: process}, place.context.progress, place.context.plan.deadlines.start_s)
    if place.port(name).base_url != process.url:  # another program has taken its port meanwhile
        await place.port(name).aclose()
        place.fleet.ports[name] = place.context.port(process)
    tasks = [asyncio.create_task(watcher.run()), asyncio.create_task(Repairer(client, live, clock=clock).run())]
    try:
        await place.story.services.until(lambda: _serves(stage, name), place.context.plan.deadlines.publication_s)
        incarnation = live[name].incarnation
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
    place.guards[name] = connect(incarnation)
    place.fleet.executors[name] = RecordedEngine(place.guards[name], stage.recorder)


def _but(stage: Stage, name: str) -> list[str]:
    return [engine for engine in stage.place.fleet.ports if engine != name]


async def _serve(stage: Stage) -> list[str]:
    client, key = stage.place.story.services.client, stage.place.key(stage.default)
    may = await client.ask(Routable(key))
    return sorted(may)


async def _serves(stage: Stage, name: str) -> bool:
    return name in await _serve(stage)

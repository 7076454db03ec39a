"""RFC 7.3 online: versions from a sharded source reach two engines under load, and leave them (RFC 3.4, 5.2).

Under a load that never stops: A is published; X fails on one engine and is cleaned; B is published while sessions hold
A; C finds no slot; A is reclaimed, one of its requests still running; C is published; then a row of publications, each
beside an equal window without one; then an engine is killed and repaired, and takes part in one more.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import psutil
from attrs import define, field

from gpu_e2e import hosting
from gpu_e2e.checks import Expectations
from gpu_e2e.conversation import Cast
from gpu_e2e.experiment import faults, measured, profiles, repair, source
from gpu_e2e.experiment.baselines import Scores, score, scores_of
from gpu_e2e.experiment.context import Context
from gpu_e2e.experiment.deployment import Deployment, deployment
from gpu_e2e.experiment.load import Held, Load
from gpu_e2e.experiment.windows import Window
from gpu_e2e.recording import Recorder
from gpu_e2e.story import until
from lorafsm.lifecycle import TargetState, VersionState
from lorafsm_sglang import OK

LAST = 150  # tokens of the request that outlives its session and the claim
_TRAIN_S = 300.0
_WEIGHED = 10  # times in a row of publications


def labels(publications: int) -> tuple[str, ...]:
    """The versions in the order of their ids: the acts' own, the row's, and one after the repair."""
    return ("A", "X", "B", "C", *map(in_row, range(1, publications + 1)), "R")


def in_row(number: int) -> str:
    """The label of a version of the row, from 1 on: short, since the timeline's chips are."""
    return f"{number:02d}"


@define
class Stage:
    """The running section: the deployment, its load, and what was seen by now."""

    place: Deployment
    load: Load
    expect: Expectations = field(factory=Expectations)
    faults: Expectations = field(factory=Expectations)
    windows: list[Window] = field(factory=list)
    facts: dict[str, Any] = field(factory=dict)
    holds: list[Held] = field(factory=list)
    weights: list[dict[str, Any]] = field(factory=list)
    default: str = ""

    @property
    def recorder(self) -> Recorder:
        """The section's own record."""
        return self.place.context.recorder

    @property
    def cast(self) -> Cast:
        """Sessions, their answers and failures."""
        return self.place.story.cast

    async def publish(self, label: str) -> VersionState:
        """Publish within the plan's deadline; the new default is noted."""
        async with asyncio.timeout(self.place.context.plan.deadlines.publication_s):
            state = await self.place.story.publish(label)
        if state is VersionState.PUBLISHED:
            self.default = label
        return state

    async def hold(self) -> list[Held]:
        """One held session on every engine, bound to the default of now."""
        engines = [engine for engine in self.place.fleet.ports if engine not in self.load.closed_to]
        names = [f"S_{self.default}_{engine}" for engine in engines]
        return list(await asyncio.gather(*map(self.load.hold, names, engines)))

    async def retire(self, label: str) -> VersionState:
        """Wait until nobody holds the version, then reclaim it, within the plan's deadline."""
        services, key = self.place.story.services, self.place.key(label)

        async def free() -> bool:
            return (await services.version(key)).session_refs == 0

        limit = self.place.context.plan.deadlines.reclaim_s
        await services.until(free, limit)
        async with asyncio.timeout(limit):
            return await services.reclaim(key)

    async def scores(self, label: str) -> dict[str, Scores]:
        """On every engine the version's scores after one fixed prefix."""
        plan = self.place.context.plan
        prefix, name = plan.kv.prefixes[0], self.place.lora_name(label)
        engines = list(self.place.fleet.ports)
        said = await asyncio.gather(*(score(self.place.port(engine), plan, prefix, name) for engine in engines))
        return dict(zip(engines, map(scores_of, said), strict=True))


async def run(context: Context) -> dict[str, dict[str, Any]]:
    """Play on engines and a registry of their own; the sections `online` and `faults`, as `report` expects them."""
    plan = context.plan
    context.progress("online: training and gathering the versions")
    trained = await asyncio.to_thread(
        source.train,
        labels(plan.load.publications),
        profiles.model_config(context.model),
        plan.transport.source_ranks,
        plan.fixtures.rank,
        plan.fixtures.dtype,
        context.out / "online" / "source",
        _TRAIN_S,
    )
    context = attrs.evolve(context, snapshots=trained, recorder=Recorder())
    kind = hosting.chosen()
    async with deployment(context, "online", kind) as place:
        load = Load(place.story.cast, plan.load, list(place.fleet.ports), plan.deadlines.request_s)
        stage = Stage(place, load)
        try:
            with _collector_at_rest():
                await _acts(stage)
            stage.expect.expect("the acts came to their end", True, True)
        except Exception as error:  # what was seen until then is worth a report, which then says this
            traceback.print_exc(file=sys.stderr)
            said = f"{type(error).__name__}: {error}"[:400]
            stage.expect.expect("the acts came to their end", True, said)
        except BaseException:  # somebody stops the run: nothing is waited for
            load.drop(stage.holds)
            raise
        await load.let_go(stage.holds)
        await load.stop()
    context.progress("online: answers against transformers, and TLC reads the journal: a minute or more")
    return {"online": await asyncio.to_thread(measured.section, stage, kind), "faults": faults.section(stage)}


@contextmanager
def _collector_at_rest() -> Iterator[None]:
    """What is there by now (torch, transformers) is collected once, and not looked at again while gaps are measured."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


async def _acts(stage: Stage) -> None:
    say = stage.place.context.progress
    say("online: A is published, sessions arrive")
    stage.expect.expect("A is published", "PUBLISHED", str(await stage.publish("A")))
    stage.load.start()
    stage.holds = await stage.hold()
    say("online: X is READY on one engine and broken on the other")
    await partial_failure(stage, "X")
    say("online: B over A, C without a slot, A reclaimed, C published")
    await replace(stage)
    say("online: repeats, late orders, races, counts, exact names")
    await faults.play(stage, "X")
    await publish_in_a_row(stage)
    say("online: an engine is killed and repaired")
    await repair.act(stage)


async def partial_failure(stage: Stage, label: str) -> None:
    """The last engine's copy breaks before it is verified: aborted, cleaned, the default's scores as before."""
    place, expect = stage.place, stage.expect
    story, last = place.story, list(place.fleet.ports)[-1]
    before = await stage.scores(stage.default)
    reached, go_on = place.fleet.gates.hold(last, "verify", label)
    publication = asyncio.create_task(stage.publish(label))
    gate = asyncio.create_task(reached.wait())
    await asyncio.wait({gate, publication}, return_when=asyncio.FIRST_COMPLETED)
    gate.cancel()
    await story.break_copy(last, label)
    await _others_ready(stage, last)
    during = await stage.scores(stage.default)
    await faults.half_ready(stage, label, last)
    go_on.set()
    expect.expect(f"{label}, broken on {last}, ends", "FAILED_CLEAN", str(await publication))
    after = await stage.scores(stage.default)
    epsilon = place.context.plan.numeric.epsilon
    for when, seen in (("during", during), ("after", after)):
        worst = max(abs(seen[e][t] - before[e][t]) for e in before for t in before[e])
        expect.at_most(
            f"scores of {stage.default} {when} the failure of {label}: max |Δ| to those before", epsilon, worst
        )
    name = place.lora_name(label)
    for engine, port in place.fleet.ports.items():
        listed = await port.models()
        expect.expect(f"{engine} lists {label}", False, not isinstance(listed, OK) or name in listed.data)
    stage.faults.expect(f"{faults.FAILED} the default after {label} failed", stage.default, await story.default())
    state = str((await story.services.version(place.key(label))).state)
    stage.faults.expect(f"{faults.FAILED} {label}, which {last} refused, is", "FAILED_CLEAN", state)


async def _others_ready(stage: Stage, last: str) -> None:
    services = stage.place.story.services

    async def ready() -> bool:
        targets = await services.targets()
        return all(targets.get(name) is TargetState.READY for name in stage.place.fleet.ports if name != last)

    await services.until(ready)


async def replace(stage: Stage) -> None:
    """B over A while A's sessions go on; C finds no slot; A leaves with a request still running; C is accepted."""
    place, expect, load = stage.place, stage.expect, stage.load
    story, of_a = place.story, stage.holds
    expect.expect("B is published", "PUBLISHED", str(await stage.publish("B")))
    stage.holds = [*of_a, *(of_b := await stage.hold())]
    turns = [held.person.turns for held in of_a]
    await until(lambda: all(held.person.turns > n + 1 for held, n in zip(of_a, turns, strict=True)))
    expect.expect("sessions of A go on with", ["A"], sorted({held.person.version for held in of_a}))
    expect.expect("sessions that join after the commit get", ["B"], sorted({held.person.version for held in of_b}))
    asked = len(stage.recorder.operations)
    refused = str((await story.reserve("C")).code)
    stage.faults.expect(f"{faults.CAPACITY} reserve(C) with A and B resident", "CAPACITY_ERROR", refused)
    caused = _operations(stage, "C", asked)
    stage.faults.expect(f"{faults.CAPACITY} engine operations of the refused C", 0, caused)
    await _reclaim_under_a_request(stage, of_a)
    stage.holds = of_b
    expect.expect("C is published, once A has left", "PUBLISHED", str(await stage.publish("C")))
    stage.holds = [*of_b, *(of_c := await stage.hold())]
    expect.expect("sessions of B go on with", ["B"], sorted({held.person.version for held in of_b}))
    await load.let_go(of_b)
    stage.holds = of_c
    expect.expect("B is reclaimed", "RECLAIMED", str(await stage.retire("B")))


def _operations(stage: Stage, label: str, since: int) -> int:
    return sum(each["version"] == label for each in stage.recorder.operations[since:])


async def _reclaim_under_a_request(stage: Stage, of_a: Sequence[Held]) -> None:
    """All sessions of A close while one request of A runs: its engine unloads after exactly that request."""
    place, expect, load = stage.place, stage.expect, stage.load
    services, key, name = place.story.services, place.key("A"), place.lora_name("A")
    last = of_a[0].person
    await load.let_go(of_a, close=False)
    await _nobody_holds(stage, "A", but=len(of_a))
    running = asyncio.create_task(load.turn(last, LAST))
    port = place.port(last.engine)
    await until(lambda: port.in_flight(name) > 0)
    await asyncio.gather(*(held.person.close() for held in of_a))
    refs = (await services.version(key)).session_refs
    reclaim = asyncio.create_task(stage.retire("A"))
    await services.until(lambda: _is(stage, "A", VersionState.RECLAIMING))
    seen = [refs, port.in_flight(name) > 0]
    stage.faults.expect(f"{faults.PINNED} A is RECLAIMING: session refs, whether a request runs", [0, True], seen)
    refused = str((await place.story.reserve("C")).code)
    stage.faults.expect(f"{faults.CAPACITY} reserve(C) while A is RECLAIMING", "CAPACITY_ERROR", refused)
    answer = await running
    expect.expect("A is reclaimed", "RECLAIMED", str(await reclaim))
    unloads = [op for op in stage.recorder.operations if (op["op"], op["version"]) == ("unload", "A")]
    per_engine = {engine: sum(op["engine"] == engine for op in unloads) for engine in place.fleet.ports}
    stage.faults.expect(f"{faults.CAPACITY} unloads of A per engine", dict.fromkeys(per_engine, 1), per_engine)
    ended = next((op["end"] for op in unloads if op["engine"] == last.engine), None)
    expect.expect("A's last request ended with its answer", True, answer is not None)
    if answer is not None and ended is not None:
        stage.faults.expect(f"{faults.PINNED} A was unloaded after its last request", True, ended >= answer.end)
        stage.facts["reclaim_after_last_ms"] = round((ended - answer.end) * 1000, 1)


async def _is(stage: Stage, label: str, state: VersionState) -> bool:
    return (await stage.place.story.services.version(stage.place.key(label))).state is state


async def _nobody_holds(stage: Stage, label: str, but: int) -> None:
    """Until only so many sessions are bound to the version: arriving ones that got it have ended."""
    services, key = stage.place.story.services, stage.place.key(label)

    async def few() -> bool:
        return (await services.version(key)).session_refs <= but

    await services.until(few, stage.place.context.plan.deadlines.reclaim_s)


async def publish_in_a_row(stage: Stage) -> None:
    """Windows by turns: one without a publication, as long as the publication before, then one from reserve to commit.

    Both kinds have the same load: sessions of one version only, two of them held.  Then the version before leaves.
    """
    recorder, done = stage.recorder, 0
    length = recorder.publishing[-1][1] - recorder.publishing[-1][0]
    plan = stage.place.context.plan.load
    for number in range(1, plan.publications + 1):
        start = recorder.now()
        await asyncio.sleep(length)
        quiet = Window("quiet", start, recorder.now())
        before, state = stage.default, await stage.publish(in_row(number))
        if state is not VersionState.PUBLISHED:
            break
        window = Window("publishing", *recorder.publishing[-1])
        stage.windows += [quiet, window]
        length, done = window.end - window.start, number
        old, stage.holds = stage.holds, [*stage.holds, *(fresh := await stage.hold())]
        await stage.load.let_go(old)
        stage.holds = fresh
        await stage.retire(before)
        await _weigh(stage, number)
        if number % 5 == 0:
            stage.place.context.progress(f"online: {number} of {plan.publications} publications in a row")
    stage.expect.expect("publications in a row", plan.publications, done)


async def _weigh(stage: Stage, number: int) -> None:
    """Note at times what engines and journal take by now, when nothing but the default is resident."""
    if number % max(1, stage.place.context.plan.load.publications // _WEIGHED):
        return
    row: dict[str, Any] = {"publications": number}
    for engine, process in stage.place.engines.processes.items():
        row[f"{engine}, MiB"] = round(await asyncio.to_thread(process.memory_bytes) / 2**20, 1)
    pid = await hosting.process_of(stage.place.story.services.client)
    row["registry, MiB"] = round(psutil.Process(pid).memory_info().rss / 2**20, 1)
    journal = stage.place.journal
    row["journal, KiB"] = sum(path.stat().st_size for path in journal.parent.glob(f"{journal.name}*")) >> 10
    stage.weights.append(row)

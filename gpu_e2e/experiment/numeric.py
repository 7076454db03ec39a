"""RFC 7.2, the numbers: S_old, S_mid and S_new against the baseline of their version and their own full prefix.

The scene is RFC 3.4's: S_old is bound before B exists, S_mid while only E0 has proved B, S_new after the commit.
Each plays on every engine, over tool turns whose token ids the plan fixes; one turn is tried again after its first
attempt broke off in the middle of its answer, and one is resumed from the registry's binding on the next engine.
"""

from __future__ import annotations

import asyncio
import uuid
from contextlib import aclosing
from typing import Any

from attrs import define, field

from gpu_e2e.checks import Expectations
from gpu_e2e.experiment.baselines import Baselines, ScoreFailed, as_rows, score, scores_of, witness
from gpu_e2e.experiment.context import Context
from gpu_e2e.experiment.deployment import Deployment
from gpu_e2e.experiment.plan import SessionPlan
from lorafsm.events import Commit
from lorafsm.identity import SessionKey
from lorafsm.lifecycle import TargetState
from lorafsm.outcomes import Refusal
from lorafsm_asyncio import Refused
from lorafsm_sglang import Arrival, Logprobs, Sampling

RETRIED, RESUMED = -2, -1
"""Turns, counted from the end: the one that is tried again, and the one that is resumed elsewhere."""

_BROKEN_OFF = 256  # tokens that the first attempt of a retried turn asks for; it is left after its first


@define
class FixedSession:
    """One session whose tokens the plan fixes; it binds at its first score, like any other (RFC 4.1)."""

    stage: Deployment
    plan: SessionPlan
    engine: str
    key: SessionKey
    turn: int = 0
    version: str = ""

    async def bound_name(self) -> str:
        """What the registry says this session generates under; ScoreFailed where it may not."""
        cast = self.stage.story.cast
        try:
            bound = await cast.binder.ensure(self.key)
            cast.binder.may_dispatch(self.key)
        except Refused as refused:
            raise ScoreFailed(f"{self.plan.name} on {self.engine}: {refused}"[:400]) from refused
        self.version = cast.recorder.letter(bound.key)
        return bound.lora_name


@define
class Scene:
    """The rows of the section while they come."""

    stage: Deployment
    baselines: Baselines
    rows: list[dict[str, Any]] = field(factory=list)
    expect: Expectations = field(factory=Expectations)

    def join(self, name: str) -> list[FixedSession]:
        """The session of this name, once on every engine."""
        plan = next(session for session in self.stage.context.plan.numeric.sessions if session.name == name)
        joined = []
        for engine in self.stage.fleet.ports:
            key = self.stage.story.cast.binder.open(f"{name} on {engine}")
            joined.append(FixedSession(self.stage, plan, engine, key))
        return joined

    async def play(self, sessions: list[FixedSession], phase: str, turns: int) -> None:
        """So many turns of each session, all sessions at once."""

        async def go(session: FixedSession) -> None:
            for _ in range(turns):
                await self.step(session, phase)

        await asyncio.gather(*(go(session) for session in sessions))

    async def finish(self, sessions: list[FixedSession]) -> None:
        """The turns that are left; the last but one is retried, the last one resumed on the next engine."""
        for session in sessions:
            last = len(session.plan.turns)
            while session.turn < last + RETRIED + 1:
                await self.step(session, "after")
            await self._break_off(session)
            await self.step(session, "after", "retry")
            names = list(self.stage.fleet.ports)
            elsewhere = names[(names.index(session.engine) + 1) % len(names)]
            resumed = FixedSession(self.stage, session.plan, elsewhere, session.key, session.turn)
            await self.step(resumed, "after", "resume")

    async def step(self, session: FixedSession, phase: str, kind: str = "turn") -> None:
        """Score one turn after its own full prefix and compare (RFC 7.2)."""
        prefix = session.plan.prefixes()[session.turn]
        port = self.stage.port(session.engine)
        generation = await score(port, self.stage.context.plan, prefix, await session.bound_name())
        scores = scores_of(generation)
        self.rows.append(
            {
                "session": session.plan.name,
                "engine": session.engine,
                "version": session.version,
                "expected_version": session.plan.version,
                "kind": kind,
                "phase": phase,
                "turn": session.turn + 1,
                "prompt_tokens": generation.prompt_tokens,
                "cached_tokens": generation.cached_tokens,
                "error": self.baselines.error(session.plan.version, prefix, scores),
                "apart": self.baselines.apart(session.plan.version, prefix, scores),
                "positions": len(self.baselines.positions[prefix]),
            }
        )
        session.turn += 1

    async def _break_off(self, session: FixedSession) -> None:
        """The first attempt of a turn: its client leaves after the first token, and the engine ends the request."""
        sampling = Sampling(max_new_tokens=_BROKEN_OFF, ignore_eos=True)
        prefix, name = session.plan.prefixes()[session.turn], await session.bound_name()
        stream = self.stage.port(session.engine).stream(prefix, name, sampling, uuid.uuid4().hex, logprobs=Logprobs())
        async with aclosing(stream):
            async for item in stream:
                if isinstance(item, Arrival):
                    return
        raise ScoreFailed(f"{session.plan.name} on {session.engine}: the attempt ended before it could be left")


async def run(context: Context, baselines: Baselines, stage: Deployment) -> dict[str, Any]:
    """Play the scene on a deployment in which nothing is published yet; afterwards A is RETIRED and B the default.

    Returns the section: `ok`, `conditions`, the figures `logprob_max_error` and `ab_separation` (in epsilons),
    `baselines`, `positions`, `rows`.
    """
    scene = Scene(stage, baselines)
    story = stage.story
    scene.expect.expect("A is published", "PUBLISHED", str(await story.publish("A")))
    old = scene.join("S_old")
    await scene.play(old, "before", 2)
    reached, go_on = stage.fleet.gates.hold(context.plan.engine_names[-1], "load", "B")
    publication = asyncio.create_task(story.publish("B"))
    try:
        await _reached(reached, publication, context.plan.deadlines.publication_s)
        await _all_but_last_ready(stage)
        await _commit_is_refused(scene)
        mid = scene.join("S_mid")
        await scene.play([*old, *mid], "during", 1)
    finally:
        go_on.set()
    scene.expect.expect("B is published", "PUBLISHED", str(await publication))
    new = scene.join("S_new")
    await scene.play([*old, *mid, *new], "after", 1)
    await scene.finish([*old, *mid, *new])
    return _section(context, scene)


async def _reached(reached: asyncio.Event, publication: asyncio.Task[Any], deadline_s: float) -> None:
    gate = asyncio.create_task(reached.wait())
    await asyncio.wait({gate, publication}, return_when=asyncio.FIRST_COMPLETED, timeout=deadline_s)
    gate.cancel()


async def _all_but_last_ready(stage: Deployment) -> None:
    """Until every engine but the one held back has proved B."""
    services, names = stage.story.services, stage.context.plan.engine_names[:-1]

    async def ready() -> bool:
        targets = await services.targets()
        return all(targets.get(name) is TargetState.READY for name in names)

    await services.until(ready, stage.context.plan.deadlines.publication_s)


async def _commit_is_refused(scene: Scene) -> None:
    story, last = scene.stage.story, scene.stage.context.plan.engine_names[-1]
    services = story.services
    said = await services.apply(
        Commit(key=scene.stage.key("B"), token=story.tokens["B"], expected_revision=1, now=services.clock())
    )
    seen = [str(said.code), *(said.engines if isinstance(said, Refusal) else ())]
    scene.expect.expect(f"commit of B while {last} is not READY", ["NOT_READY", last], seen)


def _section(context: Context, scene: Scene) -> dict[str, Any]:
    n, expect, baselines = context.plan.numeric, scene.expect, scene.baselines
    for letter, baseline in baselines.of.items():
        expect.at_most(f"baseline of {letter}: nats between repeats", n.epsilon, baseline.spread)
    seen = witness(context, baselines) if n.witness else {}
    for letter, error in seen.items():
        expect.at_most(f"baseline of {letter}: max |Δ logprob| to transformers, merged", n.epsilon, error)
    expect.at_least("positions after each prefix", n.least_positions, min(map(len, baselines.positions.values())))
    for name in dict.fromkeys(row["session"] for row in scene.rows):
        for engine in context.plan.engine_names:
            rows = [row for row in scene.rows if (row["session"], row["engine"]) == (name, engine)]
            _conditions(expect, f"{name} on {engine}", rows, n.epsilon, n.separation)
    chosen = as_rows(context.plan, baselines)
    return {
        "ok": expect.ok,
        "conditions": expect.rows,
        "epsilon": n.epsilon,
        "logprob_max_error": max(row["error"] for row in scene.rows),
        "ab_separation": min(row["least_delta"] for row in chosen) / n.epsilon,
        "baselines": {
            letter: {"spread": baseline.spread, "witness_error": seen.get(letter)}
            for letter, baseline in baselines.of.items()
        },
        "positions": chosen,
        "rows": scene.rows,
    }


def _conditions(expect: Expectations, who: str, rows: list[dict[str, Any]], epsilon: float, separation: float) -> None:
    expect.expect(f"{who}: versions", [rows[0]["expected_version"]], sorted({row["version"] for row in rows}))
    expect.expect(f"{who}: kinds of turns", ["resume", "retry", "turn"], sorted({row["kind"] for row in rows}))
    expect.at_most(f"{who}: max |Δ logprob| to its version's baseline", epsilon, max(row["error"] for row in rows))
    least = (separation - 1) * epsilon  # the answer itself may be off by one epsilon
    expect.at_least(f"{who}: min |Δ logprob| to the other version's", least, min(row["apart"] for row in rows))

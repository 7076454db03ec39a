"""A-only and B-only baselines from separate clean processes (RFC 7.2).

A clean process is an unguarded engine that has served nothing and is given one adapter.  Every full prefix is scored
`repeats` times; a baseline that is not stable to epsilon is not used.  Then the positions are chosen: a prefix and a
scored token at which A and B are `separation` epsilons apart, whatever repetition one takes.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from attrs import frozen

from gpu_e2e.experiment.context import Context
from gpu_e2e.experiment.plan import Plan
from lorafsm.identity import VersionKey, lora_name
from lorafsm_sglang import OK, EnginePort, Generation
from lorafsm_torch import ArtifactStore

Prefix: TypeAlias = tuple[int, ...]
Scores: TypeAlias = Mapping[int, float]
"""Log-probability (nats) of the next token, by token id."""

LETTERS = ("A", "B")


class ScoreFailed(RuntimeError):
    """An engine did not answer a scoring request; the run stops and says what it said."""


@frozen
class Baseline:
    """One version's scores by prefix, from a clean process: those of the first request, and their largest spread."""

    version: str
    scores: Mapping[Prefix, Scores]
    cold_cached: Mapping[Prefix, int]
    spread: float


@frozen
class Baselines:
    """Both baselines and, by prefix, the tokens at which they are far enough apart."""

    of: Mapping[str, Baseline]
    positions: Mapping[Prefix, tuple[int, ...]]

    def error(self, version: str, prefix: Prefix, scores: Scores) -> float:
        """Max |Δ logprob| to the version's baseline of this full prefix, over all scored tokens."""
        expected = self.of[version].scores[prefix]
        return max(abs(scores[token] - expected[token]) for token in expected)

    def apart(self, version: str, prefix: Prefix, scores: Scores) -> float:
        """Min |Δ logprob| to the other version's baseline, over the positions that are used; 0 where there is none."""
        other = self.of["B" if version == "A" else "A"].scores[prefix]
        return min((abs(scores[token] - other[token]) for token in self.positions[prefix]), default=0.0)


def prefixes(plan: Plan) -> tuple[Prefix, ...]:
    """Every full prefix that is scored in 7.2, each once."""
    found = [prefix for session in plan.numeric.sessions for prefix in session.prefixes()]
    return tuple(dict.fromkeys([*found, *plan.kv.prefixes]))


async def score(port: EnginePort, plan: Plan, prefix: Prefix, name: str | None) -> Generation:
    """Score the plan's tokens after the prefix: one token is generated, none of it is compared (RFC 7.2)."""
    reply = await port.score(
        prefix, name, uuid.uuid4().hex, token_ids=plan.numeric.scored_tokens, timeout_s=plan.deadlines.request_s
    )
    if not isinstance(reply, OK) or reply.data.aborted:
        raise ScoreFailed(f"{port.base_url} under {name}, {len(prefix)} tokens: {reply}"[:400])
    return reply.data


def scores_of(generation: Generation) -> Scores:
    """The scores that came with the one generated token."""
    return generation.token_ids_logprobs[0]


async def make(context: Context, ports: Mapping[str, EnginePort]) -> Baselines:
    """Both baselines, then the positions; `ports` are clean engines by letter.  ScoreFailed when one cannot serve."""
    store = ArtifactStore(context.out / "baselines" / "store")
    made = {}
    for letter, port in ports.items():
        key = VersionKey(f"{letter.lower()}only", 1)
        snapshot = context.snapshots[letter]
        store.put(key, snapshot)
        name = lora_name(key, snapshot.digest)
        loaded = await port.load(name, store.path(name).resolve(), pinned=False, timeout_s=context.plan.deadlines.end_s)
        if not isinstance(loaded, OK):
            raise ScoreFailed(f"{letter}-only: load: {loaded}"[:400])
        made[letter] = await _baseline(port, context.plan, letter, name)
        context.progress(f"baseline {letter}: {made[letter].spread:.2g} nats between repeats")
        await port.unload(name, timeout_s=context.plan.deadlines.end_s)
    return Baselines(made, choose(context.plan, made))


async def _baseline(port: EnginePort, plan: Plan, letter: str, name: str) -> Baseline:
    first, cached, spread = dict[Prefix, Scores](), dict[Prefix, int](), 0.0
    for repeat in range(plan.numeric.repeats):
        for prefix in prefixes(plan):
            generation = await score(port, plan, prefix, name)
            scores = scores_of(generation)
            if repeat == 0:
                first[prefix], cached[prefix] = scores, generation.cached_tokens
            spread = max(spread, *(abs(scores[token] - first[prefix][token]) for token in scores))
    return Baseline(letter, first, cached, spread)


def choose(plan: Plan, made: Mapping[str, Baseline]) -> dict[Prefix, tuple[int, ...]]:
    """By prefix, the scored tokens at which A and B differ by `separation` epsilons and both spreads."""
    n, a, b = plan.numeric, made["A"], made["B"]
    least = n.separation * n.epsilon + a.spread + b.spread
    return {
        prefix: tuple(t for t in n.scored_tokens if abs(a.scores[prefix][t] - b.scores[prefix][t]) >= least)
        for prefix in prefixes(plan)
    }


def witness(context: Context, baselines: Baselines) -> dict[str, float]:
    """By version, max |Δ logprob| of its baseline to the same weights merged in transformers, without an engine."""
    from gpu_e2e.reference import Reference

    reference, worst = Reference(context.model), dict[str, float]()
    for letter, baseline in baselines.of.items():
        snapshot = context.snapshots[letter]
        reference.add(letter, snapshot.tensors, snapshot.config)
        worst[letter] = _largest(reference, letter, baseline.scores.items())
    return worst


def _largest(reference: Any, letter: str, scored: Iterable[tuple[Prefix, Scores]]) -> float:
    worst = 0.0
    for prefix, scores in scored:
        expected = reference.first(letter, prefix)
        worst = max(worst, *(abs(float(expected[token]) - nats) for token, nats in scores.items()))
    return worst


def as_rows(plan: Plan, baselines: Baselines) -> Sequence[dict[str, Any]]:
    """What was chosen: for every prefix its length, the tokens, and how far A and B are apart there."""
    a, b = baselines.of["A"].scores, baselines.of["B"].scores
    return [
        {
            "prefix": index,
            "tokens": len(prefix),
            "positions": list(baselines.positions[prefix]),
            "least_delta": min((abs(a[prefix][t] - b[prefix][t]) for t in baselines.positions[prefix]), default=0.0),
            "cached_tokens": {letter: baseline.cold_cached[prefix] for letter, baseline in baselines.of.items()},
        }
        for index, prefix in enumerate(prefixes(plan))
    ]

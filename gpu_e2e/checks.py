"""What the run must have shown: each expectation by name, what was expected, what was seen."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from attrs import define, field

from gpu_e2e.conversation import Answer
from gpu_e2e.reference import Reference

TOLERANCE = 1e-3
"""Largest difference, in nats, between an engine's log-probability and the reference's of the same token."""

SEPARATION = 10.0
"""Versions must differ from each other by this many tolerances in the first scored token."""


@define
class Expectations:
    """Collects expectations in the order of the story."""

    rows: list[dict[str, Any]] = field(factory=list)

    def expect(self, name: str, expected: object, seen: object) -> None:
        """Note an equality that must hold."""
        self.rows.append({"name": name, "expected": _plain(expected), "seen": _plain(seen), "ok": expected == seen})

    def at_least(self, name: str, least: float, seen: float) -> None:
        """Note a lower bound."""
        self.rows.append({"name": name, "expected": f"≥ {least:g}", "seen": _plain(seen), "ok": seen >= least})

    def at_most(self, name: str, most: float, seen: float) -> None:
        """Note an upper bound."""
        self.rows.append({"name": name, "expected": f"≤ {most:g}", "seen": _plain(seen), "ok": seen <= most})

    @property
    def ok(self) -> bool:
        """Whether every expectation held."""
        return bool(self.rows) and all(row["ok"] for row in self.rows)


def _plain(value: object) -> object:
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return str(value)


def largest_errors(answers: Sequence[Answer], reference: Reference) -> dict[str, float]:
    """For each session's version, max |engine - reference| in nats over all tokens of all answers."""
    worst: dict[str, float] = defaultdict(float)
    for answer in answers:
        g = answer.generation
        expected = reference.score(answer.version, answer.prompt, g.output_ids)
        if len(expected) != len(g.output_logprobs):
            raise ValueError(f"{answer.session}: {len(g.output_logprobs)} log-probabilities for {len(expected)} tokens")
        error = max(abs(a - b) for a, b in zip(expected, g.output_logprobs, strict=True))
        worst[answer.version] = max(worst[answer.version], error)
    return dict(worst)


def separation(prompt: Sequence[int], reference: Reference) -> list[dict[str, Any]]:
    """How far each pair is apart in the first scored token: the smaller |Δ logprob| of their two argmaxes."""
    names = sorted(reference.versions())
    first = {name: reference.first(name, prompt) for name in names}
    pairs = []
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            tokens = {int(first[a].argmax()), int(first[b].argmax())}
            delta = min(abs(float(first[a][t] - first[b][t])) for t in tokens)
            pairs.append({"a": a, "b": b, "position": len(prompt), "delta": round(delta, 4)})
    return pairs

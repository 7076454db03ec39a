"""The choice of positions, and errors to a baseline."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from gpu_e2e.experiment.plan import PLANS, read_plan

NEEDED = ("torch", "transformers", "safetensors", "psutil", "sglang")
pytestmark = pytest.mark.skipif(
    bool(missing := [name for name in NEEDED if find_spec(name) is None]), reason=f"not installed: {missing}"
)


@pytest.fixture
def plan():
    return read_plan(PLANS / "cpu.toml")


def baseline(plan, version: str, nats: float, spread: float = 0.0):
    from gpu_e2e.experiment.baselines import Baseline, prefixes

    scores = {prefix: {token: nats * (1 + i) for i, token in enumerate(plan.numeric.scored_tokens)}
              for prefix in prefixes(plan)}  # fmt: skip
    return Baseline(version, scores, dict.fromkeys(scores, 0), spread)


def test_positions_are_those_that_separate_by_ten_epsilons(plan):
    from gpu_e2e.experiment.baselines import choose

    step = 10 * plan.numeric.epsilon / 4  # the fourth token is just far enough, the third is not
    chosen = choose(plan, {"A": baseline(plan, "A", 0.0), "B": baseline(plan, "B", step * 1.0001)})
    assert set(chosen.values()) == {plan.numeric.scored_tokens[3:]}


def test_an_unstable_baseline_needs_more_distance(plan):
    from gpu_e2e.experiment.baselines import choose

    step = 10 * plan.numeric.epsilon / 4
    a, b = baseline(plan, "A", 0.0, spread=step), baseline(plan, "B", step * 1.0001)
    assert set(choose(plan, {"A": a, "B": b}).values()) == {plan.numeric.scored_tokens[4:]}


def test_errors_are_measured_on_the_own_full_prefix(plan):
    from gpu_e2e.experiment.baselines import Baselines, choose, prefixes

    made = {"A": baseline(plan, "A", 0.0), "B": baseline(plan, "B", 1.0)}
    baselines = Baselines(made, choose(plan, made))
    prefix = prefixes(plan)[0]
    assert baselines.error("A", prefix, made["A"].scores[prefix]) == 0
    assert baselines.apart("A", prefix, made["A"].scores[prefix]) == pytest.approx(1.0)
    assert baselines.error("A", prefix, made["B"].scores[prefix]) == len(plan.numeric.scored_tokens)
    assert baselines.apart("A", prefix, made["B"].scores[prefix]) == 0
    with pytest.raises(KeyError):
        baselines.error("A", prefix[:-1], made["A"].scores[prefix])

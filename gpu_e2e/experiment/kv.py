"""RFC 7.2, the KV cache: A-warm then B, and B-warm then A, from independent fresh states; never flushed.

A state is one engine process and a prefix that it has never seen: its first request finds 0 cached tokens, which is a
condition of its own.  Each engine shows each direction, with another prefix; no two experiments share either.
"""

from __future__ import annotations

from typing import Any

from gpu_e2e.checks import Expectations
from gpu_e2e.experiment.baselines import Baselines, Prefix, score, scores_of
from gpu_e2e.experiment.context import Context
from gpu_e2e.experiment.deployment import Deployment
from lorafsm_sglang import OK, control_calls

_STOPS = ("pause_generation", "flush_cache", "abort_request")


async def run(context: Context, baselines: Baselines, stage: Deployment) -> dict[str, Any]:
    """Both directions on every engine of a deployment that serves A and B; returns `ok`, `conditions`, `rows`."""
    expect, rows = Expectations(), list[dict[str, Any]]()
    for turn, prefix in enumerate(context.plan.kv.prefixes):
        for index, engine in enumerate(context.plan.engine_names):
            order = ("A", "B") if (turn + index) % 2 == 0 else ("B", "A")
            rows += await _direction(context, baselines, stage, engine, prefix, order, turn)
    for direction in ("A then B", "B then A"):
        for engine in context.plan.engine_names:
            _conditions(context, expect, f"{direction} on {engine}", rows)
    await _cache_stayed_on(expect, stage)
    return {"ok": expect.ok, "conditions": expect.rows, "rows": rows}


async def _direction(
    context: Context,
    baselines: Baselines,
    stage: Deployment,
    engine: str,
    prefix: Prefix,
    order: tuple[str, str],
    turn: int,
) -> list[dict[str, Any]]:
    warm, other = order
    repeats = context.plan.kv.repeats
    steps = [(warm, "cold"), (warm, "warm"), (other, "other cold"), *[(other, "other repeat")] * repeats]
    rows = []
    for version, step in [*steps, (warm, "warm again")]:
        generation = await score(stage.port(engine), context.plan, prefix, stage.lora_name(version))
        scores = scores_of(generation)
        rows.append(
            {
                "experiment": f"{warm} then {other} on {engine}",
                "prefix": turn,
                "engine": engine,
                "version": version,
                "step": step,
                "prompt_tokens": generation.prompt_tokens,
                "cached_tokens": generation.cached_tokens,
                "error": baselines.error(version, prefix, scores),
                "apart": baselines.apart(version, prefix, scores),
            }
        )
    return rows


def _conditions(context: Context, expect: Expectations, experiment: str, rows: list[dict[str, Any]]) -> None:
    here = [row for row in rows if row["experiment"] == experiment]
    if not here:
        expect.expect(f"{experiment}: was tried", True, False)
        return

    def cached(*steps: str) -> list[int]:
        return [row["cached_tokens"] for row in here if row["step"] in steps]

    n = context.plan.numeric
    expect.expect(f"{experiment}: cached tokens of the first request (a fresh state)", 0, max(cached("cold")))
    expect.expect(f"{experiment}: cached tokens of the other version's first", 0, max(cached("other cold")))
    hits = cached("warm", "other repeat", "warm again")
    expect.at_least(f"{experiment}: cached tokens of every repeat", context.plan.kv.least_cached, min(hits))
    expect.at_most(f"{experiment}: max |Δ logprob| to cold baselines", n.epsilon, max(row["error"] for row in here))
    least = (n.separation - 1) * n.epsilon
    expect.at_least(f"{experiment}: min |Δ logprob| to the other's", least, min(row["apart"] for row in here))


async def _cache_stayed_on(expect: Expectations, stage: Deployment) -> None:
    for name, process in stage.engines.processes.items():
        status = await stage.port(name).status()
        off = status.data.settings["disable_radix_cache"] if isinstance(status, OK) else "unknown"
        expect.expect(f"{name}: disable_radix_cache", False, off)
        calls = control_calls(process.log_path)
        expect.expect(f"{name}: pause, flush and abort calls", 0, sum(calls[route] for route in _STOPS))

"""Ours beside the original, trace by trace, in one process: `python -m tests.kv.compare WHAT FIRST AFTER`.

WHAT is victims, window, states or rates; seeds FIRST to AFTER - 1.

Prints one JSON line per comparison. The CPU stand-ins must be on PYTHONPATH; `run` starts it so.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

from attrs import evolve

from lorafsm.kv import CacheConfig, SessionCache
from lorafsm.kv.replay import Pool, Trace, replay
from lorafsm_cli.kv_generate import Agentic, agentic
from lorafsm_sglang.cpu_profile import cpu_environment

ROOT = Path(__file__).parents[2]
TTL = 60_000
"""Six times the median think time of the traces."""

POOLS, NOISES, LEAKS = (20_000, 12_000), (0.8, 0.4), (0.0, 0.3, 1.0)
SETTINGS = tuple(product(POOLS, NOISES, LEAKS))
SMALL = Agentic(sessions=20, live=6, turns=8, shared=60, added=20, task=20, noise_length=30, fork=0.4)


def why_not() -> str:
    """What is missing here to run the original; empty if nothing is."""
    return "" if find_spec("sglang") else "sglang 0.5.23 is not installed (`make test` installs it)"


def environment() -> dict[str, str]:
    """The environment of a process that can import the original."""
    found = cpu_environment()
    found["PYTHONPATH"] += f":{ROOT}:{ROOT / 'adapters'}"
    return found


def run(*arguments: str, timeout: float = 1800) -> list[dict[str, Any]]:
    """The comparisons of another process of this module."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.kv.compare", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=timeout)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def ours(trace: Trace, pool: int, **config: Any) -> float:
    """Our hit rate of session requests."""
    return replay(trace, Pool(SessionCache(CacheConfig(**config)), pool)).sessions.hit_rate


def victims(seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Sessions off, LRU: both serve the same small trace; what each request hit and whom it drove out."""
    from tests.kv.original import Original

    for seed in seeds:
        trace = agentic(evolve(SMALL, seed=seed))
        theirs = Original(600, sessions=False)
        mine = Pool(SessionCache(CacheConfig(sessions=False, split_touches_suffix=True)), 600)
        served = [(theirs.serve(request), mine.serve(request)) for request in trace.requests]
        yield {
            "seed": seed,
            "requests": len(served),
            "victims": sum(len(a.victims) for a, _ in served),
            "different": sum(a != b for a, b in served),
        }


WINDOW, FULL_SLOTS, SWA_SLOTS = 8, 600, 150


def window_victims(seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """The same of a model with a sliding window: two pools, and victims of both components in their order."""
    from tests.kv.original_window import OurWindow, TheirWindow

    for seed in seeds:
        trace = agentic(evolve(SMALL, seed=seed))
        theirs = TheirWindow(FULL_SLOTS, SWA_SLOTS, WINDOW)
        mine = OurWindow(FULL_SLOTS, SWA_SLOTS, WINDOW)
        served = [(theirs.serve(request), mine.serve(request)) for request in trace.requests]
        named = [name for a, _ in served for name, _ in a[1]]
        yield {
            "seed": seed,
            "full": named.count("full"),
            "swa": named.count("swa"),
            "different": sum(a != b for a, b in served),
        }


STATES = 8


def state_victims(seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """The same of a model with recurrent states: a pool of slots and one of states."""
    from tests.kv.original_states import OurStates, TheirStates

    for seed in seeds:
        trace = agentic(evolve(SMALL, seed=seed))
        theirs = TheirStates(FULL_SLOTS, STATES)
        mine = OurStates(FULL_SLOTS, STATES)
        served = [(theirs.serve(request), mine.serve(request)) for request in trace.requests]
        names = [name for a, _ in served for name, _ in a[1]]
        yield {
            "seed": seed,
            "full": names.count("full"),
            "state": names.count("mamba"),
            "different": sum(a != b for a, b in served),
        }


def rates(
    seeds: Sequence[int], settings: Sequence[tuple[int, float, float]] = SETTINGS, *, original: bool = True
) -> Iterator[dict[str, Any]]:
    """Sessions on: hit rates of session requests of the original, ours, and plain LRU."""
    for seed, (pool, noise, leak) in product(seeds, settings):
        trace = agentic(Agentic(seed=seed, noise=noise, leak=leak))
        yield {
            "seed": seed,
            "pool": pool,
            "noise": noise,
            "leak": leak,
            "lru": ours(trace, pool, sessions=False),
            "original": _original(trace, pool) if original else None,
            "ours": ours(trace, pool, ttl=TTL),
        }


def _original(trace: Trace, pool: int) -> float:
    from tests.kv.original import Original

    return replay(trace, Original(pool, sessions=True)).sessions.hit_rate


def main(what: str, first: str, after: str, *settings: str) -> None:
    """Compare and print."""
    seeds = range(int(first), int(after))
    chosen = [SETTINGS[int(number)] for number in settings] or SETTINGS
    lines = {"victims": victims, "window": window_victims, "states": state_victims}
    for line in lines[what](seeds) if what in lines else rates(seeds, chosen):
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

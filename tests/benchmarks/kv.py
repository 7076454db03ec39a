"""The KV cache policy: single operations beside the original's cores, and hit rates beside the original.

The original (SGLang 0.5.23's UnifiedRadixCache) runs in a process of its own with the CPU stand-ins; where it is not
installed, our figures stand alone and goals on ratios are not met.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from attrs import evolve

from lorafsm_cli.kv_generate import agentic
from tests.benchmarks.figures import Figure, Goal
from tests.benchmarks.kv_cores import OPERATIONS, measure
from tests.benchmarks.sizes import Sizes
from tests.kv import compare

PYTHON, NATIVE = "SGLang's Python core", "SGLang's native core"
RATIOS = ("insert", "match", "register", "close")
GOALS = {
    "kv.evict_one.1e5.us": Goal(50),
    "kv.evict_one.flatness": Goal(2),
    **{f"kv.{operation}.ratio": Goal(1, of_ratio=True) for operation in RATIOS},
}


def figures(sizes: Sizes) -> Iterator[Figure]:
    """Every operation at every size and shape; then what the goals are about; then hit rates."""
    tiny = sizes.live[-1] < 1000
    stars, chains, repeats = ((8, 32), (8, 32), 4) if tiny else ((1000, 10_000, 100_000), (1000, 10_000, 100_000), 100)
    found = cores(stars, chains, repeats)
    yield from _every(found)
    yield from _judged(found, stars)
    yield from _rates(tiny)


def cores(stars: tuple[int, ...], chains: tuple[int, ...], repeats: int) -> dict[str, Any]:
    """Times of our core and, where it is installed, of theirs: core -> shape -> size -> operation -> µs."""
    if compare.why_not():
        return measure(list(stars), list(chains), repeats, only_ours=True)
    arguments = [",".join(map(str, numbers)) for numbers in (stars, chains, (repeats,))]
    command = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.kv_cores", *arguments]
    done = subprocess.run(
        command, cwd=compare.ROOT, env=compare.environment(), capture_output=True, text=True, timeout=3000
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def _every(found: dict[str, Any]) -> Iterator[Figure]:
    for shape, shape_sizes in found["ours"].items():
        for size, times in shape_sizes.items():
            for operation in OPERATIONS:
                name = f"kv.{shape}_{size}.{operation}"
                for suffix, peer, core in (("us", PYTHON, "python"), ("vs_native", NATIVE, "native")):
                    theirs = found.get(core, {}).get(shape, {}).get(size, {}).get(operation)
                    if theirs is not None or core == "python":
                        yield Figure(f"{name}.{suffix}", times[operation], "µs", peer if theirs else "", theirs)


def _judged(found: dict[str, Any], stars: tuple[int, ...]) -> Iterator[Figure]:
    """The worst ratio over all stars and chains; evict-one with the most nodes, and its growth."""
    ours, theirs = found["ours"], found.get("python")
    for operation in RATIOS:
        pairs = [
            (times[operation], theirs[shape][size][operation] if theirs else None)
            for shape in ("star", "chain")
            for size, times in ours[shape].items()
        ]
        mine, peer = max(pairs, key=lambda pair: pair[0] / pair[1] if pair[1] else 0)
        yield Figure(f"kv.{operation}.ratio", mine, "µs", PYTHON if peer else "", peer)
    few, many = str(stars[0]), str(stars[-1])
    last = theirs["star"][many]["evict_one"] if theirs else None
    yield Figure("kv.evict_one.1e5.us", ours["star"][many]["evict_one"], "µs", PYTHON if theirs else "", last)
    for name, shape in (("flatness", "star"), ("disorder_flatness", "closed")):
        yield Figure(f"kv.evict_one.{name}", ours[shape][many]["evict_one"] / ours[shape][few]["evict_one"], "×")


def _rates(tiny: bool) -> Iterator[Figure]:
    """Token hit rates of session requests, seed 0: all sessions closed, and none."""
    for name, leak in (("sessions_on", 0.0), ("all_leaked", 1.0)):
        setting = compare.SETTINGS.index((20_000, 0.8, leak))
        if tiny:
            trace = agentic(evolve(compare.SMALL, leak=leak))
            yield Figure(f"kv.hit_rate.{name}", compare.ours(trace, 600, ttl=compare.TTL), "share")
        elif compare.why_not():
            row = next(compare.rates([0], [compare.SETTINGS[setting]], original=False))
            yield Figure(f"kv.hit_rate.{name}", row["ours"], "share")
        else:
            [row] = compare.run("rates", "0", "1", str(setting))
            yield Figure(f"kv.hit_rate.{name}", row["ours"], "share", "SGLang's sessions", row["original"])

"""The comparison of lorafsm/kv/README.md: `python -m tests.kv.report` measures, draws and writes it.

python -m tests.kv.report                 # ten seeds, about half an hour of processor time
python -m tests.kv.report rows.jsonl      # from rows that were measured before (`tests.kv.compare rates`)
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from lorafsm.kv.replay import Belady, Infinite, replay
from lorafsm_cli.kv_generate import Agentic, agentic
from tests.kv import compare

FOLDER = compare.ROOT / "lorafsm" / "kv"
SEEDS, BOUND_SEEDS = range(10), range(3)
BEGIN, END = "<!-- begin: python -m tests.kv.report -->", "<!-- end -->"
WHO = {"lru": "LRU", "original": "SGLang 0.5.23, sessions on", "ours": "ours"}

Rows = Sequence[Mapping[str, Any]]


def bounds() -> dict[int, dict[str, float]]:
    """Offline optimum and infinite pool, for each pool: means of the first seeds, noise 0.8."""
    found: dict[int, dict[str, list[float]]] = {pool: {"belady": [], "infinite": []} for pool in compare.POOLS}
    for seed in BOUND_SEEDS:
        trace = agentic(Agentic(seed=seed, noise=compare.NOISES[0]))
        infinite = replay(trace, Infinite()).sessions.hit_rate
        for pool in compare.POOLS:
            found[pool]["belady"].append(replay(trace, Belady(trace, pool)).sessions.hit_rate)
            found[pool]["infinite"].append(infinite)
    return {pool: {name: mean(rates) for name, rates in both.items()} for pool, both in found.items()}


def of(rows: Rows, pool: int, noise: float, leak: float) -> Rows:
    """The rows of one setting."""
    return [row for row in rows if (row["pool"], row["noise"], row["leak"]) == (pool, noise, leak)]


def table(rows: Rows, best: Mapping[int, Mapping[str, float]]) -> Iterable[str]:
    """Means over the seeds, and the worst seed."""
    seeds = len({row["seed"] for row in rows})
    yield f"Token hit rate of session requests, mean of {seeds} seeds; worst: the lowest (ours - original) of any seed."
    yield ""
    yield "| pool (blocks) | noise | never closed | LRU | original | ours | gain | worst |"
    yield "|--:|--:|--:|--:|--:|--:|--:|--:|"
    for pool, noise, leak in compare.SETTINGS:
        here = of(rows, pool, noise, leak)
        lru, original, ours = (mean(row[who] for row in here) for who in WHO)
        worst = min(row["ours"] - row["original"] for row in here)
        yield (
            f"| {pool:,} | {noise} | {leak:.0%} | {lru:.4f} | {original:.4f} | **{ours:.4f}** "
            f"| {ours - original:+.4f} | {worst:+.4f} |"
        )
    yield ""
    said = [f"pool {pool:,}: {both['belady']:.3f}" for pool, both in best.items()]
    infinite = next(iter(best.values()))["infinite"]
    yield (
        f"The offline optimum (noise 0.8, {len(BOUND_SEEDS)} seeds): {', '.join(said)}; "
        f"an infinite pool: {infinite:.3f}."
    )


def draw(path: Path, rows: Rows, best: Mapping[int, Mapping[str, float]]) -> None:
    """Hit rate over the share of sessions that nobody closes, one panel a pool."""
    matplotlib.rcParams["svg.hashsalt"] = "lorafsm"
    figure = Figure(figsize=(9, 4), layout="constrained")
    noise = compare.NOISES[0]
    for axes, pool in zip(figure.subplots(1, 2), compare.POOLS, strict=True):
        for who, label in WHO.items():
            rates = [mean(row[who] for row in of(rows, pool, noise, leak)) for leak in compare.LEAKS]
            axes.plot([100 * leak for leak in compare.LEAKS], rates, marker="o", label=label)
        axes.axhline(best[pool]["belady"], linestyle="--", color="gray", label="offline optimum")
        axes.axhline(best[pool]["infinite"], linestyle=":", color="gray", label="infinite pool")
        axes.set(title=f"pool of {pool:,} blocks", xlabel="sessions never closed (%)", ylim=(0.6, 1.0))
    figure.axes[0].set_ylabel("token hit rate of session requests")
    figure.axes[0].legend(fontsize="small", loc="lower left")
    figure.savefig(path, metadata={"Date": None})


def write(path: Path, lines: Iterable[str]) -> None:
    """Put the lines between the two marks."""
    before, _, rest = path.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    path.write_text("\n".join([before + BEGIN, "", *lines, "", END]) + after)


def main(files: Sequence[str]) -> None:
    """Measure, or read; draw; write."""
    if files:
        rows = [json.loads(line) for file in files for line in Path(file).read_text().splitlines()]
    else:
        rows = compare.run("rates", str(SEEDS.start), str(SEEDS.stop), timeout=36_000)
    best = bounds()
    draw(FOLDER / "hit_rates.svg", rows, best)
    write(FOLDER / "README.md", [*table(rows, best), "", "![hit rates](hit_rates.svg)"])


if __name__ == "__main__":
    main(sys.argv[1:])

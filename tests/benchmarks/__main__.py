"""`make bench`: measure every topic, print a table, write out/bench/results.json.

A topic is a module with `figures(sizes)` and `GOALS`; a new one is a file and a word in TOPICS.  ON_ENGINES start real
SGLang engines, which have no tiny size: they are left out with `--tiny`.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

from rich.console import Console

from tests.benchmarks import actor, guard, guard_cost, journal, kv, libraries, memory, searching, steps, transfer
from tests.benchmarks.figures import Figure, Goal, as_table, write_json
from tests.benchmarks.sizes import FULL, TINY

TOPICS: Mapping[str, ModuleType] = {
    "steps": steps,
    "guard": guard,
    "libraries": libraries,
    "memory": memory,
    "searching": searching,
    "kv": kv,
    "journal": journal,
    "actor": actor,
    "transfer": transfer,
}
ON_ENGINES: Mapping[str, ModuleType] = {"engines": guard_cost}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the topics that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description="Measure, print, write.")
    parser.add_argument(
        "topics", nargs="*", choices=[*TOPICS, *ON_ENGINES, []], help="only these; the file keeps other figures"
    )
    parser.add_argument("--out", type=Path, default=Path("out/bench/results.json"))
    parser.add_argument("--tiny", action="store_true", help="tiny sizes: shows that everything runs, says nothing")
    asked = parser.parse_args(arguments)
    console = Console()
    if not console.is_terminal:
        console.width = 160  # in a file nothing is cut off
    figures: list[Figure] = []
    goals: dict[str, Goal] = {}
    known = TOPICS if asked.tiny else {**TOPICS, **ON_ENGINES}
    if lacking := set(asked.topics) - set(known):
        parser.error(f"{', '.join(sorted(lacking))}: no tiny size; leave --tiny out")
    for name in asked.topics or known:
        console.print(f"measuring {name}", style="dim")
        figures += known[name].figures(TINY if asked.tiny else FULL)
        goals |= known[name].GOALS
    write_json(asked.out, figures, keep=bool(asked.topics))
    console.print(as_table(figures, goals))
    console.print(f"written to {asked.out}")


if __name__ == "__main__":
    main()

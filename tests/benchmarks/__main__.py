"""`make bench`: measure every topic, print a table, write out/bench/results.json.

A topic is a module with `figures(sizes)` and `GOALS`; a new one is a file and a word in TOPICS.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

from rich.console import Console

from tests.benchmarks import actor, guard, journal, kv, libraries, memory, searching, steps, transfer
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the topics that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description="Measure, print, write.")
    parser.add_argument("topics", nargs="*", choices=[*TOPICS, []], help="only these; the file keeps other figures")
    parser.add_argument("--out", type=Path, default=Path("out/bench/results.json"))
    parser.add_argument("--tiny", action="store_true", help="tiny sizes: shows that everything runs, says nothing")
    asked = parser.parse_args(arguments)
    console = Console()
    if not console.is_terminal:
        console.width = 160  # in a file nothing is cut off
    figures: list[Figure] = []
    goals: dict[str, Goal] = {}
    for name in asked.topics or TOPICS:
        console.print(f"measuring {name}", style="dim")
        figures += TOPICS[name].figures(TINY if asked.tiny else FULL)
        goals |= TOPICS[name].GOALS
    write_json(asked.out, figures, keep=bool(asked.topics))
    console.print(as_table(figures, goals))
    console.print(f"written to {asked.out}")


if __name__ == "__main__":
    main()

"""`python -m tests.mutants`: damage core and specification, one guard or effect at a time; somebody must see it.

What was seen the last time stands in killers.json; a run asks that killer first.  `--write` notes a whole run there
and renews the table of tla/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

from tests.mutants.core_run import run_core
from tests.mutants.core_tree import core_mutants
from tests.mutants.notes import Notes, equivalent, read_notes, written

RESULTS = Path("out/mutants")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the mutants that were asked for; 1 when one survives that equivalents.toml does not explain."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Mutation of core and specification.")
    parser.add_argument("parts", nargs="*", choices=["core", "spec", []], help="only these")
    parser.add_argument("--seeded-tenth", action="store_true", help="one mutant in ten, by their known killers")
    parser.add_argument("--seed", type=int, default=1, help="which tenth")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--match", default="", help="only mutants whose id has this in it")
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after so long; --resume goes on from there")
    parser.add_argument("--resume", action="store_true", help="keep what an earlier run found out")
    parser.add_argument("--write", action="store_true", help="note the results, renew the table")
    asked = parser.parse_args(arguments)
    survivors = 0
    for part in asked.parts or ["core", "spec"]:
        survivors += _run(part, asked)
    if asked.write:
        written(RESULTS)
    return 1 if survivors else 0


def _run(part: str, asked: argparse.Namespace) -> int:
    known, began = read_notes(part), monotonic()
    done = _earlier(part) if asked.resume else Notes()
    ids = [mutant.id for mutant in _mutants(part) if asked.match in mutant.id and mutant.id not in done]
    random.Random(asked.seed).shuffle(ids)  # so that a part of a run is a fair part
    excused, survivors = equivalent(part), 0
    if asked.seeded_tenth:  # by their known killers: who changes nothing has none
        ids = [name for name in ids if name not in excused][: len(ids) // 10]
    for count, verdict in enumerate(_verdicts(part, ids, known, dict(done), asked), 1):
        done[verdict.id] = verdict.killer
        if not verdict.killer and verdict.id not in excused:
            survivors += 1
            print(f"SURVIVES {part} {verdict.id}", flush=True)
        if part == "spec" or count % 25 == 0 or count == len(ids):
            if not asked.seeded_tenth:
                _keep(part, done)
            if count % 25 == 0:
                print(f"{part}: {count} of {len(ids)}, {monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        if monotonic() - began > 60 * asked.minutes:
            print(f"{part}: stopped after {count} of {len(ids)}; go on with --resume", flush=True)
            break
    print(f"{part}: {len(ids)} mutants, {survivors} survive, {monotonic() - began:.0f} s", flush=True)
    return survivors


def _mutants(part: str) -> Sequence[object]:
    if part == "core":
        return core_mutants()
    from tests.mutants.spec_tree import spec_mutants

    return spec_mutants()


def _verdicts(part: str, ids: list[str], known: Notes, done: Notes, asked: argparse.Namespace):
    by_id = {mutant.id: mutant for mutant in _mutants(part)}
    chosen = [by_id[name] for name in ids]
    seen = known | done
    known = {name: known[name] for name in ids if name in known}
    if part == "core":
        return run_core(chosen, known, asked.jobs, quick=asked.seeded_tenth, seen=seen)
    from tests.mutants.spec_run import run_spec

    return run_spec(chosen, known, asked.jobs, quick=asked.seeded_tenth)


def _earlier(part: str) -> Notes:
    path = RESULTS / f"{part}.json"
    done = json.loads(path.read_text()) if path.is_file() else {}
    return {name: killer for name, killer in done.items() if killer}  # survivors are tried again


def _keep(part: str, done: Notes) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{part}.json").write_text(json.dumps(done, indent=0, sort_keys=True))


if __name__ == "__main__":
    sys.exit(main())

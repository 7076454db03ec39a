"""Run mutants of the core: each in a forked process, until somebody sees it."""

from __future__ import annotations

import gc
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from attrs import frozen

from tests.mutants.core_killers import FIRST, SEARCHED, SECOND, again, killers, put_in, read_all
from tests.mutants.core_tree import CoreMutant
from tests.mutants.forked import each

SECONDS = 240.0
"""How much processor time a mutant may take; one that nobody saw by then counts as not seen."""


@frozen
class Verdict:
    """What became of a mutant."""

    id: str
    killer: str  # empty: it survived
    saw: str


def run_core(
    mutants: Sequence[CoreMutant], known: Mapping[str, str], jobs: int, *, quick: bool, seen: Mapping[str, str]
) -> Iterator[Verdict]:
    """The verdicts as they come; `known` killers are asked first, with `quick` nobody else, then who saw neighbours."""
    by_id = {mutant.id: mutant for mutant in mutants}
    looks = {name.rpartition(" ")[2] for name in known.values()}
    read_all([limit for limit in (FIRST, SECOND, SEARCHED) if not quick or str(limit) in looks])
    gc.collect()
    gc.freeze()  # what all children share is not touched by their collectors
    neighbours: Neighbours = defaultdict(Counter)
    for name, killer in seen.items():
        neighbours[_place(name)][killer] += 1
    work = partial(_judged, by_id, known, neighbours, quick)
    for name, answer in each(by_id, work, jobs, lambda name: SECONDS):
        if isinstance(answer, list):
            neighbours[_place(name)][answer[0]] += 1
            yield Verdict(name, *answer)
        else:
            yield Verdict(name, "", str(answer))


Neighbours = dict[str, Counter[str]]
"""Who saw the other mutants of a function so far: whoever is forked next has it from its parent."""
ASKED = 8


def _place(name: str) -> str:
    return name.split(": ")[0]


def _judged(
    by_id: Mapping[str, CoreMutant], known: Mapping[str, str], neighbours: Neighbours, quick: bool, name: str
) -> list[str]:
    mutant = by_id[name]
    put_in(mutant)
    first = [again(mutant, known[name])] if known.get(name) else []
    if not (quick and first):
        likely = [killer for killer, _ in neighbours[_place(name)].most_common(ASKED) if killer]
        first += [again(mutant, killer) for killer in likely if killer != known.get(name)]
        first += killers(mutant)
    for killer in first:
        try:
            saw = killer.look()
        except Exception as error:  # a step that raises is seen by whoever takes it
            saw = f"raises {error!r}"
        if saw:
            return [saw if saw.startswith("tests/") else killer.name, saw[:200]]
    return ["", ""]

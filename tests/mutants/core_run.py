"""Run mutants of the core: each in a forked process, until somebody sees it."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from attrs import frozen

from tests.mutants.core_killers import FIRST, SEARCHED, SECOND, again, killers, put_in, read_all
from tests.mutants.core_tree import CoreMutant
from tests.mutants.forked import each

SECONDS = 240.0
"""How long a mutant may take; one that nobody saw by then counts as not seen."""


@frozen
class Verdict:
    """What became of a mutant."""

    id: str
    killer: str  # empty: it survived
    saw: str


def run_core(mutants: Sequence[CoreMutant], known: Mapping[str, str], jobs: int, *, quick: bool) -> Iterator[Verdict]:
    """The verdicts as they come; `known` killers are asked first, and with `quick` nobody else."""
    by_id = {mutant.id: mutant for mutant in mutants}
    looks = {name.rpartition(" ")[2] for name in known.values()}
    read_all([limit for limit in (FIRST, SECOND, SEARCHED) if not quick or str(limit) in looks])
    gc.collect()
    gc.freeze()  # what all children share is not touched by their collectors
    work = partial(_judged, by_id, known, quick)
    for name, answer in each(by_id, work, jobs, lambda name: SECONDS):
        if isinstance(answer, list):
            yield Verdict(name, *answer)
        else:
            yield Verdict(name, "", str(answer))


def _judged(by_id: Mapping[str, CoreMutant], known: Mapping[str, str], quick: bool, name: str) -> list[str]:
    mutant = by_id[name]
    put_in(mutant)
    first = [again(mutant, known[name])] if known.get(name) else []
    for killer in first if quick and first else [*first, *killers(mutant)]:
        try:
            saw = killer.look()
        except Exception as error:  # a step that raises is seen by whoever takes it
            saw = f"raises {error!r}"
        if saw:
            return [saw if saw.startswith("tests/") else killer.name, saw[:200]]
    return ["", ""]

"""Run mutants of the specification: TLC writes the graphs of many at once, and each must differ from the golden one.

A mutant that makes TLC fail (a value asked of a function outside of its domain) is seen too, in a run of its own.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from attrs import evolve, frozen

from lorafsm_tla.golden import read_golden
from lorafsm_tla.manifest import Model, folder
from lorafsm_tla.tlc import _command, _tlc
from lorafsm_tla.values import Graph, read_value, text_of
from tests.mutants.core_killers import AGENT_BOXES, GOLDEN, REGISTRY_BOXES
from tests.mutants.core_run import Verdict
from tests.mutants.spec_tree import SpecMutant, actions_reaching, with_mutants

BATCH, MINUTES = 100, 4.0
_NODE = re.compile(r'^(-?\d+) \[label="(.*)"\];?$')
_EDGE = re.compile(r'^(-?\d+) -> (-?\d+) \[label="(\w*)"')
_MUTANT = re.compile(r"\n?/\\ mutant = (\d+)")
Batch = dict[int, SpecMutant]


def run_spec(mutants: Sequence[SpecMutant], known: Mapping[str, str], jobs: int, *, quick: bool) -> Iterator[Verdict]:
    """The verdicts as they come; `known` boxes are asked first, and with `quick` no other."""
    left = dict(enumerate(mutants, 1))
    first: dict[str, Batch] = {}
    for number, mutant in left.items():
        if box := _box_of(known.get(mutant.id, "")):
            first.setdefault(box, {})[number] = mutant
    with ThreadPoolExecutor(jobs) as pool:
        for found in pool.map(_seen_by, [part for box, batch in first.items() for part in _parts(box, batch)]):
            for number, killer in found:
                yield Verdict(left.pop(number).id, killer, "")
        for box in BOXES if not quick or not known else ():
            able = {number: mutant for number, mutant in left.items() if _comes_to(box, mutant)}
            for found in pool.map(_seen_by, _parts(box, able)):
                for number, killer in found:
                    yield Verdict(left.pop(number).id, killer, "")
    for mutant in left.values():
        yield Verdict(mutant.id, "", "")


BOXES = sorted([*REGISTRY_BOXES, *AGENT_BOXES], key=lambda box: GOLDEN[box].generated or 0)
"""The cheapest first."""


def _parts(box: str, batch: Batch) -> list[tuple[str, Batch]]:
    numbers = list(batch)
    return [(box, {n: batch[n] for n in numbers[at : at + BATCH]}) for at in range(0, len(numbers), BATCH)]


def _seen_by(task: tuple[str, Batch]) -> list[tuple[int, str]]:
    return list(_seen_in(*task))


@cache
def _happens(box: str) -> frozenset[str]:
    [names] = re.findall(r"^    Happens = {(.*)}$", (folder() / GOLDEN[box].cfg).read_text(), re.MULTILINE)
    return frozenset(re.findall(r"\w+", names))


def _comes_to(box: str, mutant: SpecMutant) -> bool:
    """Whether some action of this box reaches the mutant's definition."""
    of_agent = GOLDEN[box].module == "MCEngineAgent"
    return (mutant.module == "EngineAgent") is of_agent and bool(_happens(box) & actions_reaching(*_place(mutant)))


def _place(mutant: SpecMutant) -> tuple[str, str]:
    return mutant.module, mutant.definition


def _box_of(killer: str) -> str:
    return killer.removeprefix("error in ").removeprefix("no end in ")


def _seen_in(box: str, batch: Batch) -> Iterator[tuple[int, str]]:
    """Which mutants of a batch differ in this box, and by what they were seen."""
    alive = dict(batch)
    while alive:
        run = _run(box, alive)
        if run.failed:
            yield run.failed, f"error in {box}"
            del alive[run.failed]
            continue
        if run.late:  # one of them goes on for ever: find it
            if len(alive) == 1:
                yield next(iter(alive)), f"no end in {box}"
                return
            numbers = list(alive)
            middle = len(numbers) // 2
            for half in (numbers[:middle], numbers[middle:]):
                yield from _seen_in(box, {number: alive[number] for number in half})
            return
        yield from ((number, box) for number in sorted(run.differ))
        return


@frozen
class _Run:
    differ: frozenset[int] = frozenset()
    failed: int = 0
    late: bool = False


def _run(box: str, batch: Batch, numbers: Sequence[int] = ()) -> _Run:
    """The graphs of these mutants of a batch; 0 is nobody, the specification as it is written."""
    numbers = numbers or sorted(batch)
    model = GOLDEN[box]
    base = next(iter(batch.values())).module
    with tempfile.TemporaryDirectory(prefix="lorafsm-mutants-") as place:
        work = Path(place)
        for module in folder().glob("*.tla"):
            (work / module.name).write_bytes(module.read_bytes())
        (work / f"{base}.tla").write_text(with_mutants(base, batch))
        (work / "Mutated.tla").write_text(_module(model, list(numbers)))
        (work / "mutated.cfg").write_text(_configuration(model))
        dump = work / "graph.dot"
        mutated = evolve(model, module="Mutated", cfg=str(work / "mutated.cfg"))
        _, output = _tlc(_command(mutated, folder(), work, dump), work, MINUTES * 60, lambda line: None)
        if "the time limit of" in output:
            return _Run(late=True)
        if "Error:" in output:
            failed = _MUTANT.findall(output) or re.findall(r"mutant = (\d+)", output)
            if not failed:
                raise RuntimeError(f"TLC failed, and not because of a mutant:\n{output[-3000:]}")
            return _Run(failed=int(failed[-1]))
        return _Run(differ=_different(dump, box, frozenset(numbers)))


def _module(model: Model, numbers: list[int]) -> str:
    return "\n".join(
        [
            "---- MODULE Mutated ----",
            f"EXTENDS {model.module}, TLC",
            f"MutatedInit == mutant \\in {{{', '.join(map(str, numbers))}}} /\\ MCInit".replace("MCInit", _init(model)),
            "MutatedSpec == MutatedInit /\\ [][MCNext]_<<vars, mutant>>",
            # Who makes more steps than the golden graph has is another graph; how many more is nobody's business.
            f"ASSUME \\A m \\in {{{', '.join(map(str, numbers))}}} : TLCSet(m, 0)",
            f"NotLarger == TLCSet(mutant, TLCGet(mutant) + 1) /\\ TLCGet(mutant) <= {model.generated} + 100",
            "====",
        ]
    )


def _init(model: Model) -> str:
    return "MCInit" if model.module == "MCLoraRegistry" else "Init"


def _configuration(model: Model) -> str:
    kept, skip = [], False
    for line in (folder() / model.cfg).read_text().splitlines():
        if line.startswith(("INVARIANT", "PROPERT", "SPECIFICATION")):
            skip = True
        elif line and not line.startswith(" "):
            skip = False
        if not skip:
            kept.append(line)
    return "\n".join(["SPECIFICATION MutatedSpec", "CONSTRAINT NotLarger", *kept, ""])


@frozen
class _Wanted:
    """A golden graph by numbers."""

    index: dict[tuple[tuple[str, str], ...], int]
    initial: frozenset[int]
    edges: frozenset[tuple[int, str, int]]


@cache
def _wanted(box: str) -> _Wanted:
    graph: Graph = read_golden(folder() / GOLDEN[box].golden)
    index = {state: number for number, state in enumerate(graph.steps)}
    edges = {(index[a], action, index[b]) for a, out in graph.steps.items() for action, b in out}
    return _Wanted(index, frozenset(index[state] for state in graph.initial), frozenset(edges))


def _different(dump: Path, box: str, numbers: frozenset[int]) -> frozenset[int]:
    """The mutants whose part of the dump is not the golden graph."""
    wanted, known, values = _wanted(box), dict[str, int | None](), dict[str, str]()
    nodes: dict[str, tuple[int, int]] = {}
    initial: dict[int, set[int]] = {number: set() for number in numbers}
    edges: dict[int, set[tuple[int, str, int]]] = {number: set() for number in numbers}
    differ: set[int] = set()
    later: list[tuple[str, str, str]] = []

    def state_of(label: str) -> int | None:
        text = label.replace("\\\\", "\\").replace("\\n", "\n").replace('\\"', '"')
        pairs = []
        for part in ("\n" + text).split("\n/\\ "):
            if part.strip():
                name, value = part.split(" = ", 1)
                if value not in values:
                    values[value] = text_of(read_value(value))
                pairs.append((name.strip(), values[value]))
        return wanted.index.get(tuple(sorted(pairs)))

    with dump.open() as lines:
        for line in lines:
            if edge := _EDGE.match(line):
                later.append((edge[1], edge[3], edge[2]))
            elif " [label=" in line and (node := _NODE.match(line.rstrip().replace(",style = filled]", "]"))):
                found = re.search(r"(?:\\n)?/\\\\ mutant = (\d+)", node[2])
                assert found is not None, node[2]
                number, label = int(found[1]), node[2].replace(found[0], "", 1).removeprefix("\\n")
                if label not in known:
                    known[label] = state_of(label)
                state = known[label]
                if state is None:
                    differ.add(number)
                else:
                    nodes[node[1]] = number, state
                    if "style = filled" in line:
                        initial[number].add(state)
    for source, action, target in later:
        if source != target and source in nodes and target in nodes:
            number, state = nodes[source]
            edges[number].add((state, action.removeprefix("MC"), nodes[target][1]))
    return frozenset(n for n in numbers if n in differ or initial[n] != wanted.initial or edges[n] != wanted.edges)

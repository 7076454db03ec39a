"""One run of TLC, and whether it found what the manifest says.

Exit 0 does not mean that the search came to its end, and counts that moved mean that the model moved: both are
asked.  Each run has folders of its own, so that runs may go on beside one another.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from threading import Timer
from time import monotonic

from attrs import field, frozen

from lorafsm_tla.golden import LIMIT, encoded, first_difference, read_golden
from lorafsm_tla.jar import java, tla2tools
from lorafsm_tla.manifest import EXITS, Model
from lorafsm_tla.values import Graph, read_dump

_COUNTS = re.compile(r"^(\d+) states generated, (\d+) distinct states found, (\d+) states left on queue", re.MULTILINE)
_DEPTH = re.compile(r"depth of the complete state graph search is (\d+)")
_PROGRESS = re.compile(r"^Progress\((\d+)\).*?([\d,]+) distinct states")
_BROKEN = re.compile(
    r"Error: (?:Invariant|Action property|Property) (\S+).*? is violated|(Temporal properties) were vio"
)
_LINE = re.compile(r"Error: Action property line (\d+), col \d+ .* of module (\w+) is violated")


@frozen
class Result:
    """What a run found, and what in it is not as expected (empty: all is)."""

    model: Model
    faults: tuple[str, ...]
    seconds: float
    generated: int | None = None
    distinct: int | None = None
    depth: int | None = None
    output: str = field(default="", repr=False)
    graph: Graph | None = field(default=None, repr=False)

    @property
    def ok(self) -> bool:
        """Whether everything is as the manifest says."""
        return not self.faults


def run(
    model: Model,
    tla: Path,
    *,
    tell: Callable[[str], None] = lambda line: None,
    pin: bool = False,
    extra: dict[str, str] | None = None,
) -> Result:
    """Run one model; `tell` hears of the progress, `pin` takes the counts and the graph as they come.

    `extra` are further modules by name: they lie beside those of `tla`, or in the place of one.
    """
    with tempfile.TemporaryDirectory(prefix="lorafsm-tlc-") as place:
        work = Path(place)
        for module in tla.glob("*.tla"):
            (work / module.name).write_bytes(module.read_bytes())
        for name, text in (extra or {}).items():
            (work / f"{name}.tla").write_text(text)
        dump = work / "graph.dot" if model.golden else None
        started = monotonic()
        code, output = _tlc(_command(model, tla, work, dump), work, model.minutes * 60, tell)
        seconds = monotonic() - started
        (work / "output.txt").write_text(output)
        counts = _COUNTS.findall(output)
        depth = _DEPTH.search(output)
        generated, distinct, left = map(int, counts[-1]) if counts else (None, None, None)
        deep = int(depth[1]) if depth else None
        faults = _faults(model, code, output, left, work)
        if not pin and not faults:
            faults += _moved(model, generated, distinct, deep)
        graph = read_dump(dump) if dump is not None and not faults else None
        if graph is not None:
            faults += _write_golden(graph, tla / model.golden) if pin else _against_golden(graph, tla / model.golden)
        return Result(model, tuple(faults), seconds, generated, distinct, deep, output, graph)


def _command(model: Model, tla: Path, work: Path, dump: Path | None) -> list[str]:
    command = [java(), "-XX:+UseSerialGC", "-Xss16m", f"-Djava.io.tmpdir={work}"]
    if model.tier == "ci":
        command.append("-XX:TieredStopAtLevel=1")  # short runs end before the second compiler pays
    command += ["-cp", str(tla2tools()), "tlc2.TLC", "-workers", str(model.workers), "-metadir", str(work / "states")]
    command += ["-config", str((tla / model.cfg).resolve())]
    if not model.deadlock:
        command.append("-deadlock")  # which means: do not look for deadlocks
    if model.simulate:
        command += ["-simulate", f"num={model.simulate}", "-depth", str(model.simulate_depth), "-seed", "1"]
    if dump is not None:
        command += ["-dump", "dot,actionlabels", str(dump)]
    return [*command, f"{model.module}.tla"]


def _tlc(command: list[str], work: Path, limit: float, tell: Callable[[str], None]) -> tuple[int, str]:
    lines: list[str] = []
    with subprocess.Popen(
        command, cwd=work, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        timer = Timer(limit, process.kill)
        timer.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                if progress := _PROGRESS.match(line):
                    tell(f"depth {progress[1]}, {progress[2]} distinct states")
            process.wait()
        finally:
            late = not timer.is_alive()
            timer.cancel()
            process.kill()
    if late:
        lines.append(f"Error: the time limit of {limit:.0f} s was reached\n")
    return process.returncode, "".join(lines)


def _faults(model: Model, code: int, output: str, left: int | None, work: Path) -> list[str]:
    broken = broken_property(output, work)
    if code != model.exit:
        said = EXITS.get(code, "failed")
        errors = [line for line in output.splitlines() if line.startswith("Error:")][:3]
        return [f"TLC ended with {code} ({said} {broken or ''}), expected {model.exit}: {' '.join(errors)}"]
    if model.exit == 0:
        errors = [line for line in output.splitlines() if "Error:" in line]
        if errors:
            return errors[:3]
        if model.simulate:
            walked = re.findall(r"Progress: (\d+) states checked", output)
            few = not walked or int(walked[-1]) < model.simulate
            return [f"the walks did not end: {walked[-1] if walked else 'no'} states checked"] if few else []
        return [] if left == 0 else [f"the search did not end: {left} states left on queue"]
    if model.violates and broken != model.violates:
        return [f"{broken} is broken, {model.violates} should be"]
    return []


def broken_property(output: str, work: Path) -> str | None:
    """The name of the property that TLC says is broken; an action property is named by TLC by its place only."""
    if place := _LINE.search(output):
        lines = (work / f"{place[2]}.tla").read_text().splitlines()[: int(place[1])]
        named = [found[1] for line in lines if (found := re.match(r"(\w+)(?:\(.*?\))? ==", line))]
        return named[-1] if named else None
    if found := _BROKEN.search(output):
        return found[1] or found[2]
    return "Deadlock" if "Error: Deadlock reached" in output else None


def _moved(model: Model, generated: int | None, distinct: int | None, depth: int | None) -> list[str]:
    if model.exit != 0 or model.simulate:
        return []
    found = {"generated": generated, "distinct": distinct, "depth": depth}
    return [
        f"{name} {value}, pinned {getattr(model, name)}; if that is meant: check --pin {model.name}"
        for name, value in found.items()
        if getattr(model, name) != value
    ]


def _against_golden(graph: Graph, path: Path) -> list[str]:
    if not path.is_file():
        return [f"{path.name} is missing; write it with: check --pin"]
    golden = read_golden(path)
    difference = first_difference(golden, graph)
    return [] if difference is None else [f"the graph is not the golden one\n{difference.told('golden', 'spec')}"]


def _write_golden(graph: Graph, path: Path) -> list[str]:
    data = encoded(graph)
    if len(data) > LIMIT:
        return [f"{path.name} would take {len(data)} bytes, more than {LIMIT}; make the box smaller"]
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return []

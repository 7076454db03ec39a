"""What the online section measured: figures, distributions, conditions, from the record, the answers, the journal.

Times are seconds from the section's start, lengths ms.  The record is the driver's; loads and probes come from inside
the engines; states of versions from the journal, replayed.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_e2e.checks import largest_errors
from gpu_e2e.conversation import Answer
from gpu_e2e.experiment import transfer
from gpu_e2e.experiment.figures import pauses
from gpu_e2e.experiment.windows import Sample, check_interleaved, compared, inside, no_progress, percentiles
from gpu_e2e.recording import Recorder
from lorafsm.errors import InvalidField
from lorafsm.invariants import check
from lorafsm_journal import Journal

if TYPE_CHECKING:
    from gpu_e2e.experiment.online import Stage

ALLOWANCE_S = 0.3  # of a publication, beyond raw transfer, native load and probe
_WITNESSED = 300  # answers that are compared with the reference, spread over all
_HOLDS_A_SLOT = ("LOADING", "PUBLISHED", "RETIRED", "RECLAIMING", "ABORTED")
_LEAST_WEIGHED = 5
_LARGEST_GROWTH = 0.1
_ROW_BYTES = 2048
_TRACED = 1000
_PHASES = ("begin", "arm", "bucket", "verify", "load", "probe", "end", "unload")
_SHOWN_SESSIONS = "S_"  # of the timeline: held ones; the others are hundreds


def section(stage: Stage, registry: str) -> dict[str, Any]:
    """The section's results, once its engines and its registry have ended."""
    recorder, answers, plan = stage.recorder, stage.cast.answers, stage.place.context.plan
    final = recorder.read(stage.place.journal)
    recorder.close()
    gaps, still = recorder.gaps, _no_progress(stage, answers)
    _conditions(stage, still)
    stage.expect.expect("invariants of the journal's last registry", [], list(check(final)))
    stage.expect.expect("session refs at the end", 0, sum(v.session_refs for v in final.versions.values()))
    rows = publications(stage)
    found = compared(gaps, stage.windows) if stage.windows else {}
    timed: dict[str, list[Sample]] = {
        "request": [(a.end, (a.end - a.start) * 1000) for a in answers],
        "first token": [(at, (at - a.start) * 1000) for a in answers for at in _times(recorder, a)[:1]],
        "token gap": gaps,
    }
    wrong = _witness(stage) if plan.numeric.witness else None
    logs = [process.log_path for process in stage.place.engines.processes.values()]
    return {
        "ok": stage.expect.ok,
        "conditions": stage.expect.rows,
        "registry": registry,
        "sessions": len(recorder.sessions),
        "requests": len(answers),
        "turned_away": stage.load.turned_away,
        "failures": stage.cast.failures,
        "failed_requests": len(stage.cast.failures),
        "aborted_tokens": 0 if not stage.cast.failures else None,  # what failed is not counted by tokens
        "wrong_version": wrong,
        "pauses": pauses(logs),
        "gaps": found,
        "gap_p99_ratio": found.get("p99_ratio"),
        "gap_max_ratio": found.get("max_ratio"),
        "publication_ratio": statistics.median(row["ratio"] for row in rows) if rows else None,
        "reclaim_after_last_ms": stage.facts.get("reclaim_after_last_ms"),
        "max_managed_versions": recorder.most_versions,
        "repair_s": stage.facts.get("repair_s"),
        "measures": {
            name: {
                kind: [round(ms, 3) for ms in inside(samples, stage.windows, kind)] for kind in ("publishing", "quiet")
            }
            for name, samples in timed.items()
        },
        "no_progress_ms": still,
        "phases": phases(recorder),
        "occupancy": occupancy(recorder),
        "memory": stage.weights,
        "windows": [[w.kind, round(w.start, 4), round(w.end, 4)] for w in stage.windows],
        "rows": rows,
        "versions": list(recorder.versions.values()),
        "session_spans": [s for name, s in recorder.sessions.items() if name.startswith(_SHOWN_SESSIONS)],
        "operations": recorder.operations,
        "refusals": recorder.refusals,
    }


def _conditions(stage: Stage, still: dict[str, float]) -> None:
    expect, plan = stage.expect, stage.place.context.plan
    expect.at_least("sessions", plan.load.sessions, len(stage.recorder.sessions))
    expect.at_least("requests", plan.load.requests, len(stage.cast.answers))
    expect.at_least("windows from reserve to commit", plan.load.windows, len(stage.windows) // 2)
    try:
        check_interleaved(stage.windows)
        said = "interleaved"
    except InvalidField as error:
        said = str(error)
    expect.expect("windows with and without a publication", "interleaved", said)
    limits = {"begin": plan.deadlines.begin_s, "bucket": plan.deadlines.bucket_s, "end": plan.deadlines.end_s}
    for row in phases(stage.recorder):
        if row["phase"] in limits:
            what = f"longest {row['phase']} on {row['engine']}, s"
            expect.at_most(what, limits[row["phase"]], row["max"] / 1000)
    for process in (*stage.place.fleet.ports, "registry"):
        taken = [row[f"{process}, MiB"] for row in stage.weights]
        if len(taken) >= _LEAST_WEIGHED:
            # The first fifth warms up: allocators, compiled patterns, the KV cache's tree.
            first = taken[len(taken) // 5]
            expect.at_most(
                f"{process}: growth of its memory over the row, share", _LARGEST_GROWTH, taken[-1] / first - 1
            )
    expect.expect(f"the journal's first {_TRACED} rows, by TLC", "accepted", _traced(stage.place.journal))
    with Journal.read(stage.place.journal) as journal:
        expect.at_most("journal, bytes a row", _ROW_BYTES, stage.place.journal.stat().st_size / len(journal))
    for engine, longest in still.items():
        expect.at_most(f"{engine}: longest time without a token, ms", plan.limits.no_progress_ms, longest)


def _traced(journal: Path) -> str:
    """Whether the registry's journal is a behaviour of the specification; if not, why not."""
    from lorafsm_cli.one_line import CliError
    from lorafsm_tla.trace import check_journal

    try:
        check_journal(journal, _TRACED)
    except CliError as error:  # of TLC, or because it is not installed
        return str(error)[:400]
    return "accepted"


def _times(recorder: Recorder, answer: Answer) -> list[float]:
    return [recorder.at(arrival.at) for arrival in answer.generation.arrivals]


def _no_progress(stage: Stage, answers: Sequence[Answer]) -> dict[str, float]:
    engines = list(stage.place.fleet.ports)
    arrivals: dict[str, list[float]] = {engine: [] for engine in engines}
    busy: dict[str, list[tuple[float, float]]] = {engine: [] for engine in engines}
    for answer in answers:
        arrivals[answer.engine] += _times(stage.recorder, answer)
        busy[answer.engine].append((answer.start, answer.end))
    return no_progress(arrivals, busy)


def publications(stage: Stage) -> list[dict[str, Any]]:
    """One row a publication of the row: how long, what it cannot do without, and the ratio of both."""
    plan, recorder = stage.place.context.plan, stage.recorder
    shown = [w for w in stage.windows if w.kind == "publishing"]
    if not shown:
        return []
    label = stage.default
    nbytes = stage.place.story.snapshots[label].manifest.nbytes
    raw = transfer.raw_s(nbytes, plan.transport.bucket_cap, len(stage.place.fleet.ports))
    rows = []
    for number, window in enumerate(shown, 1):
        load, probe = (_longest(recorder, f"{number:02d}", op) for op in ("load", "probe"))
        least = raw + load + probe + ALLOWANCE_S
        length = window.end - window.start
        rows.append(
            {
                "version": f"{number:02d}",
                "publication_ms": round(length * 1000, 1),
                "raw_transfer_ms": round(raw * 1000, 2),
                "load_ms": round(load * 1000, 1),
                "probe_ms": round(probe * 1000, 1),
                "ratio": round(length / least, 3),
            }
        )
    return rows


def _longest(recorder: Recorder, label: str, op: str) -> float:
    done = (each for each in recorder.operations if (each["version"], each["op"]) == (label, op))
    return max((each["end"] - each["start"] for each in done), default=0.0)


def phases(recorder: Recorder) -> list[dict[str, Any]]:
    """How long each phase took on each engine, in ms, over all publications and reclaims."""
    rows = []
    engines = sorted({op["engine"] for op in recorder.operations})
    for phase, engine in itertools.product(_PHASES, engines):
        done = [op for op in recorder.operations if (op["op"], op["engine"]) == (phase, engine)]
        found = percentiles((op["end"] - op["start"]) * 1000 for op in done)
        if found:
            rows.append({"phase": phase, "engine": engine, **found})
    return rows


def occupancy(recorder: Recorder) -> list[list[float]]:
    """(seconds, managed versions) at every change, by the journal."""
    changes: list[tuple[float, int]] = []
    for version in recorder.versions.values():
        for span in version["spans"]:
            if span["state"] in _HOLDS_A_SLOT:
                changes += [(span["start"], 1), (span["end"], -1)]
    count, steps = 0, list[list[float]]()
    for at, group in itertools.groupby(sorted(changes), key=lambda change: change[0]):
        count += sum(change for _, change in group)
        steps.append([round(at, 4), count])
    return steps


def _witness(stage: Stage) -> int:
    """A spread of the answers against transformers with the version merged: how many versions gave a wrong one."""
    from gpu_e2e.reference import Reference

    expect, plan, context = stage.expect, stage.place.context.plan, stage.place.context
    step = max(1, len(stage.cast.answers) // _WITNESSED)
    sample = stage.cast.answers[::step]
    reference = Reference(context.model)
    for label in {answer.version for answer in sample}:
        reference.add(label, context.snapshots[label].tensors, context.snapshots[label].config)
    errors = largest_errors(sample, reference)
    what = f"{len(sample)} answers of {len(errors)} versions: max |Δ logprob| to their version in transformers"
    expect.at_most(what, plan.numeric.epsilon, max(errors.values()))
    least = _separation(reference, sorted(errors), sample[0].prompt)
    expect.at_least(
        "these versions differ after one prompt by, nats", plan.numeric.separation * plan.numeric.epsilon, least
    )
    return sum(error > plan.numeric.epsilon for error in errors.values())


def _separation(reference: Any, labels: Sequence[str], prompt: Sequence[int]) -> float:
    first: dict[str, Any] = {label: reference.first(label, prompt) for label in labels}

    pairs = itertools.combinations(labels, 2)
    return min((float((first[a] - first[b]).abs().max()) for a, b in pairs), default=0.0)

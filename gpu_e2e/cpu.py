"""The main job on a CPU: two real SGLang engines, a tiny Qwen3, the whole life of four LoRA versions.

`run_demo` prepares everything, lets `gpu_e2e.story` happen, compares every answer with the reference, and
writes `report.json` and `report.html`.  Engines are stopped by pid, whatever happens.
"""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

from attrs import define, frozen

from gpu_e2e import fleet as engines_
from gpu_e2e import hosting
from gpu_e2e.checks import SEPARATION, TOLERANCE, Expectations, largest_errors, separation
from gpu_e2e.conversation import Cast
from gpu_e2e.guarded import GuardPlan, touched
from gpu_e2e.recording import Recorder
from gpu_e2e.reference import Reference
from gpu_e2e.report import write
from gpu_e2e.services import attended
from gpu_e2e.story import Facts, tell
from gpu_e2e.transport import KINDS, Kind, Transport
from lorafsm.errors import InvalidField
from lorafsm.identity import VersionKey, lora_name
from lorafsm.invariants import check
from lorafsm.records import MAX_ENGINES, Config
from lorafsm.status import Status, status
from lorafsm_asyncio import RegistryClient
from lorafsm_asyncio.questions import StatusAt
from lorafsm_journal import Journal
from lorafsm_sglang import OK, EngineProcess, control_calls
from lorafsm_sglang.tiny_model import lora_fixture, write_model
from lorafsm_torch import ArtifactStore, Snapshot, check_lora, freeze_snapshot

LETTERS = ("A", "B", "C", "D")
_JOURNAL = "journal.sqlite"
_JOURNAL_ENDS = ("", "-wal", "-shm", ".lock", ".epochs", ".epochs.lock")
_OURS = ("report.json", "report.html", *(_JOURNAL + end for end in _JOURNAL_ENDS))
_MARK = ".lorafsm-demo"
_OUR_FOLDERS = ("model", "store", "hosts", "logs")


@define
class Stage:
    """Everything that stands ready before the story begins."""

    out: Path
    epoch: str
    recorder: Recorder
    snapshots: dict[str, Snapshot]
    store: ArtifactStore
    processes: dict[str, EngineProcess]
    incarnations: dict[str, int]  # known when the engines have proved them
    plan: GuardPlan
    base: str
    started_at: str
    transport: Transport
    registry: hosting.Kind

    @property
    def journal(self) -> Path:
        """Where the registry writes."""
        return self.out / _JOURNAL


@frozen
class Played:
    """What a story that was told to its end leaves behind."""

    cast: Cast
    facts: Facts
    expectations: Expectations
    reference: Reference
    sglang_version: str
    last: Status  # by the registry's own word, before it was stopped


class RunFailed(RuntimeError):
    """The run broke off; the engines were stopped, their logs are named."""

    def __init__(self, error: Exception, processes: Iterable[EngineProcess]) -> None:
        super().__init__(f"{type(error).__name__}: {error}; {_logs(processes)}")


def _logs(processes: Iterable[EngineProcess]) -> str:
    return f"logs of the engines: {', '.join(str(process.log_path) for process in processes)}"


def run_demo(
    out: Path, engines: int, progress: Callable[[str], None], *, transport: str = "torch", registry: str = ""
) -> dict[str, Any]:
    """Run the whole story and return the report, which is also written to `out`.

    `registry` says where it lives (`ray`, `local`; left out: `ray` where Ray is installed).  Raises InvalidField for
    a bad number of engines, an unknown transport or registry or an `out` that holds foreign files,
    `lorafsm_sglang.EngineStartError`, which names the log, when an engine does not start, and RunFailed, which
    names all logs, when the run could not go on.  Expectations that did not hold are in the report.
    """
    if not 2 <= engines <= MAX_ENGINES:
        raise InvalidField("engines", f"must be 2 to {MAX_ENGINES}: with one engine nothing can be half published")
    kind, where = _kind(transport), hosting.chosen(registry)
    out = out.resolve()
    _clear(out)
    recorder = Recorder()
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    progress("writing the tiny model and starting the engines")
    model = write_model(out / "model")
    names = [f"E{i}" for i in range(engines)]
    epoch = f"d{recorder.clock() // 1000:x}"  # short: it is in every name that people read
    plan = GuardPlan(epoch, out / "store", out / "hosts")
    with engines_.ended_by_sigterm():
        processes = engines_.launch(names, model, out / "logs", plan)
        try:
            stage = Stage(
                out,
                epoch,
                recorder,
                _snapshots(epoch, recorder),
                ArtifactStore(out / "store"),
                processes,
                {},
                plan,
                engines_.fingerprint(model),
                started_at,
                Transport(kind),
                where,
            )
            report = _play(stage, model, progress)
        except engines_.EngineStartError:
            raise
        except Exception as error:
            raise RunFailed(error, processes.values()) from error
        finally:
            engines_.stop_all(processes)
    if not report["ok"]:
        progress(f"not every expectation held; {_logs(processes.values())}")
    return report


def _kind(transport: str) -> Kind:
    for kind in KINDS:
        if transport == kind:
            return kind
    raise InvalidField("transport", f"must be one of {', '.join(KINDS)}")


def _clear(out: Path) -> None:
    """Remove an earlier run's results; a folder that holds anything else is somebody's and stays untouched."""
    found = {path.name for path in out.iterdir()} if out.exists() else set()
    # Names alone prove nothing: somebody's `model` or `logs` is not ours without the mark.
    foreign = sorted(found - {_MARK, *_OURS, *_OUR_FOLDERS} if _MARK in found else found)
    if foreign:
        raise InvalidField("out", f"{out} holds {foreign[0]}, which no demo wrote; name an empty or a new folder")
    out.mkdir(parents=True, exist_ok=True)
    (out / _MARK).write_text("written by lorafsm demo, which clears this folder before each run\n")
    for folder in _OUR_FOLDERS:
        shutil.rmtree(out / folder, ignore_errors=True)
    for name in _OURS:
        (out / name).unlink(missing_ok=True)


def _snapshots(epoch: str, recorder: Recorder) -> dict[str, Snapshot]:
    """Freeze the fixtures: what training would hand over, checked before any engine is touched (RFC 3.1)."""
    snapshots = {}
    for version_id, letter in enumerate(LETTERS, 1):
        tensors, config = lora_fixture(letter)
        check_lora(config, {name: tuple(tensor.shape) for name, tensor in tensors.items()})
        snapshots[letter] = freeze_snapshot(config, tensors)
        key = VersionKey(epoch, version_id)
        recorder.letters[str(key)] = letter
        recorder.letters[lora_name(key, snapshots[letter].digest)] = letter
    return snapshots


def _play(stage: Stage, model: Path, progress: Callable[[str], None]) -> dict[str, Any]:
    """Registry, story, report."""
    if stage.registry == "ray":
        progress("starting Ray, and the registry as an actor of it")
    with hosting.hosted(stage.registry, stage.journal, Config(base_fingerprint=stage.base), stage.epoch) as client:
        played = asyncio.run(_run(stage, client, model, progress))
    progress("stopping the engines, reading journal and logs, comparing answers with the reference")
    engines_.stop_all(stage.processes)
    rows = _read_journal(stage, played)
    stage.recorder.close()
    report = _report(stage, played, rows)
    write(report, stage.out)
    return report


async def _run(stage: Stage, client: RegistryClient, model: Path, progress: Callable[[str], None]) -> Played:
    reference = await asyncio.to_thread(_reference, model, stage.snapshots)
    await engines_.wait_ready(stage.processes, progress)
    expectations, recorder = Expectations(), stage.recorder
    async with engines_.beside(
        stage.processes,
        stage.store,
        stage.base,
        recorder,
        recorder.clock,
        stage.incarnations,
        stage.plan,
        stage.transport.announcement,
    ) as fleet:
        expectations.expect("engines that proved their guard", sorted(stage.processes), sorted(stage.incarnations))
        async with attended(client, stage.epoch, fleet.executors, recorder, stage.base, recorder.clock) as services:
            guards = {name: executor.guarded for name, executor in fleet.executors.items()}
            stage.transport.connect(services, guards, recorder)
            cast = Cast(services.binder, fleet.ports, recorder)
            facts = await tell(
                stage.epoch,
                services,
                cast,
                fleet,
                stage.transport,
                stage.store,
                stage.snapshots,
                expectations,
                progress,
            )
        said = await fleet.ports["E0"].status()
    version = said.data.version if isinstance(said, OK) else "unknown"
    last = await client.ask(StatusAt(recorder.clock()))
    return Played(cast, facts, expectations, reference, version, last)


def _read_journal(stage: Stage, played: Played) -> int:
    """What the journal says of the run, and whether it holds together; the number of its rows."""
    final, expect = stage.recorder.read(stage.journal), played.expectations
    expect.expect("invariants of the final registry", [], list(check(final)))
    with Journal.read(stage.journal) as journal:
        replayed, rows = journal.verify().registry, len(journal)
    expect.expect(
        "the journal replays to the registry's last status", True, status(replayed, played.last.now) == played.last
    )
    expect.expect("sessions that still hold a version at the end", 0, played.last.live_sessions)
    states = [span["state"] for span in stage.recorder.versions["D"]["spans"]]
    expect.expect("D went through", ["LOADING", "ABORTED", "FAILED_CLEAN"], states)
    return rows


def _reference(model: Path, snapshots: dict[str, Snapshot]) -> Reference:
    reference = Reference(model)
    for letter, snapshot in snapshots.items():
        reference.add(letter, snapshot.tensors, snapshot.config)
    return reference


def _report(stage: Stage, played: Played, rows: int) -> dict[str, Any]:
    recorder, cast, facts = stage.recorder, played.cast, played.facts
    expectations, reference = played.expectations, played.reference
    errors = largest_errors(cast.answers, reference)
    for letter, error in sorted(errors.items()):
        expectations.at_most(f"answers of {letter}: max |Δ logprob| to the reference", TOLERANCE, error)
    pairs = separation(facts.shared_prompt, reference)
    expectations.at_least("A, B, C, D and base differ by", SEPARATION * TOLERANCE, min(p["delta"] for p in pairs))
    calls = {name: control_calls(process.log_path) for name, process in stage.processes.items()}
    stops = ("pause_generation", "flush_cache", "abort_request")
    pauses = sum(count[route] for count in calls.values() for route in stops)
    expectations.expect("pause, flush and abort calls in the engines' access logs", 0, pauses)
    ordered = {name: _ordered(recorder, name) for name in calls}
    logged = {name: touched(process.log_path) for name, process in stage.processes.items()}
    expectations.expect("loads and unloads in SGLang's own logs are those ordered", ordered, logged)
    expectations.expect("buckets that engines armed and received", *_buckets(stage))
    around = sum(c["load_lora_adapter"] + c["unload_lora_adapter"] for c in calls.values())
    expectations.expect("calls of SGLang's ordinary load and unload routes", 0, around)
    expectations.expect("request failures", 0, len(cast.failures))
    expectations.at_least("sessions", 12, len(recorder.sessions))
    expectations.at_least("requests", 60, len(cast.answers))
    expectations.expect("most managed versions at any time", 2, recorder.most_versions)
    return {
        "ok": expectations.ok,
        "started_at": stage.started_at,
        "duration_s": round(recorder.now(), 3),
        "sglang_version": played.sglang_version,
        "transport": stage.transport.kind,
        "registry": stage.registry,
        "engines": [
            {
                "name": name,
                "incarnation": stage.incarnations[name],
                "port": process.port,
                "log": process.log_path.relative_to(stage.out).as_posix(),
                "ready_s": round(process.ready_after_s or 0.0, 1),
            }
            for name, process in stage.processes.items()
        ],
        "sessions": {name: session["version"] for name, session in recorder.sessions.items()},
        "expectations": expectations.rows,
        "refusals": recorder.refusals,
        "requests": len(cast.answers),
        "request_failures": len(cast.failures),
        "max_managed_versions": recorder.most_versions,
        "pause_calls": pauses,
        "control_calls": calls,
        "reclaim": facts.reclaim,
        "kv": [
            {
                "version": answer.version,
                "session": answer.session,
                "turn": answer.turn,
                "engine": answer.engine,
                "prompt_tokens": answer.generation.prompt_tokens,
                "cached_tokens": answer.generation.cached_tokens,
            }
            for answer in cast.answers
        ],
        "phases": [
            {
                "version": op["version"],
                "phase": op["op"],
                "engine": op["engine"],
                "seconds": round(op["end"] - op["start"], 4),
            }
            for op in recorder.operations
        ],
        "journal_events": rows,
        "versions": list(recorder.versions.values()),
        "session_spans": list(recorder.sessions.values()),
        "operations": recorder.operations,
        "token_gaps": recorder.gap_figures(),
        "separation": {"tolerance": TOLERANCE, "pairs": pairs},
        "errors": errors,
        "environment": _environment(stage.registry),
    }


def _buckets(stage: Stage) -> tuple[dict[str, int], dict[str, int]]:
    """How many each engine should have armed and received over all versions, and how many it did."""
    plans = [stage.transport.plan(snapshot).buckets for snapshot in stage.snapshots.values()]
    done = [op for op in stage.recorder.operations if op["op"] in ("arm", "bucket") and op["outcome"] == "OK"]
    names = [f"{engine} {op}" for engine in stage.processes for op in ("arm", "bucket")]
    return dict.fromkeys(names, sum(plans)), {
        name: sum(f"{op['engine']} {op['op']}" == name for op in done) for name in names
    }


def _ordered(recorder: Recorder, engine: str) -> list[int]:
    operations = [op["op"] for op in recorder.operations if op["engine"] == engine]
    return [operations.count("load"), operations.count("unload")]


def _environment(registry: hosting.Kind) -> dict[str, Any]:
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "torch": installed("torch"),
        "sglang": installed("sglang"),
        "transformers": installed("transformers"),
        "lorafsm": installed("lorafsm"),
        **({"ray": installed("ray")} if registry == "ray" else {}),
    }

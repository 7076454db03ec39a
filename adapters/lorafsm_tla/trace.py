"""Net 2: what a registry did, row by row of its journal, must be what LoraRegistry.tla allows.

A trace is made by replaying the journal's events; each row says the action with its arguments, whether anything
changed, every variable that is another afterwards, and the code of a refusal.  TLC computes with 32 bits, so times
count from the first one, and incarnations and seqs, which are only compared, are replaced by their ranks.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import asdict, evolve, frozen

from lorafsm import events as ev
from lorafsm.events import Event
from lorafsm.identity import SessionKey, VersionKey
from lorafsm.outcomes import Binding, Code, Committed, Outcome, Refusal, RepairOrdered, Reserved, RolledBack
from lorafsm.records import MAX_ENGINES, Config, Resident, new_registry
from lorafsm.registry import step
from lorafsm_cli.one_line import CliError
from lorafsm_journal import Journal
from lorafsm_journal.rows import Malformed
from lorafsm_tla.as_tla import Names, as_tla
from lorafsm_tla.manifest import Model, folder
from lorafsm_tla.tlc import run
from lorafsm_tla.values import Plain, plain_set, tla_text

Trace = list[dict[str, Plain]]
_OUTSIDE = (Code.BAD_INPUT, Code.OTHER_EPOCH)  # refused for their form, of which the specification does not speak
_PASSED = re.compile(r'<<"passed", (\d+), (\d+)>>')


@frozen
class Story:
    """What a journal tells: the config and epoch, and its events with their row numbers and outcomes."""

    config: Config
    epoch: str
    rows: tuple[tuple[int, Event, Outcome], ...]

    @property
    def events(self) -> tuple[Event, ...]:
        """The events in order."""
        return tuple(event for _, event, _ in self.rows)


@frozen
class Verdict:
    """Whether a trace was accepted; if not, the position of the first event that was not (from 0)."""

    accepted: bool
    position: int


def read_story(path: Path) -> Story:
    """The story in a journal; rows refused for their form are left out.  Raises JournalError for a journal that is
    not what was written, or that `step` answers otherwise."""
    with Journal.read(path) as journal:
        if journal.verify().base:  # every recorded outcome is the one that `step` answers
            raise CliError(f"{path} was compacted: the rows from which a behaviour begins are gone", 1)
        rows = tuple(
            (row.number, row.event, row.outcome)
            for row in journal.rows()
            if not isinstance(row.event, Malformed)
            and not (isinstance(row.outcome, Refusal) and row.outcome.code in _OUTSIDE)
        )
        return Story(journal.config, journal.epoch, rows)


def small_numbers(events: Sequence[Event]) -> tuple[Event, ...]:
    """The same events with times from the first one on, and ranks for incarnations and seqs."""
    first = min((event.now for event in events if event.now), default=1) - 1
    incarnations = _ranks(getattr(event, "incarnation", 0) for event in events)
    seqs = _ranks(getattr(event, "seq", 0) for event in events)
    small = []
    for event in events:
        changes: dict[str, Any] = {"now": max(0, event.now - first)}
        if hasattr(event, "incarnation"):
            changes["incarnation"] = incarnations[event.incarnation]
        if hasattr(event, "seq"):
            changes["seq"] = seqs[event.seq]
        small.append(evolve(event, **changes))
    return tuple(small)


def _ranks(values: Iterable[int]) -> dict[int, int]:
    return {value: rank for rank, value in enumerate(sorted({0, *values}))}


def names_in(events: Iterable[Event]) -> Names:
    """Every id that occurs in the events."""
    found: dict[str, set[Any]] = {}
    digests: set[str] = set()
    for event in events:
        for name, value in asdict(event, recurse=False).items():
            if isinstance(value, SessionKey):
                found.setdefault("owner", set()).add(value.owner)
                found.setdefault("sequence", set()).add(value.sequence)
            elif isinstance(value, VersionKey):
                found.setdefault("version", set()).add(value.version_id)
            elif name == "digest":
                digests.add(value)
            elif name == "residents":
                digests.update(resident.digest for resident in value)
                found.setdefault("version", set()).update(resident.key.version_id for resident in value)
            elif name in ("engine", "owner", "token", "reclaim_id", "operation_id"):
                found.setdefault(name, set()).add(value)
    return Names(
        versions=tuple(sorted(found.get("version", ()))),
        engines=tuple(sorted(found.get("engine", ()))),
        owners=tuple(sorted(found.get("owner", ()))),
        sequences=tuple(sorted(found.get("sequence", ()))),
        tokens=tuple(sorted(found.get("token", ()))),
        reclaim_ids=tuple(sorted(found.get("reclaim_id", ()))),
        digests={digest: f"d{number}" for number, digest in enumerate(sorted(digests), 1)},
    )


def trace_of(config: Config, epoch: str, events: Iterable[Event], names: Names) -> Trace:
    """The events as rows of a trace, by replay through `step`."""
    registry = new_registry(epoch, config)
    before = as_tla(registry, names)
    rows: Trace = []
    for event in events:
        done = step(registry, event)
        registry = done.registry
        after = as_tla(registry, names)
        changed = {name: value for name, value in after.items() if value != before[name]}
        rows.append(
            {
                "action": type(event).__name__,
                "now": event.now,
                "args": _args(event, names),
                "changes": bool(changed),
                "after": changed,
                "answer": _answer(done.outcome),
                "code": str(done.outcome.code) if isinstance(done.outcome, Refusal) else "",
            }
        )
        before = after
    return rows


def _answer(outcome: Outcome) -> dict[str, Plain]:
    match outcome:
        case Binding():
            return {"binding": outcome.key.version_id}
        case Committed() | RolledBack():
            return {"revision": outcome.revision}
        case Reserved() | RepairOrdered():
            return {"number": outcome.number}
    return {"none": 0}


def _args(event: Event, names: Names) -> dict[str, Plain]:
    args = asdict(event, recurse=False)
    if args.get("foreign"):
        raise CliError(f"{type(event).__name__} lists names of no number ({sorted(args['foreign'])}): not modelled")
    plain = {name: _plain(value, names) for name, value in args.items() if name in _JUDGED}
    if isinstance(event, ev.Ready | ev.RepairReady):
        plain["proof"] = {
            "version": plain.pop("key"),
            "digest": plain.pop("digest"),
            "base": plain.pop("base_fingerprint"),
            "probe": event.probe_ok,
        }
    if "session" in args:
        plain |= {"owner": args["session"].owner, "sequence": args["session"].sequence}
    if "digest" in args and "digest" in plain:
        plain["digest"] = names.digest(args["digest"])
    return plain or {"none": 0}


_JUDGED = frozenset(
    "key digest token number engine incarnation seq bucket base_fingerprint expected_revision operation_id owner "
    "handover reclaim_id observed_absent residents".split()
)


def _plain(value: Any, names: Names) -> Plain:
    if isinstance(value, VersionKey):
        return value.version_id
    if isinstance(value, frozenset):
        return plain_set([_resident(resident, names) for resident in value])
    if isinstance(value, str) and value in names.digests:
        return names.digest(value)
    return value


def _resident(resident: Resident, names: Names) -> dict[str, Plain]:
    digest = names.digest(resident.digest)
    return {"version": resident.key.version_id, "digest": digest, "number": resident.number}


def configuration(config: Config, events: Sequence[Event], names: Names) -> str:
    """The .cfg of a trace: its constants are what occurs in it."""
    plans = {event.plan.buckets for event in events if isinstance(event, ev.Reserve)}
    if len(plans) > 1:
        raise CliError(f"the journal has bucket plans of {sorted(plans)} buckets; LoraRegistry.tla knows one per model")
    bases = {getattr(event, "base_fingerprint", config.base_fingerprint) for event in events}
    numbers = range(1, 2 + sum(isinstance(event, ev.Reserve | ev.OrderRepair) for event in events))
    constants: Mapping[str, Plain] = {
        "Engine": list(names.engines),
        "Version": list(names.versions),
        "Digest": sorted(names.digests.values()),
        "Token": list(names.tokens),
        "Owner": list(names.owners),
        "Sequence": list(names.sequences),
        "ReclaimId": list(names.reclaim_ids),
        "Operation": sorted({e.operation_id for e in events if isinstance(e, ev.Rollback)}),
        "Incarnation": sorted({getattr(e, "incarnation", 1) for e in events} | {1}),
        "AnswerSeq": sorted({getattr(e, "seq", 1) for e in events} | {1}),
        "Number": list(numbers),
        "Time": sorted({0} | {e.now for e in events}),
        "Base": sorted({*bases, config.base_fingerprint}),
        "OurBase": config.base_fingerprint,
        "Buckets": max(plans, default=0),
        "Capacity": config.capacity,
        "MaxMembers": MAX_ENGINES,
        "RequireArtifact": config.require_artifact,
        "PublishPastLost": config.publish_past_lost,
        "MaxVersionLag": config.max_version_lag,
        "OwnerLease": config.owner_lease,
        "DriverLease": config.driver_lease,
        "RepairBackoff": config.repair_backoff,
        "RepairLimit": config.repair_limit,
    }
    lines = [f"    {name} = {tla_text(value)}" for name, value in constants.items()]
    return "\n".join(
        ["SPECIFICATION TraceSpec", "CONSTANTS", *lines, "    Arrives <- TraceArrives", "INVARIANTS", _INV]
    )


_INV = "    TypeOK OneDefault RefsAreHolders SlotsWithinCapacity OneUnresolved FreedMeansAbsent UpMeansServing\n"


def trace_data(traces: Sequence[Trace]) -> str:
    """The module TraceData."""
    body = ",\n".join("<<" + ",\n  ".join(tla_text(row) for row in trace) + ">>" for trace in traces)
    return f"---- MODULE TraceData ----\nEXTENDS Integers, TLC\nTraces == <<\n{body}\n>>\n====\n"


def judged(traces: Sequence[Trace], cfg: str, minutes: float = 10.0) -> Iterator[Verdict]:
    """TLC's verdict on each trace; raises CliError when TLC itself failed, or an invariant is broken."""
    with tempfile.TemporaryDirectory(prefix="lorafsm-trace-") as place:
        where = Path(place) / "trace.cfg"
        where.write_text(cfg)
        model = Model(name="trace", module="TraceLoraRegistry", cfg=str(where), minutes=minutes)
        result = run(model, folder(), pin=True, extra={"TraceData": trace_data(traces)})
    if result.faults:
        raise CliError(f"TLC did not judge the trace: {' '.join(result.faults)}", 1)
    passed = [0] * len(traces)
    for trace, row in _PASSED.findall(result.output):
        passed[int(trace) - 1] = max(passed[int(trace) - 1], int(row))
    for trace_rows, reached in zip(traces, passed, strict=True):
        yield Verdict(reached == len(trace_rows), reached)


def check_journal(path: Path, most: int | None = None) -> str:
    """One sentence on an accepted journal; raises CliError naming the row that the specification does not allow.

    All of the journal is verified; TLC reads its first `most` rows (None: all; a thousand take it most of a minute).
    """
    story = read_story(path)
    story = evolve(story, rows=story.rows[:most])
    events = small_numbers(story.events)
    names = names_in(events)
    trace = trace_of(story.config, story.epoch, events, names)
    for (number, event, outcome), row in zip(story.rows, trace, strict=True):
        if isinstance(outcome, Refusal) and row["changes"]:
            raise CliError(
                f"{path}: row {number} was refused and is accepted in replay: {_named(event)} -> {outcome.code}", 1
            )
    [verdict] = judged([trace], configuration(story.config, events, names))
    if not verdict.accepted:
        number, event, outcome = story.rows[verdict.position]
        raise CliError(f"{path}: row {number} is not allowed by LoraRegistry.tla: {_named(event)} -> {outcome.code}", 1)
    return f"{path}: {len(trace)} events are a behaviour of LoraRegistry.tla"


def _named(event: Event) -> str:
    """The event without its token, which is nobody else's business."""
    shown = {name: value for name, value in asdict(event, recurse=False).items() if name not in ("token", "handover")}
    return f"{type(event).__name__}({', '.join(f'{name}={value!s:.80}' for name, value in shown.items())})"

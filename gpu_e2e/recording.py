"""What happened when: the timeline behind the report.  Times are seconds from the start of the run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import define, field

from lorafsm.records import Registry, new_registry
from lorafsm.registry import step
from lorafsm_journal import Journal, Malformed


@define
class Recorder:
    """Collects spans while the run goes on; everything in it is plain JSON."""

    letters: dict[str, str] = field(factory=dict)  # str(VersionKey) -> "A"
    versions: dict[str, dict[str, Any]] = field(factory=dict)
    sessions: dict[str, dict[str, Any]] = field(factory=dict)
    operations: list[dict[str, Any]] = field(factory=list)
    refusals: list[dict[str, Any]] = field(factory=list)
    gaps: list[tuple[float, float]] = field(factory=list)  # (time, gap in ms) of streamed tokens
    publishing: list[tuple[float, float]] = field(factory=list)  # windows from reserve to commit or clean
    most_versions: int = 0
    _zero: float = field(factory=time.monotonic)
    _began: int = field(factory=lambda: time.time_ns() // 1_000_000)  # ms since 1970

    def clock(self) -> int:
        """Milliseconds since 1970 that never run backwards: the `now` of events."""
        return self._began + round(self.now() * 1000)

    def now(self) -> float:
        """Seconds from the start."""
        return time.monotonic() - self._zero

    def at(self, monotonic: float) -> float:
        """A reading of the monotonic clock as seconds from the start."""
        return monotonic - self._zero

    def letter(self, key: object) -> str:
        """How people call this version."""
        return self.letters.get(str(key), str(key))

    def read(self, journal: Path) -> Registry:
        """Take the spans of all versions from a journal, whose events carry ms since 1970; the registry at its end.

        Raises JournalError where the journal does not hold together.
        """
        with Journal.read(journal) as reader:
            registry = new_registry(reader.epoch, reader.config)
            for row in reader.rows():
                if isinstance(row.event, Malformed):
                    continue  # it was refused, and changed nothing
                after = step(registry, row.event).registry
                self._saw(registry, after, (after.now - self._began) / 1000)
                registry = after
        return registry

    def _saw(self, before: Registry, after: Registry, now: float) -> None:
        self.most_versions = max(self.most_versions, len(after.slots))
        for key, version in after.versions.items():
            known = before.versions.get(key)
            if known is not None and known.state is version.state:
                continue
            letter = self.letter(key)
            entry = self.versions.setdefault(
                letter,
                {
                    "name": letter,
                    "key": str(key),
                    "lora_name": version.lora_name,
                    "digest": version.digest,
                    "spans": [],
                },
            )
            if entry["spans"]:
                entry["spans"][-1]["end"] = now
            entry["spans"].append({"state": str(version.state), "start": now, "end": None})

    def refused(self, event: str, code: str, reason: str) -> None:
        """Note a refusal of the registry or of an engine."""
        self.refusals.append({"event": event, "code": code, "reason": reason, "t": self.now()})

    @contextmanager
    def operation(self, engine: str, op: str, version: str) -> Iterator[dict[str, Any]]:
        """One engine operation; the caller sets `outcome`."""
        entry: dict[str, Any] = {
            "engine": engine,
            "op": op,
            "version": version,
            "start": self.now(),
            "end": None,
            "outcome": "?",
        }
        self.operations.append(entry)
        try:
            yield entry
        finally:
            entry["end"] = self.now()

    def close(self) -> None:
        """End every span that is still open."""
        now = self.now()
        for entry in self.versions.values():
            entry["spans"][-1]["end"] = entry["spans"][-1]["end"] or now
        for session in self.sessions.values():
            session["end"] = session["end"] or now

    def gap_figures(self) -> dict[str, Any]:
        """Token gaps inside and outside publications, in ms."""
        inside = [gap for t, gap in self.gaps if any(start <= t <= end for start, end in self.publishing)]
        outside = [gap for t, gap in self.gaps if not any(start <= t <= end for start, end in self.publishing)]
        samples = [[round(t, 4), round(gap, 3)] for t, gap in self.gaps]
        return {"publishing": _percentiles(inside), "quiet": _percentiles(outside), "samples": samples}


def _percentiles(values: list[float]) -> dict[str, float | int]:
    if not values:
        return {"p50": 0.0, "p95": 0.0, "p99": 0.0, "max": 0.0, "count": 0}
    ordered = sorted(values)

    def rank(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)

    return {"p50": rank(0.5), "p95": rank(0.95), "p99": rank(0.99), "max": round(ordered[-1], 3), "count": len(values)}

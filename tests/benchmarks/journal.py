"""What the journal costs: appending against bare SQLite, and coming back from rows and from a snapshot."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

from lorafsm import events as ev
from lorafsm.outcomes import Outcome
from lorafsm.records import Config, new_registry
from lorafsm.registry import step
from lorafsm_journal import Journal, JournaledRegistry
from lorafsm_journal.view import Texts, View
from tests.benchmarks.figures import Figure, Goal
from tests.benchmarks.fleet import EPOCH, START, session_key, story_to_published
from tests.benchmarks.sizes import Sizes
from tests.benchmarks.timing import gc_frozen

GOALS = {
    "journal.append.ratio": Goal(at_least=0.7),
    "journal.recovery.events_per_s": Goal(at_least=40_000),
    "journal.recovery.snapshot_s": Goal(1.0),
}
CONFIG = Config()
_BATCHES = (1, 16, 256)
_GROUP = 16  # events of one commit, for the figure with the goal: what 16 callers ask for at a time
_ROUNDS = 5


def figures(sizes: Sizes) -> Iterator[Figure]:
    """Medians of whole runs over `held` / 5 events; journal and bare SQLite take turns."""
    rows = sizes.held // 5
    events = list(islice(story(sizes.held // 10), rows))
    outcomes = answers(events)
    with TemporaryDirectory() as folder, gc_frozen():
        yield from appending(Path(folder), events, outcomes)
        yield from recovering(Path(folder), events)
        yield from from_snapshot(Path(folder), sizes.held // 10)


def story(live: int) -> Iterator[ev.Event]:
    """The fleet, then sessions that bind and close, so many of them alive at a time."""
    yield from story_to_published()
    for number in count():
        yield ev.BindFirst(session=session_key(number), now=START)
        if number >= live:
            yield ev.CloseAndRelease(session=session_key(number - live), now=START)


def answers(events: Sequence[ev.Event]) -> list[Outcome]:
    """What `step` answers; every event must be accepted."""
    registry, outcomes = new_registry(EPOCH, CONFIG), []
    for event in events:
        done = step(registry, event)
        assert done.outcome.ok, done.outcome
        registry = done.registry
        outcomes.append(done.outcome)
    return outcomes


def appending(folder: Path, events: Sequence[ev.Event], outcomes: Sequence[Outcome]) -> Iterator[Figure]:
    """Events per second from event and outcome to their commit, as a share of the rate at which bare SQLite inserts
    the texts that they become, in the same batches, at the same durability."""
    for level, batch in (*(("process", batch) for batch in _BATCHES), ("power", _GROUP)):
        ours, bare = [], []
        rows = len(events) if level == "process" and batch > 1 else len(events) // 10
        for turn in range(_ROUNDS):
            path = folder / f"{level}-{batch}-{turn}"
            ours.append(seconds_to_append(path, level, events[:rows], outcomes[:rows], batch))
            with View(path) as view:
                texts = list(view.texts())
            bare.append(seconds_to_insert(path.with_suffix(".bare"), level, texts, batch))
        ratio = median(b / o for o, b in zip(ours, bare, strict=True))
        name = "journal.append" if (level, batch) == ("process", _GROUP) else f"journal.append.{level}_{batch}"
        yield Figure(f"{name}.us", median(ours) / rows * 1e6, "µs", "bare SQLite", median(bare) / rows * 1e6)
        yield Figure(f"{name}.ratio", ratio, "× the throughput")


def seconds_to_append(
    path: Path, level: str, events: Sequence[ev.Event], outcomes: Sequence[Outcome], batch: int
) -> float:
    """With the journal."""
    with Journal.open(path, CONFIG, EPOCH, level) as journal:
        start = perf_counter()
        for at in range(0, len(events), batch):
            journal.append_all(events[at : at + batch], outcomes[at : at + batch])
        return perf_counter() - start


def seconds_to_insert(path: Path, level: str, texts: Sequence[Texts], batch: int) -> float:
    """With nothing but SQLite: the same columns, texts that are there already, one transaction a batch."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute(f"PRAGMA synchronous = {'FULL' if level == 'power' else 'NORMAL'}")
    db.execute("CREATE TABLE entries (number INTEGER PRIMARY KEY, event TEXT, outcome TEXT, chain TEXT)")
    start = perf_counter()
    for at in range(0, len(texts), batch):
        db.execute("BEGIN IMMEDIATE")
        db.executemany("INSERT INTO entries VALUES (?, ?, ?, ?)", texts[at : at + batch])
        db.execute("COMMIT")
    seconds = perf_counter() - start
    db.close()
    return seconds


def recovering(folder: Path, events: Sequence[ev.Event]) -> Iterator[Figure]:
    """Replay of all rows, `step` included."""
    path, taken = folder / "rows", []
    with JournaledRegistry.open(path, CONFIG, EPOCH, snapshot_every=0) as host:
        host.apply_all(events)
        expected = host.registry
    for _ in range(_ROUNDS):
        with Journal.read(path) as journal:
            start = perf_counter()
            found = journal.recovered()
            taken.append(perf_counter() - start)
        assert (found.registry, found.accepted) == (expected, len(events))
    yield Figure("journal.recovery.events_per_s", len(events) / median(taken), "events/s")
    stepping = []
    for _ in range(_ROUNDS):
        start = perf_counter()
        answers(events)
        stepping.append(perf_counter() - start)
    each = 1e6 / len(events)
    yield Figure("journal.recovery.us", median(taken) * each, "µs", "step alone", median(stepping) * each)


def from_snapshot(folder: Path, live: int) -> Iterator[Figure]:
    """A snapshot with so many live sessions, and as many events after it."""
    path, taken, keeping = folder / "snapshot", [], []
    birth = len(story_to_published())
    events = list(islice(story(live), birth + 2 * live))
    with JournaledRegistry.open(path, CONFIG, EPOCH, snapshot_every=0) as host:
        host.apply_all(events[: birth + live])
        for _ in range(_ROUNDS):
            start = perf_counter()
            host.journal.snapshot(host.registry)
            keeping.append(perf_counter() - start)
        host.apply_all(events[birth + live :])
        expected = host.registry
    for _ in range(_ROUNDS):
        with Journal.read(path) as journal:
            start = perf_counter()
            found = journal.recovered()
            taken.append(perf_counter() - start)
        assert (found.registry, found.snapshot, found.accepted) == (expected, birth + live, live)
    yield Figure("journal.recovery.snapshot_s", median(taken), "s")
    yield Figure("journal.snapshot.ms", median(keeping) * 1e3, "ms")

"""kill -9 at every step of the way: of every record of a whole life, of a batch, of a snapshot, of a compaction.

Children are forked and kill themselves in front of a statement; what they leave is recovered by this process.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lorafsm.events import OwnerUp
from lorafsm.records import Registry, new_registry
from lorafsm.registry import step
from lorafsm_journal import Journal, JournaledRegistry, JournalError
from tests.adapters.journal_stories import CONFIG, EPOCH, life

EVENTS = life()
STATEMENTS = ("BEGIN IMMEDIATE", "UPDATE head", "INSERT INTO entries", "COMMIT")
AFTER_COMMIT, AFTER_REPLY = "after the commit", "after the reply"
LEVELS = ("process", "power")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Deadly:
    """A connection that kills its process in front of one statement, or after the commit."""

    def __init__(self, db: Any, point: str) -> None:
        self._db = db
        self._point = point

    def execute(self, statement: str, *values: Any) -> Any:
        if statement.startswith(self._point):
            die()
        done = self._db.execute(statement, *values)
        if statement == "COMMIT" and self._point == AFTER_COMMIT:
            die()
        return done

    def executemany(self, statement: str, rows: Any) -> Any:
        if statement.startswith(self._point):
            die()
        return self._db.executemany(statement, rows)


def killed(path: Path, level: str, point: str, act: Callable[[JournaledRegistry], Any]) -> None:
    """A child opens the journal, acts, and is killed at the point."""
    child = os.fork()
    if not child:
        try:
            host = JournaledRegistry.open(path, CONFIG, EPOCH, level, snapshot_every=0)
            host.journal._writer._db = Deadly(host.journal._writer._db, point)
            act(host)
            if point == AFTER_REPLY:
                die()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), f"it was to die {point}"
    assert os.WTERMSIG(status) == signal.SIGKILL


def recovered(path: Path) -> Registry:
    with JournaledRegistry.open(path, CONFIG, EPOCH, snapshot_every=0) as host:
        return host.registry


@pytest.mark.parametrize(
    ("level", "point"),
    [
        *(("process", point) for point in (*STATEMENTS, AFTER_COMMIT, AFTER_REPLY)),
        *(("power", point) for point in ("COMMIT", AFTER_COMMIT, AFTER_REPLY)),  # the levels differ in the commit
    ],
)
def test_killed_at_each_record_of_a_life(tmp_path: Path, level: str, point: str):
    path, state = tmp_path / "journal", new_registry(EPOCH, CONFIG)
    for event in EVENTS:
        after = step(state, event).registry
        killed(path, level, point, lambda host, event=event: host.apply(event))
        there = point in (AFTER_COMMIT, AFTER_REPLY)
        with JournaledRegistry.open(path, CONFIG, EPOCH, level, snapshot_every=0) as host:
            assert host.registry == (after if there else state)
            assert there or host.apply(event).ok
            assert host.registry == after
        state = after
    with Journal.read(path) as journal:
        assert [row.event for row in journal.rows()] == EVENTS
        assert journal.verify().registry == state


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("point", [*STATEMENTS, AFTER_COMMIT, AFTER_REPLY])
def test_a_batch_is_wholly_there_or_wholly_absent(tmp_path: Path, level: str, point: str):
    path, registry = tmp_path / "journal", new_registry(EPOCH, CONFIG)
    for event in EVENTS:
        registry = step(registry, event).registry
    killed(path, level, point, lambda host: host.apply_all(EVENTS))
    there = point in (AFTER_COMMIT, AFTER_REPLY)
    assert recovered(path) == (registry if there else new_registry(EPOCH, CONFIG))


@pytest.mark.parametrize(
    "point",
    [*STATEMENTS[:2], "INSERT OR REPLACE INTO snapshots", "DELETE FROM snapshots", "COMMIT", AFTER_COMMIT],
)
def test_killed_while_a_snapshot_is_kept(tmp_path: Path, point: str):
    path = tmp_path / "journal"
    with JournaledRegistry.open(path, CONFIG, EPOCH, snapshot_every=0) as host:
        host.apply_all(EVENTS)
        expected = host.registry
    killed(path, "process", point, lambda host: host.journal.snapshot(host.registry))
    assert recovered(path) == expected
    with Journal.read(path) as journal:
        assert journal.verify().registry == expected


@pytest.mark.parametrize(
    "point", ["SELECT * FROM snapshots", "DELETE FROM entries", "UPDATE about", "VACUUM", "PRAGMA wal_checkpoint"]
)
def test_killed_while_compacting(tmp_path: Path, point: str):
    path = tmp_path / "journal"
    with JournaledRegistry.open(path, CONFIG, EPOCH, snapshot_every=0) as host:
        host.apply_all(EVENTS)
        expected = host.registry
    killed(path, "process", point, lambda host: host.compact())
    assert recovered(path) == expected
    dropped = point in ("VACUUM", "PRAGMA wal_checkpoint")
    with Journal.read(path) as journal:
        assert len(list(journal.rows())) == (0 if dropped else len(EVENTS))
        assert journal.verify().registry == expected


def test_killed_while_it_is_made(tmp_path: Path):
    """The epoch of a journal that nobody was told of is free."""
    path = tmp_path / "journal"
    child = os.fork()
    if not child:
        import lorafsm_journal.database as database

        database.create = lambda *_: die()
        JournaledRegistry.open(path, CONFIG, EPOCH)
        os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert path.exists()
    assert recovered(path) == new_registry(EPOCH, CONFIG)


def test_of_many_processes_one_gets_the_journal(tmp_path: Path):
    path = tmp_path / "journal"
    ready, go = os.pipe(), os.pipe()
    children = []
    for number in range(6):
        child = os.fork()
        if not child:
            try:
                os.close(go[1])
                os.write(ready[1], b".")
                os.read(go[0], 1)  # returns when the parent closes its end
                with JournaledRegistry.open(path, CONFIG, EPOCH) as host:
                    assert host.apply(OwnerUp(owner=f"o{number}")).ok
                    os.write(ready[1], b"w")
                    signal.pause()
            except JournalError as error:
                os.write(ready[1], b"l" if error.code == "JOURNAL_LOCKED" else b"?")
            finally:
                os._exit(0)
        children.append(child)
    try:
        seen = b""
        while len(seen) < 6:
            seen += os.read(ready[0], 6)
        os.close(go[1])
        while len(seen) < 12:
            seen += os.read(ready[0], 6)
        assert sorted(seen[6:]) == sorted(b"wlllll")
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    assert len(recovered(path).owners) == 1

"""The journal: one SQLite file per deployment epoch, one row per event with its outcome (protocol rule 18).

A batch of rows is committed, all or none, before `append_all` returns.  At level `process` (WAL,
synchronous=NORMAL) it then survives the death of the process; at level `power` (FULL) it is on the disk, unless
it holds refusals only, which play no part in recovery and are not waited for.  Each row
carries a check over its own texts and the row before, so an altered, exchanged or missing row is found; of a
file cut short at its end, only what was acknowledged elsewhere could tell.

One process writes, and holds a lock as long as it lives.  Any number may read.  SQLite's WAL needs a local
disk, not a network file system.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Self

from lorafsm import registry as rules
from lorafsm.errors import InvalidField
from lorafsm.events import Event
from lorafsm.outcomes import Outcome, Refusal
from lorafsm.records import Config, Registry, new_registry
from lorafsm_journal import database
from lorafsm_journal.errors import JournalCode as Code
from lorafsm_journal.errors import JournalError, Undecodable
from lorafsm_journal.lock import WriterLock
from lorafsm_journal.rows import Malformed, Row, link, read_texts, write_texts


class Level(StrEnum):
    """What an acknowledged row survives."""

    PROCESS = "process"  # kill -9 of the writer
    POWER = "power"  # loss of power too: each batch waits for the disk


_SYNCHRONOUS = {Level.PROCESS: "NORMAL", Level.POWER: "FULL"}


class Journal:
    """Made by `Journal.open` to write and by `Journal.read` to look."""

    def __init__(
        self, path: Path, db: sqlite3.Connection, lock: WriterLock | None, level: Level = Level.PROCESS
    ) -> None:
        self.path = path
        self.level = level
        self.epoch, self.config = database.about(db, path)
        self._db = db
        self._lock = lock
        self._refuses: tuple[Code, str] | None = None
        last = db.execute("SELECT number, chain FROM entries ORDER BY number DESC LIMIT 1").fetchone()
        self._last: int = last[0] if last else 0
        self._chain: str = last[1] if last else ""

    @classmethod
    def open(cls, path: str | os.PathLike[str], config: Config, epoch: str, level: Level | str = Level.PROCESS) -> Self:
        """Open for writing at a level of durability; a file that is not there is made.

        Raises JournalError: JOURNAL_LOCKED (another writer lives), JOURNAL_UNWRITABLE, JOURNAL_SCHEMA (not a
        journal of this schema), JOURNAL_MISMATCH (begun with another epoch or config).
        """
        where = Path(path)
        asked = _level(level)
        new_registry(epoch, config)  # refuses a malformed epoch before a file is made
        database.require_writable(where)
        with ExitStack() as undo:
            lock = WriterLock(where)
            undo.callback(lock.release)
            try:
                db = database.connect(where, "rwc")
                undo.callback(db.close)
                database.prepare(db, where, config, epoch)
                journal = cls(where, db, lock, asked)
            except sqlite3.Error as error:
                raise database.meaning(where, error) from error
            journal._require_same(config, epoch)
            undo.pop_all()
        return journal

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Open for reading, beside a living writer too; `append` is refused."""
        where = Path(path)
        if not where.is_file():
            raise JournalError(Code.JOURNAL_SCHEMA, f"{where} does not exist; name a journal that a writer made")
        with ExitStack() as undo:
            try:
                db = database.connect(where, "ro")
                undo.callback(db.close)
                database.require_schema(db, where)
                journal = cls(where, db, None)
            except sqlite3.Error as error:
                raise database.meaning(where, error) from error
            undo.pop_all()
        journal._refuses = (Code.JOURNAL_UNWRITABLE, "it was opened for reading; use Journal.open to write")
        return journal

    def append(self, event: Event, outcome: Outcome) -> int:
        """Write one row and commit it; returns its number.  As `append_all`."""
        return self.append_all((event,), (outcome,))

    def append_all(self, events: Sequence[Event], outcomes: Sequence[Outcome]) -> int:
        """Write one row for each event and its outcome in one transaction; returns the number of the last row.

        After JOURNAL_UNWRITABLE none of the rows is in the journal and one may try again.  After JOURNAL_UNCERTAIN
        only recovery, from the journal newly opened, says whether they are.  An accepted event that has no form in
        the journal is Undecodable (a programming error); nothing is written.
        """
        if self._refuses is not None:
            code, why = self._refuses
            raise JournalError(code, f"{self.path}: {why}")
        number, chain, rows = self._last, self._chain, []
        for event, outcome in zip(events, outcomes, strict=True):
            texts = write_texts(event, outcome)
            number, chain = number + 1, link(chain, *texts)
            rows.append((number, *texts, chain))
        if rows:
            self._commit(rows, waits=not all(isinstance(outcome, Refusal) for outcome in outcomes))
            self._last, self._chain = number, chain
        return number

    def _commit(self, rows: list[tuple[int, str, str, str]], *, waits: bool) -> None:
        first = rows[0][0]
        try:
            if self.level is Level.POWER:  # NORMAL is what every connection starts with here
                self._db.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[self.level if waits else Level.PROCESS]}")
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("INSERT INTO entries VALUES (?, ?, ?, ?)", rows)
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise database.meaning(self.path, error, first) from error
        try:
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            why = f"the commit of row {first} failed ({error}); close it, open it again and recover"
            self._refuses = (Code.JOURNAL_UNCERTAIN, why)
            raise JournalError(Code.JOURNAL_UNCERTAIN, f"{self.path}: {why}", first) from error

    def rows(self) -> Iterator[Row]:
        """All rows in order, each checked; the first that is not what was written raises JOURNAL_CORRUPT."""
        chain = ""
        for expected, (number, event_text, outcome_text, check) in enumerate(self._texts(), 1):
            if number != expected:
                raise JournalError(Code.JOURNAL_CORRUPT, f"{self.path}: the row is missing; restore the file", expected)
            chain = link(chain, event_text, outcome_text)
            if chain != check:
                raise JournalError(Code.JOURNAL_CORRUPT, f"{self.path}: not what was written; restore the file", number)
            try:
                row = read_texts(number, event_text, outcome_text)
            except Undecodable as error:
                raise JournalError(Code.JOURNAL_CORRUPT, f"{self.path}: {error}", number) from error
            yield row

    def recover(self) -> Registry:
        """The registry after all rows, by replay through `step`.

        Refusals are passed over.  An accepted event that `step` now answers otherwise raises JOURNAL_DIVERGED and
        names the row: the rules, or the journal, are not those of the writer.
        """
        registry = new_registry(self.epoch, self.config)
        for row in self.rows():
            if isinstance(row.event, Malformed) or isinstance(row.outcome, Refusal):
                continue
            result = rules.step(registry, row.event)
            if result.outcome != row.outcome:
                raise JournalError(
                    Code.JOURNAL_DIVERGED,
                    f"{self.path}: {type(row.event).__name__} was answered {row.outcome!r:.200} and is now answered "
                    f"{result.outcome!r:.200}; recover with the lorafsm that wrote it",
                    row.number,
                )
            registry = result.registry
        return registry

    def close(self) -> None:
        """Give the file and the lock back; may be called again."""
        self._refuses = (Code.JOURNAL_CLOSED, "it is closed; open it again")
        self._db.close()
        if self._lock is not None:
            self._lock.release()

    def __len__(self) -> int:
        """The number of rows, refusals included (for a reader: when it opened)."""
        return self._last

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _texts(self) -> Iterator[tuple[int, str, str, str]]:
        if self._refuses is not None and self._refuses[0] is Code.JOURNAL_CLOSED:
            raise JournalError(Code.JOURNAL_CLOSED, f"{self.path}: {self._refuses[1]}")
        try:
            yield from self._db.execute("SELECT number, event, outcome, chain FROM entries ORDER BY number")
        except sqlite3.Error as error:
            raise database.meaning(self.path, error) from error

    def _require_same(self, config: Config, epoch: str) -> None:
        if self.epoch != epoch:
            raise JournalError(
                Code.JOURNAL_MISMATCH,
                f"{self.path} is the journal of epoch {self.epoch}, not {epoch}; a new epoch begins a new file",
            )
        if self.config != config:
            raise JournalError(
                Code.JOURNAL_MISMATCH,
                f"{self.path} was begun with {self.config!r}, not {config!r}; the config of an epoch is fixed",
            )


def _level(level: Level | str) -> Level:
    try:
        return Level(level)
    except ValueError as error:
        raise InvalidField("level", f"must be {' or '.join(Level)}, not {level!r:.80}") from error

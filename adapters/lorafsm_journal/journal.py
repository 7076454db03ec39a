"""The journal: one SQLite file per deployment epoch, one row per event with its outcome (protocol rule 18).

A row is committed before `append` returns.  The commit of an accepted event waits for the disk (WAL,
synchronous=FULL); that of a refusal does not (NORMAL), because refusals play no part in recovery.  Each row
carries a check over its own texts and the row before, so an altered, exchanged or missing row is found; of a
file cut short at its end, only what was acknowledged elsewhere could tell.

One process writes, and holds a lock as long as it lives.  Any number may read.  SQLite's WAL needs a local
disk, not a network file system.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from lorafsm import registry as rules
from lorafsm.events import Event
from lorafsm.outcomes import Outcome, Refusal
from lorafsm.records import Config, Registry, new_registry
from lorafsm_journal import database
from lorafsm_journal.errors import JournalCode as Code
from lorafsm_journal.errors import JournalError, Undecodable
from lorafsm_journal.lock import WriterLock
from lorafsm_journal.rows import Malformed, Row, link, read_texts, write_texts


class Journal:
    """Made by `Journal.open` to write and by `Journal.read` to look."""

    def __init__(self, path: Path, db: sqlite3.Connection, lock: WriterLock | None) -> None:
        self.path = path
        self.epoch, self.config = database.about(db, path)
        self._db = db
        self._lock = lock
        self._refuses: tuple[Code, str] | None = None
        last = db.execute("SELECT number, chain FROM entries ORDER BY number DESC LIMIT 1").fetchone()
        self._last: int = last[0] if last else 0
        self._chain: str = last[1] if last else ""

    @classmethod
    def open(cls, path: str | os.PathLike[str], config: Config, epoch: str) -> Self:
        """Open for writing; a file that is not there is made.

        Raises JournalError: JOURNAL_LOCKED (another writer lives), JOURNAL_UNWRITABLE, JOURNAL_SCHEMA (not a
        journal of this schema), JOURNAL_MISMATCH (begun with another epoch or config).
        """
        where = Path(path)
        new_registry(epoch, config)  # refuses a malformed epoch before a file is made
        database.require_writable(where)
        with ExitStack() as undo:
            lock = WriterLock(where)
            undo.callback(lock.release)
            try:
                db = database.connect(where, "rwc")
                undo.callback(db.close)
                database.prepare(db, where, config, epoch)
                journal = cls(where, db, lock)
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
        """Write one row and commit it; returns its number.

        After JOURNAL_UNWRITABLE the row is not in the journal and one may try again.  After JOURNAL_UNCERTAIN only
        recovery, from the journal newly opened, says whether it is.  An accepted event that has no form in the
        journal is Undecodable (a programming error); nothing is written.
        """
        if self._refuses is not None:
            code, why = self._refuses
            raise JournalError(code, f"{self.path}: {why}")
        texts = write_texts(event, outcome)
        number, chain = self._last + 1, link(self._chain, *texts)
        try:
            self._db.execute(f"PRAGMA synchronous = {'NORMAL' if isinstance(outcome, Refusal) else 'FULL'}")
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute("INSERT INTO entries VALUES (?, ?, ?, ?)", (number, *texts, chain))
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise database.meaning(self.path, error, number) from error
        try:
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            why = f"the commit of row {number} failed ({error}); close it, open it again and recover"
            self._refuses = (Code.JOURNAL_UNCERTAIN, why)
            raise JournalError(Code.JOURNAL_UNCERTAIN, f"{self.path}: {why}", number) from error
        self._last, self._chain = number, chain
        return number

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

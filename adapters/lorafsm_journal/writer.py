"""The one that may write a journal: its lock, its number, and transactions that only the latest writer can make."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Self

from lorafsm.errors import InvalidField
from lorafsm.records import Config
from lorafsm_journal import database
from lorafsm_journal.epochs import Begun, Epochs
from lorafsm_journal.errors import JournalCode as Code
from lorafsm_journal.errors import JournalError
from lorafsm_journal.lock import WriterLock


class Level(StrEnum):
    """What an acknowledged row survives."""

    PROCESS = "process"  # kill -9 of the writer
    POWER = "power"  # loss of power too: each batch waits for the disk


def level_of(level: Level | str) -> Level:
    """The level of this name; InvalidField naming `level` if there is none."""
    try:
        return Level(level)
    except ValueError as error:
        raise InvalidField("level", f"must be {' or '.join(Level)}, not {level!r:.80}") from error


class Writer:
    """Made by `Writer.open`; every transaction goes through `batch`."""

    def __init__(self, path: Path, level: Level, db: sqlite3.Connection, lock: WriterLock, epochs: Epochs) -> None:
        self.path = path
        self.about = database.read_about(db, path)
        self.head = database.read_head(db, path)
        self._level = level
        self._db = db
        self._lock = lock
        self._epochs = epochs
        self._name = os.fspath(path)
        self._file = _identity(self._name)
        self._waits = False
        self._refuses: tuple[Code, str] | None = None

    @classmethod
    def open(cls, path: Path, config: Config, epoch: str, level: Level, epochs: Epochs) -> Self:
        """Take the lock and the next number; a file that is not there is made.  Raises as `Journal.open`."""
        with ExitStack() as undo:
            lock = WriterLock(path)
            undo.callback(lock.release)
            with epochs.held():
                if not path.exists() or not path.stat().st_size:
                    epochs.require_unused(epoch)
                database.require_whole_pages(path)
                try:
                    db = database.connect(path, "rwc")
                    undo.callback(db.close)
                    database.prepare(db, path, config, epoch)
                    about = database.read_about(db, path)
                    _require_same(path, about, config, epoch)
                    epochs.require_current(_seen(about, database.read_head(db, path)))
                    db.execute("UPDATE head SET writer = writer + 1")  # on the disk: synchronous is FULL until here
                    db.execute("PRAGMA synchronous = NORMAL")
                    db.execute(f"PRAGMA wal_autocheckpoint = {database.CHECKPOINT_PAGES}")
                    writer = cls(path, level, db, lock, epochs)
                except database.FAULTS as error:
                    raise database.meaning(path, error) from error
                epochs.record(_seen(writer.about, writer.head))
            undo.pop_all()
        return writer

    def require_open(self) -> None:
        """Raise what keeps this writer from writing, if anything does."""
        if self._refuses is not None:
            code, why = self._refuses
            raise JournalError(code, f"{self.path}: {why}")

    @contextmanager
    def batch(self, number: int, chain: str, *, waits: bool = True) -> Iterator[sqlite3.Connection]:
        """One transaction, after which the journal ends with row `number`; `waits` is whether level `power` waits.

        Left normally, it is committed.  JOURNAL_UNWRITABLE: nothing was written.  JOURNAL_UNCERTAIN and
        JOURNAL_FENCED are for ever.
        """
        self.require_open()
        try:
            self._synchronous(waits and self._level is Level.POWER)
            self._db.execute("BEGIN IMMEDIATE")
            self._take(number, chain)
            yield self._db
        except BaseException as error:
            with suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            if isinstance(error, database.FAULTS):
                raise database.meaning(self.path, error, number) from error
            raise
        try:
            self._db.execute("COMMIT")
        except BaseException as error:
            why = f"the commit up to row {number} failed ({error!r:.200}); close it, open it again and recover"
            raise self._never_again(Code.JOURNAL_UNCERTAIN, why, number) from error
        if _identity(self._name) != self._file:
            raise self._never_again(
                Code.JOURNAL_FENCED, "the file of this name is another than the one written to; open it again", number
            )
        self.head = database.Head(self.head.writer, number, chain)

    def shrink(self) -> None:
        """Give free space back to the file system, as far as that goes."""
        with suppress(sqlite3.Error):
            self._db.execute("VACUUM")
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self.about = database.read_about(self._db, self.path)

    def close(self) -> None:
        """Give the file and the lock back; may be called again."""
        if self._refuses is not None and self._refuses[0] is Code.JOURNAL_CLOSED:
            return
        self._db.close()
        fenced = self._refuses is not None and self._refuses[0] is Code.JOURNAL_FENCED
        self._refuses = (Code.JOURNAL_CLOSED, "it is closed; open it again")
        if not fenced:
            with suppress(JournalError, OSError), self._epochs.held():
                self._epochs.record(_seen(self.about, self.head))
        self._lock.release()

    def _synchronous(self, waits: bool) -> None:
        if waits is not self._waits:
            self._db.execute(f"PRAGMA synchronous = {'FULL' if waits else 'NORMAL'}")
            self._waits = waits

    def _take(self, number: int, chain: str) -> None:
        """Move the head on, if it is where this writer left it and no other has come since."""
        head = self.head
        moved = self._db.execute(
            "UPDATE head SET number = ?, chain = ? WHERE writer = ? AND number = ? AND chain = ?",
            (number, chain, head.writer, head.number, head.chain),
        )
        if moved.rowcount != 1:
            raise self._never_again(
                Code.JOURNAL_FENCED,
                f"another writer has opened it since this one, number {head.writer}, did; this one is done",
            )

    def _never_again(self, code: Code, why: str, number: int | None = None) -> JournalError:
        self._refuses = (code, why)
        return JournalError(code, f"{self.path}: {why}", number)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - faster than Path.stat, and once a batch
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _seen(about: database.About, head: database.Head) -> Begun:
    return Begun(about.epoch, about.id, head.writer, head.number)


def _require_same(path: Path, about: database.About, config: Config, epoch: str) -> None:
    if about.epoch != epoch:
        raise JournalError(
            Code.JOURNAL_MISMATCH,
            f"{path} is the journal of epoch {about.epoch}, not {epoch}; a new epoch begins a new file",
        )
    if about.config != config:
        raise JournalError(
            Code.JOURNAL_MISMATCH,
            f"{path} was begun with {about.config!r}, not {config!r}; the config of an epoch is fixed",
        )

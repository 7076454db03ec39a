"""The journal: one SQLite file per deployment epoch, one row per event with its outcome (protocol rule 18).

A batch of rows is committed, all or none, before `append_all` returns.  At level `process` (WAL,
synchronous=NORMAL) it then survives the death of the process; at level `power` (FULL) it is on the disk, unless
it holds refusals only, which play no part in recovery and are not waited for.  The last row of each batch
carries a check over the batch and all before it, and the journal says with which row it ends, so an altered,
exchanged, missing or added row is found.

One process writes, and holds a lock as long as it lives.  Each opening also takes the next writer's number, and
every batch compares it: a writer whose lock was lost cannot append beside its successor, nor to a file that no
longer has its name.  Any number may read.  SQLite's WAL needs a local disk, not a network file system.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Self

from lorafsm.events import Event
from lorafsm.outcomes import Outcome, Refusal
from lorafsm.records import Config, Registry, new_registry
from lorafsm_journal import database, recovery, snapshots
from lorafsm_journal.codec import decode_registry, encode_registry
from lorafsm_journal.epochs import Epochs
from lorafsm_journal.errors import JournalCode as Code
from lorafsm_journal.errors import JournalError
from lorafsm_journal.rows import Row, link, write_texts
from lorafsm_journal.view import View
from lorafsm_journal.writer import Level, Writer, level_of

_AT_ONCE = 16  # rows of one statement: SQLite takes them faster than one by one
_INSERT = "INSERT INTO entries VALUES (?, ?, ?, ?)"


class Journal:
    """Made by `Journal.open` to write and by `Journal.read` to look."""

    def __init__(self, path: Path, about: database.About, head: database.Head, writer: Writer | None) -> None:
        self.path = path
        self.epoch, self.config = about.epoch, about.config
        self._head = head
        self._writer = writer
        self._closed = False

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        config: Config,
        epoch: str,
        level: Level | str = Level.PROCESS,
        epochs: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Open for writing at a level of durability; a file that is not there is made.  `epochs` names the file of
        epochs used, if several journals share one.

        Raises JournalError: JOURNAL_LOCKED (another writer lives), JOURNAL_UNWRITABLE, JOURNAL_SCHEMA (not a
        journal of this schema), JOURNAL_MISMATCH (begun with another epoch or config), JOURNAL_EPOCH_USED,
        JOURNAL_EPOCH_OLD, JOURNAL_BACKWARDS (see `lorafsm_journal.epochs`), JOURNAL_CORRUPT.
        """
        where = Path(path)
        asked = level_of(level)
        new_registry(epoch, config)  # refuses a malformed epoch before a file is made
        database.require_writable(where)
        used = Epochs(Path(epochs) if epochs is not None else where.with_name(where.name + ".epochs"))
        writer = Writer.open(where, config, epoch, asked, used)
        return cls(where, writer.about, writer.head, writer)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Open for reading, beside a living writer too; `append` is refused."""
        where = Path(path)
        with View(where) as view:
            return cls(where, view.about, view.head, None)

    @property
    def writer(self) -> int:
        """The number of the latest writer: one more at each opening (for a reader: when it opened)."""
        return self._head.writer

    def append(self, event: Event, outcome: Outcome) -> int:
        """Write one row and commit it; returns its number.  As `append_all`."""
        return self.append_all((event,), (outcome,))

    def append_all(self, events: Sequence[Event], outcomes: Sequence[Outcome]) -> int:
        """Write one row for each event and its outcome in one transaction; returns the number of the last row.

        After JOURNAL_UNWRITABLE none of the rows is in the journal and one may try again.  After JOURNAL_UNCERTAIN
        only recovery, from the journal newly opened, says whether they are.  JOURNAL_FENCED: another writer has
        the journal.  An accepted event that has no form in the journal is Undecodable (a programming error);
        nothing is written.
        """
        writer = self._may_write()
        before = writer.head
        event_texts, outcome_texts = write_texts(events, outcomes)
        number, check = before.number + len(event_texts), link(before.chain, *event_texts, *outcome_texts)
        if event_texts:
            numbers, checks = range(before.number + 1, number + 1), [*[None] * (len(events) - 1), check]
            rows = [*chain.from_iterable(zip(numbers, event_texts, outcome_texts, checks, strict=True))]
            waits = any(type(outcome) is not Refusal for outcome in outcomes)
            with writer.batch(number, check, waits=waits) as db:
                _insert(db, rows)
        return number

    def rows(self) -> Iterator[Row]:
        """All rows in order, each checked; the first that is not what was written raises JOURNAL_CORRUPT.  Of a
        compacted journal, the rows since."""
        with self._view() as view:
            for texts in view.texts():
                yield recovery.read_row(view, texts)

    def recover(self) -> Registry:
        """The registry after all rows: the latest good snapshot, and the rows after it through `step`.

        Refusals are passed over.  An accepted event that `step` now answers otherwise raises JOURNAL_DIVERGED and
        names the row: the rules, or the journal, are not those of the writer.
        """
        return self.recovered().registry

    def recovered(self) -> recovery.Recovered:
        """As `recover`, and how the state was found."""
        with self._view() as view:
            return recovery.recover(view)

    def verify(self) -> recovery.Verified:
        """Read every row strictly, replay it and hold every snapshot against the replay; raises JournalError for the
        first thing that is not as it should be."""
        with self._view() as view:
            return recovery.verify(view)

    def snapshot(self, registry: Registry) -> int:
        """Keep `registry`, which must be the state after the last row, so that recovery starts there; returns the
        length of its text."""
        writer = self._may_write()
        head, state = writer.head, encode_registry(registry)
        with writer.batch(head.number, head.chain, waits=False) as db:
            snapshots.insert(db, head.number, state, head.chain, writer.about.base)
        return len(state)

    def compact(self, registry: Registry) -> int:
        """Let a snapshot of `registry`, which must be the state after the last row, stand for all rows; returns how
        many were dropped.  They go in one transaction, after the snapshot was read back."""
        self.snapshot(registry)
        writer = self._may_write()
        number, check = writer.head.number, writer.head.chain
        with writer.batch(number, check) as db:
            kept = snapshots.good(db.execute("SELECT * FROM snapshots WHERE number = ?", (number,)).fetchone())
            if kept is None or decode_registry(kept.state) != registry:
                raise JournalError(Code.JOURNAL_CORRUPT, f"{self.path}: the snapshot is not what was written", number)
            dropped = db.execute("DELETE FROM entries").rowcount
            db.execute("DELETE FROM snapshots WHERE number != ?", (number,))
            db.execute("UPDATE about SET base = ?, anchor = ?", (number, check))
        writer.shrink()
        return dropped

    def close(self) -> None:
        """Give the file and the lock back; may be called again."""
        self._closed = True
        if self._writer is not None:
            self._writer.close()

    def __len__(self) -> int:
        """The number of the last row, refusals counted (for a reader: when it opened)."""
        return self._head.number if self._writer is None else self._writer.head.number

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _view(self) -> View:
        if self._closed:
            raise JournalError(Code.JOURNAL_CLOSED, f"{self.path}: it is closed; open it again")
        return View(self.path)

    def _may_write(self) -> Writer:
        if self._writer is None:
            raise JournalError(
                Code.JOURNAL_UNWRITABLE, f"{self.path}: it was opened for reading; use Journal.open to write"
            )
        self._writer.require_open()
        return self._writer


def _insert(db: sqlite3.Connection, values: list[int | str | None]) -> None:
    """Rows of four values each, one after the other."""
    for at in range(0, len(values), 4 * _AT_ONCE):
        some = values[at : at + 4 * _AT_ONCE]
        db.execute(_INSERT + ", (?, ?, ?, ?)" * (len(some) // 4 - 1), some)

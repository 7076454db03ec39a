"""A journal at one moment: one read transaction, so that all that is read belongs together; its writer may live."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

from lorafsm_journal import database
from lorafsm_journal.errors import JournalCode as Code
from lorafsm_journal.errors import JournalError
from lorafsm_journal.rows import link
from lorafsm_journal.snapshots import Snapshot, good

Texts: TypeAlias = tuple[int, str, str, str]
"""Number of a row, text of the event, text of the outcome, check."""


_ROWS = "SELECT number, event, outcome, chain FROM entries WHERE number > ? ORDER BY number"


class View:
    """Opened for reading only; raises JournalError where the journal does not hold together."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise JournalError(Code.JOURNAL_SCHEMA, f"{path} does not exist; name a journal that a writer made")
        with ExitStack() as undo:
            try:
                self._db = database.connect(path, "ro")
                undo.callback(self._db.close)
                database.require_schema(self._db, path)
                self._db.execute("BEGIN")
                self.about = database.read_about(self._db, path)
                self.head = database.read_head(self._db, path)
            except database.FAULTS as error:
                raise database.meaning(path, error) from error
            undo.pop_all()

    def texts(self, after: int | None = None, chain: str | None = None) -> Iterator[Texts]:
        """The rows from `after` on (left out: from the first), each held against the check of the one before,
        which is `chain`; the last against where the journal says that it ends."""
        number, chain = (self.about.base, self.about.anchor) if after is None or chain is None else (after, chain)
        try:
            for row in self._db.execute(_ROWS, (number,)):
                number += 1
                if not type(row[1]) is type(row[2]) is type(row[3]) is str:
                    raise self._corrupt("not what was written", number)
                if row[0] != number:
                    raise self._corrupt("the row is missing", number)
                chain = link(chain, row[1], row[2])
                if chain != row[3]:
                    raise self._corrupt("not what was written", number)
                yield row
        except database.FAULTS as error:
            raise database.meaning(self.path, error, number + 1) from error
        if number < self.head.number:
            raise self._corrupt(f"the row is missing, and all up to {self.head.number}", number + 1)
        if number > self.head.number:
            raise self._corrupt(f"the journal ends with row {self.head.number}", self.head.number + 1)
        if chain != self.head.chain:
            raise self._corrupt("not the row with which the journal says that it ends", number)

    def snapshots(self) -> Iterator[Snapshot]:
        """Every snapshot whose digest is right, the latest first; others are passed over."""
        try:
            numbers = [row[0] for row in self._db.execute("SELECT number FROM snapshots ORDER BY number DESC")]
        except database.FAULTS:
            return  # a shortcut that cannot be read is none
        for number in numbers:
            try:
                row = self._db.execute("SELECT * FROM snapshots WHERE number = ?", (number,)).fetchone()
            except database.FAULTS:
                continue
            if (snapshot := good(row)) is not None and self._belongs(snapshot):
                yield snapshot

    def last(self, count: int) -> Iterator[Texts]:
        """The last rows, held against the check of the one before them."""
        after = max(self.about.base, self.head.number - count)
        yield from self.texts(after, self.check_of(after))

    def check_of(self, number: int) -> str:
        """The check of a row, as it is written there; of the last one compacted away too."""
        if number == self.about.base:
            return self.about.anchor
        try:
            row = self._db.execute("SELECT chain FROM entries WHERE number = ?", (number,)).fetchone()
        except database.FAULTS as error:
            raise database.meaning(self.path, error, number) from error
        if row is None or type(row[0]) is not str:
            raise self._corrupt("the row is missing", number)
        return str(row[0])

    def count_snapshots(self) -> int:
        """How many there are, good or not."""
        try:
            found: int = self._db.execute("SELECT count(*) FROM snapshots").fetchone()[0]
        except database.FAULTS as error:
            raise database.meaning(self.path, error) from error
        return found

    def check_pages(self) -> None:
        """JOURNAL_CORRUPT unless SQLite finds its own pages in order."""
        try:
            [said] = self._db.execute("PRAGMA integrity_check(1)").fetchone()
        except database.FAULTS as error:
            raise database.meaning(self.path, error) from error
        if said != "ok":
            raise JournalError(Code.JOURNAL_CORRUPT, f"{self.path}: {said}; copy the rows out (`lorafsm journal cut`)")

    def close(self) -> None:
        """End the transaction."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _belongs(self, snapshot: Snapshot) -> bool:
        """Whether the row after which it was taken is the one in this journal."""
        try:
            return snapshot.chain == self.check_of(snapshot.number)
        except JournalError:
            return False

    def _corrupt(self, what: str, number: int) -> JournalError:
        return JournalError(
            Code.JOURNAL_CORRUPT,
            f"{self.path}: {what}; restore the file, or keep the rows before it with `lorafsm journal cut`",
            number,
        )

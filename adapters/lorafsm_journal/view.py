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

Texts: TypeAlias = tuple[int, str, str, str | None]
"""Number of a row, text of the event, text of the outcome; at the last row of a commit its check."""


_ROWS = "SELECT number, event, outcome, chain FROM entries WHERE number > ? ORDER BY number"
_COMMIT = (
    "SELECT number, chain FROM entries WHERE number <= ? AND chain IS NOT NULL ORDER BY number DESC LIMIT 1"  # its end
)


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
        """The rows from `after` on (left out: from the first), each once its commit was held against its check and
        that of the commit before, which is `chain`; the last against where the journal says that it ends.

        JOURNAL_CORRUPT names the first row of the commit that is not what was written.
        """
        number, chain = (self.about.base, self.about.anchor) if after is None or chain is None else (after, chain)
        good, commit = number, list[Texts]()
        try:
            for row in self._db.execute(_ROWS, (number,)):
                number += 1
                if not type(row[1]) is type(row[2]) is str:
                    raise self._corrupt("not what was written", good + 1)
                if row[0] != number:
                    raise self._corrupt("the row is missing", good + 1)
                commit.append(row)
                if row[3] is not None:
                    chain = link(chain, *[texts[1] for texts in commit], *[texts[2] for texts in commit])
                    if chain != row[3]:
                        raise self._corrupt("not what was written", good + 1)
                    yield from commit
                    good, commit = number, []
        except database.FAULTS as error:
            raise database.meaning(self.path, error, good + 1) from error
        if number < self.head.number:
            raise self._corrupt(f"the row is missing, and all up to {self.head.number}", good + 1)
        if number > self.head.number:
            raise self._corrupt(f"the journal ends with row {self.head.number}", self.head.number + 1)
        if commit or chain != self.head.chain:
            raise self._corrupt("not the row with which the journal says that it ends", good + 1 if commit else good)

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
        """The last rows, held against the check of the commit before them."""
        after = max(self.about.base, self.head.number - count)
        for texts in self.texts(*self.commit_before(after)):
            if texts[0] > after:
                yield texts

    def commit_before(self, number: int) -> tuple[int, str]:
        """The last commit that ends with this row or before it: its last row and its check, as they are written
        there.  Of the first rows, the last one that was compacted away."""
        try:
            row = self._db.execute(_COMMIT, (number,)).fetchone()
        except database.FAULTS as error:
            raise database.meaning(self.path, error, number) from error
        if row is None:
            return self.about.base, self.about.anchor
        if type(row[1]) is not str:
            raise self._corrupt("not what was written", row[0])
        return int(row[0]), str(row[1])

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
            return (snapshot.number, snapshot.chain) == self.commit_before(snapshot.number)
        except JournalError:
            return False

    def _corrupt(self, what: str, number: int) -> JournalError:
        return JournalError(
            Code.JOURNAL_CORRUPT,
            f"{self.path}: {what}; restore the file, or keep the rows before it with `lorafsm journal cut`",
            number,
        )

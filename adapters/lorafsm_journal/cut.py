"""What is left of a damaged journal: the rows before the damage, copied to a new file.

Nothing is guessed and nothing is repaired in place: the damaged file stays as it is.  The rows after the damage,
which were acknowledged too, are left behind only if the caller says so.
"""

from __future__ import annotations

import os
import sqlite3
from itertools import islice
from pathlib import Path

from attrs import frozen

from lorafsm_journal import database, recovery, snapshots
from lorafsm_journal.errors import JournalCode as Code
from lorafsm_journal.errors import JournalError
from lorafsm_journal.lock import WriterLock
from lorafsm_journal.rows import link
from lorafsm_journal.view import View


@frozen
class Cut:
    """What was done: rows up to `kept` are in the new file; `lost` rows, the damaged one first, are not."""

    kept: int
    lost: int
    damage: str


def damage_of(view: View) -> JournalError | None:
    """The first row that is not what was written, or that replay answers otherwise; None if all are in order."""
    try:
        for _ in recovery.walk(view, recovery.beginning(view)):
            pass
    except JournalError as error:
        return error
    return None


def cut(path: str | os.PathLike[str], row: int, to: str | os.PathLike[str], *, drop_following: bool = False) -> Cut:
    """Copy all rows before `row`, which must be the first damaged one, to the new journal `to`.

    JOURNAL_UNCUT: no row is damaged, or another is the first, or rows follow it (or the journal recovers all the
    same, from a later snapshot) and `drop_following` was not said.  JOURNAL_LOCKED while a writer lives.
    """
    source, target = Path(path), Path(to)
    if target.exists():
        raise JournalError(Code.JOURNAL_UNWRITABLE, f"{target} exists; name a new file")
    database.require_writable(target)
    View(source).close()  # a journal at all
    lock = WriterLock(source)
    try:
        with View(source) as view:
            damage = damage_of(view)
            _require_asked(view, damage, row)
            if not drop_following:
                _require_nothing_else_lost(view, row)
            _copy(view, row - 1, target)
            return Cut(row - 1, max(0, view.head.number - row + 1), str(damage))
    finally:
        lock.release()


def _require_asked(view: View, damage: JournalError | None, row: int) -> None:
    if damage is None:
        raise JournalError(Code.JOURNAL_UNCUT, f"{view.path}: every row is what was written; there is nothing to cut")
    if damage.row is None or damage.row <= view.about.base:
        raise JournalError(Code.JOURNAL_UNCUT, f"{view.path}: no row before the damage can be kept ({damage})")
    if damage.row != row:
        raise JournalError(Code.JOURNAL_UNCUT, f"{view.path}: the first damaged row is {damage.row}, not {row}")


def _require_nothing_else_lost(view: View, row: int) -> None:
    try:
        found = recovery.recover(view)
    except JournalError:
        found = None
    if found is not None:
        raise JournalError(
            Code.JOURNAL_UNCUT,
            f"{view.path}: it recovers all the same, from the snapshot after row {found.snapshot}; go on with it, or "
            "let that snapshot stand for the rows (compact, trusting it), or say that all since is to be lost",
            row,
        )
    if view.head.number > row:
        raise JournalError(
            Code.JOURNAL_UNCUT,
            f"{view.path}: rows {row + 1} to {view.head.number} follow it and were acknowledged; say that they are to "
            "be lost, or begin a new epoch",
            row,
        )


def _copy(view: View, last: int, target: Path) -> None:
    db = database.connect(target, "rwc")
    try:
        db.execute("BEGIN IMMEDIATE")
        database.create(db, view.about.id, view.about.epoch, view.about.config)
        db.execute("UPDATE about SET base = ?, anchor = ?", (view.about.base, view.about.anchor))
        db.executemany("INSERT INTO entries VALUES (?, ?, ?, ?)", islice(view.texts(), last - view.about.base))
        for snapshot in view.snapshots():
            if snapshot.number == view.about.base:
                snapshots.insert(db, snapshot.number, snapshot.state, snapshot.chain, view.about.base)
        # A later writer than all before: it goes on from here, whatever the list of epochs saw of the other file.
        db.execute(
            "UPDATE head SET writer = ?, number = ?, chain = ?", (view.head.writer + 1, last, _end(view, db, last))
        )
        db.execute("COMMIT")
    except BaseException as error:
        db.close()
        target.unlink(missing_ok=True)
        if isinstance(error, database.FAULTS):
            raise database.meaning(target, error) from error
        raise
    db.close()


def _end(view: View, db: sqlite3.Connection, last: int) -> str:
    """The check of the last row that is kept; a new one if its commit went on after it."""
    number, chain = view.commit_before(last)
    if number < last:
        rows = db.execute("SELECT event, outcome FROM entries WHERE number > ? ORDER BY number", (number,)).fetchall()
        chain = link(chain, *[event for event, _ in rows], *[outcome for _, outcome in rows])
        db.execute("UPDATE entries SET chain = ? WHERE number = ?", (chain, last))
    return chain

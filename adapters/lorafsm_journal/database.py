"""The journal's SQLite file: connecting, the schema and its version, and what SQLite's errors mean."""

from __future__ import annotations

import os
import secrets
import sqlite3
from pathlib import Path
from typing import Literal

from attrs import frozen

from lorafsm.records import Config
from lorafsm_journal.codec import decode_config, encode_config
from lorafsm_journal.errors import JournalCode as Code
from lorafsm_journal.errors import JournalError, Undecodable
from lorafsm_journal.rows import link

SCHEMA_VERSION = 3
_APPLICATION_ID = 0x4C46534D  # "LFSM": tells a journal from any other SQLite file

_SMALLEST_PAGE = 512  # bytes
CHECKPOINT_PAGES = 4000
"""Pages of the log (16 MiB) after which SQLite brings them into the file and waits for the disk; its own is 1000."""

_SCHEMA = (
    # What never changes, but for `base`: so many rows were compacted away, and `anchor` is the check of the last.
    "CREATE TABLE about (id TEXT NOT NULL, epoch TEXT NOT NULL, config TEXT NOT NULL, base INTEGER NOT NULL,"
    " anchor TEXT NOT NULL) STRICT",
    # The last row and its check, and the number of the writer that may add to them: set with every batch.
    "CREATE TABLE head (writer INTEGER NOT NULL, number INTEGER NOT NULL, chain TEXT NOT NULL) STRICT",
    # A check stands at the last row of each commit.
    "CREATE TABLE entries (number INTEGER PRIMARY KEY, event TEXT NOT NULL, outcome TEXT NOT NULL, chain TEXT) STRICT",
    "CREATE TABLE snapshots (number INTEGER PRIMARY KEY, state TEXT NOT NULL, chain TEXT NOT NULL,"
    " digest TEXT NOT NULL) STRICT",
    f"PRAGMA application_id = {_APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)


@frozen
class About:
    """What a journal says of itself."""

    id: str  # made at random with the file; a copy has the same
    epoch: str
    config: Config
    base: int  # rows up to this one were compacted away
    anchor: str  # the check of row `base`, or of what stands here when there never was a row


@frozen
class Head:
    """Where a journal ends, and who may write on."""

    writer: int
    number: int
    chain: str


def connect(path: Path, mode: Literal["ro", "rw", "rwc"]) -> sqlite3.Connection:
    """A connection without implicit transactions; may be handed from thread to thread, but not shared."""
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)


def prepare(db: sqlite3.Connection, path: Path, config: Config, epoch: str) -> None:
    """Make the tables of a new file, all or none; refuse a file that is no journal of this schema."""
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("BEGIN IMMEDIATE")
    try:
        if db.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (0,):
            create(db, secrets.token_hex(16), epoch, config)
        require_schema(db, path)
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def create(db: sqlite3.Connection, identity: str, epoch: str, config: Config) -> None:
    """The tables of a journal without rows."""
    for statement in _SCHEMA:
        db.execute(statement)
    text = encode_config(config)
    first = genesis(identity, epoch, text)
    db.execute("INSERT INTO about VALUES (?, ?, ?, 0, ?)", (identity, epoch, text, first))
    db.execute("INSERT INTO head VALUES (0, 0, ?)", (first,))


def genesis(identity: str, epoch: str, config_text: str) -> str:
    """The check before the first row: over what the journal says of itself."""
    return link(identity, epoch, config_text)


def require_schema(db: sqlite3.Connection, path: Path) -> None:
    """JOURNAL_SCHEMA unless the file is a journal of this schema version."""
    [application] = db.execute("PRAGMA application_id").fetchone()
    [version] = db.execute("PRAGMA user_version").fetchone()
    if application != _APPLICATION_ID:
        raise JournalError(Code.JOURNAL_SCHEMA, f"{path} is not a lorafsm journal; name another file")
    if version != SCHEMA_VERSION:
        raise JournalError(
            Code.JOURNAL_SCHEMA,
            f"{path} has schema version {version}, this lorafsm reads {SCHEMA_VERSION}; end this deployment with "
            "the lorafsm that wrote it, and begin a new epoch in a new file",
        )


def read_about(db: sqlite3.Connection, path: Path) -> About:
    """What the journal says of itself, checked."""
    found = db.execute("SELECT id, epoch, config, base, anchor FROM about").fetchall()
    if len(found) != 1 or list(map(type, found[0])) != [str, str, str, int, str]:
        raise JournalError(Code.JOURNAL_CORRUPT, f"{path} does not say its epoch and config; restore it")
    [(identity, epoch, text, base, anchor)] = found
    try:
        config = decode_config(text)
    except Undecodable as error:
        raise JournalError(Code.JOURNAL_CORRUPT, f"{path}: its config: {error}; restore it") from error
    if base < 0 or (base == 0 and anchor != genesis(identity, epoch, text)):
        raise JournalError(Code.JOURNAL_CORRUPT, f"{path}: its epoch or config is not what was written; restore it")
    return About(identity, epoch, config, base, anchor)


def read_head(db: sqlite3.Connection, path: Path) -> Head:
    """Where the journal ends."""
    found = db.execute("SELECT writer, number, chain FROM head").fetchall()
    if len(found) != 1 or list(map(type, found[0])) != [int, int, str]:
        raise JournalError(Code.JOURNAL_CORRUPT, f"{path} does not say where it ends; restore it")
    return Head(*found[0])


def require_whole_pages(path: Path) -> None:
    """JOURNAL_CORRUPT for a file that SQLite would take for a new one, though something was in it."""
    if path.exists() and 0 < path.stat().st_size < _SMALLEST_PAGE:
        raise JournalError(Code.JOURNAL_CORRUPT, f"{path} was cut short; restore it")


def require_writable(path: Path) -> None:
    """JOURNAL_UNWRITABLE when it is plain beforehand; for root too, whom permissions do not stop."""
    if not path.parent.is_dir():
        raise JournalError(Code.JOURNAL_UNWRITABLE, f"the folder {path.parent} does not exist; make it first")
    if path.exists() and not path.is_file():
        raise JournalError(Code.JOURNAL_UNWRITABLE, f"{path} is not a file; name another")
    for place in (path, path.parent):
        if place.exists() and (not place.stat().st_mode & 0o222 or not os.access(place, os.W_OK)):
            raise JournalError(Code.JOURNAL_UNWRITABLE, f"{place} is read-only; make it writable (chmod u+w)")


FAULTS = (sqlite3.Error, UnicodeError)
"""What the module sqlite3 raises; the latter where a damaged schema cannot be decoded."""

_CORRUPT = frozenset(
    {
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_ERROR,  # tables are not those of the schema; our statements are fixed
        sqlite3.SQLITE_CONSTRAINT,  # there are rows where there should be none
        sqlite3.SQLITE_MISMATCH,
        sqlite3.SQLITE_FORMAT,
    }
)


def meaning(path: Path, error: Exception, number: int | None = None) -> JournalError:
    """What one of FAULTS means for the journal."""
    code = getattr(error, "sqlite_errorcode", -1) & 0xFF  # the primary code
    if code == sqlite3.SQLITE_NOTADB:
        return JournalError(Code.JOURNAL_SCHEMA, f"{path} is not a lorafsm journal; name another file")
    undecodable = not hasattr(error, "sqlite_errorcode") and not isinstance(error, sqlite3.ProgrammingError)
    if code in _CORRUPT or undecodable:
        return JournalError(Code.JOURNAL_CORRUPT, f"{path}: {error}; see `lorafsm journal verify`", number)
    return JournalError(Code.JOURNAL_UNWRITABLE, f"{path}: {error}; the event was not journaled", number)

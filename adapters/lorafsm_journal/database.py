"""The journal's SQLite file: connecting, the schema and its version, and what SQLite's errors mean."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Literal

from lorafsm.records import Config
from lorafsm_journal.codec import decode_config, encode_config
from lorafsm_journal.errors import JournalCode as Code
from lorafsm_journal.errors import JournalError, Undecodable

SCHEMA_VERSION = 1
_APPLICATION_ID = 0x4C46534D  # "LFSM": tells a journal from any other SQLite file

_SCHEMA = (
    "CREATE TABLE about (epoch TEXT NOT NULL, config TEXT NOT NULL) STRICT",
    "CREATE TABLE entries (number INTEGER PRIMARY KEY, event TEXT NOT NULL, outcome TEXT NOT NULL,"
    " chain TEXT NOT NULL) STRICT",
    f"PRAGMA application_id = {_APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)


def connect(path: Path, mode: Literal["ro", "rwc"]) -> sqlite3.Connection:
    """A connection without implicit transactions; may be handed from thread to thread, but not shared."""
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)


def prepare(db: sqlite3.Connection, path: Path, config: Config, epoch: str) -> None:
    """Make the tables of a new file, all or none; refuse a file that is no journal of this schema."""
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute("BEGIN IMMEDIATE")
    try:
        if db.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (0,):
            for statement in _SCHEMA:
                db.execute(statement)
            db.execute("INSERT INTO about VALUES (?, ?)", (epoch, encode_config(config)))
        require_schema(db, path)
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def require_schema(db: sqlite3.Connection, path: Path) -> None:
    """JOURNAL_SCHEMA unless the file is a journal of this schema version."""
    [application] = db.execute("PRAGMA application_id").fetchone()
    [version] = db.execute("PRAGMA user_version").fetchone()
    if application != _APPLICATION_ID:
        raise JournalError(Code.JOURNAL_SCHEMA, f"{path} is not a lorafsm journal; name another file")
    if version != SCHEMA_VERSION:
        raise JournalError(
            Code.JOURNAL_SCHEMA,
            f"{path} has schema version {version}, this lorafsm reads {SCHEMA_VERSION}; use the one that wrote it",
        )


def about(db: sqlite3.Connection, path: Path) -> tuple[str, Config]:
    """The epoch and the config that the journal was begun with."""
    found = db.execute("SELECT epoch, config FROM about").fetchall()
    if len(found) != 1:
        raise JournalError(Code.JOURNAL_CORRUPT, f"{path} does not say its epoch and config; restore it")
    [(epoch, config)] = found
    try:
        return epoch, decode_config(config)
    except Undecodable as error:
        raise JournalError(Code.JOURNAL_CORRUPT, f"{path}: its config: {error}; restore it") from error


def require_writable(path: Path) -> None:
    """JOURNAL_UNWRITABLE when it is plain beforehand; for root too, whom permissions do not stop."""
    if not path.parent.is_dir():
        raise JournalError(Code.JOURNAL_UNWRITABLE, f"the folder {path.parent} does not exist; make it first")
    if path.exists() and not path.is_file():
        raise JournalError(Code.JOURNAL_UNWRITABLE, f"{path} is not a file; name another")
    for place in (path, path.parent):
        if place.exists() and (not place.stat().st_mode & 0o222 or not os.access(place, os.W_OK)):
            raise JournalError(Code.JOURNAL_UNWRITABLE, f"{place} is read-only; make it writable (chmod u+w)")


def meaning(path: Path, error: sqlite3.Error, number: int | None = None) -> JournalError:
    """What an error of SQLite means for the journal."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the primary code
    if code == sqlite3.SQLITE_NOTADB:
        return JournalError(Code.JOURNAL_SCHEMA, f"{path} is not a lorafsm journal; name another file")
    if code == sqlite3.SQLITE_CORRUPT:
        return JournalError(Code.JOURNAL_CORRUPT, f"{path}: {error}; restore the file", number)
    return JournalError(Code.JOURNAL_UNWRITABLE, f"{path}: {error}; the event was not journaled", number)

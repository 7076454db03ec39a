"""A snapshot: the whole state after one row, as canonical text, with a digest that ties it to that row.

It is a shortcut and no authority: one whose digest is wrong, whose row is not in the journal or whose text is
not canonical is passed over, and `verify` holds every one against the replay.
"""

from __future__ import annotations

import hashlib
import sqlite3
from typing import Any

from attrs import frozen

KEPT = 2  # so that one that was damaged leaves another


@frozen
class Snapshot:
    """The state after row `number`, whose check is `chain`."""

    number: int
    state: str
    chain: str


def digest(number: int, state: str, chain: str) -> str:
    """SHA-256 over the number, the check of the row, and the state."""
    return hashlib.sha256(f"{number} {chain} {state}".encode("utf-8", "surrogatepass")).hexdigest()


def good(row: Any) -> Snapshot | None:
    """The snapshot in a row of the table, or None if it is not what was written."""
    if row is None or list(map(type, row)) != [int, str, str, str] or digest(*row[:3]) != row[3]:
        return None
    return Snapshot(*row[:3])


def insert(db: sqlite3.Connection, number: int, state: str, chain: str, base: int) -> None:
    """Add a snapshot, and drop those beyond the latest few; that at `base` stays, for it stands for rows."""
    db.execute(
        "INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?)", (number, state, chain, digest(number, state, chain))
    )
    db.execute(
        "DELETE FROM snapshots WHERE number != ? AND number NOT IN"
        " (SELECT number FROM snapshots ORDER BY number DESC LIMIT ?)",
        (base, KEPT),
    )

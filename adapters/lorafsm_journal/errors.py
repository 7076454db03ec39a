"""What can go wrong with a journal; every code says whose turn it is."""

from __future__ import annotations

from enum import StrEnum

from lorafsm.errors import InvalidField, LoraFsmError


class JournalCode(StrEnum):
    """Why a journal refuses."""

    JOURNAL_LOCKED = "JOURNAL_LOCKED"  # another process writes it
    JOURNAL_UNWRITABLE = "JOURNAL_UNWRITABLE"  # permissions, a full disk, a missing folder
    JOURNAL_UNCERTAIN = "JOURNAL_UNCERTAIN"  # a commit failed: only recovery knows whether the row is in
    JOURNAL_CLOSED = "JOURNAL_CLOSED"
    JOURNAL_SCHEMA = "JOURNAL_SCHEMA"  # not a journal, or one of another schema version
    JOURNAL_MISMATCH = "JOURNAL_MISMATCH"  # the journal of another epoch or config
    JOURNAL_CORRUPT = "JOURNAL_CORRUPT"  # a row is not what was written
    JOURNAL_DIVERGED = "JOURNAL_DIVERGED"  # replay answers otherwise than the row says


class JournalError(LoraFsmError):
    """The journal cannot do what was asked; `row` is the sequence number of the row it is about, or None."""

    def __init__(self, code: str, message: str, row: int | None = None) -> None:
        super().__init__(code, message, None if row is None else f"row {row}")
        self.row = row

    def __reduce__(self) -> tuple[type[JournalError], tuple[str, str, int | None]]:
        return type(self), (self.code, self.message, self.row)


class Undecodable(InvalidField):
    """Text or a value that the codec does not take; `field` is its path, such as `Reserve.key.epoch`."""

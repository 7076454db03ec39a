"""What can go wrong with a journal; every code says whose turn it is."""

from __future__ import annotations

from enum import StrEnum

from lorafsm.errors import InvalidField, LoraFsmError


class JournalCode(StrEnum):
    """Why a journal refuses."""

    JOURNAL_LOCKED = "JOURNAL_LOCKED"  # another process writes it
    JOURNAL_FENCED = "JOURNAL_FENCED"  # a later writer has it, or the file is another: this writer is done
    JOURNAL_UNWRITABLE = "JOURNAL_UNWRITABLE"  # permissions, a full disk, a missing folder
    JOURNAL_UNCERTAIN = "JOURNAL_UNCERTAIN"  # a commit failed: only recovery knows whether its rows are in
    JOURNAL_CLOSED = "JOURNAL_CLOSED"
    JOURNAL_SCHEMA = "JOURNAL_SCHEMA"  # not a journal, or one of another schema version
    JOURNAL_MISMATCH = "JOURNAL_MISMATCH"  # the journal of another epoch or config
    JOURNAL_EPOCH_USED = "JOURNAL_EPOCH_USED"  # another journal had this epoch: its keys would be used again
    JOURNAL_EPOCH_OLD = "JOURNAL_EPOCH_OLD"  # a later epoch has begun here
    JOURNAL_BACKWARDS = "JOURNAL_BACKWARDS"  # an older copy of the journal: what was acknowledged since is not in it
    JOURNAL_CORRUPT = "JOURNAL_CORRUPT"  # a row is not what was written
    JOURNAL_DIVERGED = "JOURNAL_DIVERGED"  # replay answers otherwise than the row says
    JOURNAL_UNCUT = "JOURNAL_UNCUT"  # a cut would lose more than it was told to, or nothing is to be cut


class JournalError(LoraFsmError):
    """The journal cannot do what was asked; `row` is the sequence number of the row it is about, or None."""

    def __init__(self, code: str, message: str, row: int | None = None) -> None:
        super().__init__(code, message, None if row is None else f"row {row}")
        self.row = row

    def __reduce__(self) -> tuple[type[JournalError], tuple[str, str, int | None]]:
        return type(self), (self.code, self.message, self.row)


class Undecodable(InvalidField):
    """Text or a value that the codec does not take; `field` is its path, such as `Reserve.key.epoch`."""

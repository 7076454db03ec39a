"""Which deployment epochs were ever begun at a place: no key is used by two deployments (RFC 3.1).

A small JSON file beside the journal, `<journal>.epochs` unless another is named; it stays when a journal is moved
away or removed, and journals that name one file share its epochs.  Each epoch belongs to one journal, by the
random id that was made with it, and the last one begun is the only one that may be written.  What was seen of
the journal (its writer's number and last row, at each opening and closing) tells an older copy of it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from attrs import asdict, frozen

from lorafsm_journal.errors import JournalCode as Code
from lorafsm_journal.errors import JournalError
from lorafsm_journal.lock import exclusively


@frozen
class Begun:
    """One epoch: the id of its journal, and how far that was seen to go."""

    epoch: str
    journal: str
    writer: int
    rows: int


class Epochs:
    """The file at `path`; to be used within `held`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nobody else looks or writes meanwhile; waits for those who do."""
        try:
            with exclusively(self.path.with_name(self.path.name + ".lock")):
                yield
        except OSError as error:
            raise JournalError(Code.JOURNAL_UNWRITABLE, f"{self.path}: {error.strerror or error}") from error

    def require_unused(self, epoch: str) -> None:
        """JOURNAL_EPOCH_USED if a journal, wherever it is now, was begun with this epoch."""
        if any(begun.epoch == epoch for begun in self._read()):
            raise JournalError(
                Code.JOURNAL_EPOCH_USED,
                f"epoch {epoch} was used by a journal that is not there any more, and engines may hold its adapters; "
                f"begin a deployment with a new epoch ({self.path} lists those used)",
            )

    def require_current(self, seen: Begun) -> None:
        """Refuse another journal of a used epoch, an epoch that is not the last one begun, and an older copy."""
        begun = self._read()
        known = next((entry for entry in begun if entry.epoch == seen.epoch), None)
        if known is None:
            return
        if known.journal != seen.journal:
            raise JournalError(
                Code.JOURNAL_EPOCH_USED, f"epoch {seen.epoch} belongs to another journal; take a new epoch"
            )
        if begun[-1] != known:
            raise JournalError(
                Code.JOURNAL_EPOCH_OLD,
                f"epoch {begun[-1].epoch} was begun after {seen.epoch}; go on with that one, or begin a new one",
            )
        if (seen.writer, seen.rows) < (known.writer, known.rows):
            raise JournalError(
                Code.JOURNAL_BACKWARDS,
                f"the journal of {seen.epoch} ends with row {seen.rows} (writer {seen.writer}) and was seen to go to "
                f"{known.rows} (writer {known.writer}): it is an older copy; find the latest, or begin a new epoch",
            )

    def record(self, seen: Begun) -> None:
        """Note how far a journal goes; a new epoch becomes the last.  Durable when it returns.  What an earlier writer
        saw takes nothing back."""
        begun = self._read()
        known = next((entry for entry in begun if entry.epoch == seen.epoch), None)
        if known is None:
            self._write([*begun, seen])
        elif (seen.writer, seen.rows) > (known.writer, known.rows):
            self._write([seen if entry is known else entry for entry in begun])

    def _read(self) -> list[Begun]:
        try:
            data = json.loads(self.path.read_bytes())
        except FileNotFoundError:
            return []
        except ValueError as error:
            raise self._broken() from error
        try:
            begun = [Begun(**entry) for entry in data["epochs"]]
        except (TypeError, KeyError) as error:
            raise self._broken() from error
        if any(list(map(type, asdict(entry).values())) != [str, str, int, int] for entry in begun):
            raise self._broken()
        return begun

    def _broken(self) -> JournalError:
        return JournalError(
            Code.JOURNAL_CORRUPT, f"{self.path} does not list epochs; restore it, or begin a new epoch elsewhere"
        )

    def _write(self, begun: list[Begun]) -> None:
        new = self.path.with_name(f"{self.path.name}.{os.getpid()}.new")
        try:
            with new.open("w") as file:
                file.write(json.dumps({"epochs": [asdict(entry) for entry in begun]}, indent=1) + "\n")
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.path)
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError:
            with suppress(OSError):
                new.unlink()
            raise

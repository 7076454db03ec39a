"""One writer per journal: an exclusive lock on `<path>.lock` that dies with its process."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lorafsm_journal.errors import JournalCode, JournalError


class WriterLock:
    """Taken when made (JOURNAL_LOCKED if another holder lives), given back by `release` or the process's end.

    The file stays: removing it would let two writers lock two files of one name.  Should that happen all the
    same, the writer's number in the journal fences the earlier of the two.
    """

    def __init__(self, journal: Path) -> None:
        path = journal.with_name(journal.name + ".lock")
        self._file: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._file, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._file)
            raise JournalError(
                JournalCode.JOURNAL_LOCKED,
                f"{journal} has a writer already (pid {holder}); stop it first, or use Journal.read to look",
            ) from error
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Give the lock back; may be called again."""
        if self._file is not None:
            with suppress(OSError):
                os.ftruncate(self._file, 0)
            os.close(self._file)
            self._file = None


@contextmanager
def exclusively(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on the file at `path`, which is made if it is not there; waits for other holders."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)

"""The source's end of the transfer: one process group per attempt, each bucket broadcast once (RFC 3.2, rule 6)."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from lorafsm_torch.announcement import Announcement, Meeting
from lorafsm_torch.deadlines import Deadlines
from lorafsm_torch.freeze import Snapshot


class Lobby:
    """The source's TCPStore, in which the members of each attempt find each other; lives as long as the source."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        raise NotImplementedError

    def meeting(self, epoch: str, number: int, backend: str = "gloo") -> Meeting:
        """A meeting under a name that no other attempt has or will have."""
        raise NotImplementedError


class Sender:
    """Rank 0 of one attempt; every call but `abort` comes from one thread at a time."""

    def __init__(
        self,
        snapshot: Snapshot,
        announcement: Announcement,
        lobby: Lobby,
        *,
        deadlines: Deadlines = Deadlines(),  # noqa: B008 - frozen
        check_while_sending: bool = True,
    ) -> None:
        raise NotImplementedError

    def join(self) -> None:
        """Wait until all members are one group; no collective yet."""
        raise NotImplementedError

    def broadcast(self, bucket: int) -> float:
        """Send the next bucket, once; seconds until it was complete at the source."""
        raise NotImplementedError

    def abort(self, reason: str = "aborted") -> None:
        """Destroy the group, from any thread: what waits raises within a second."""
        raise NotImplementedError

    def close(self) -> None:
        """Leave the group."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

"""Which sessions the cache knows: unseen, live, closed for ever (RFC 4.1, protocol rules 7-9).

A session is the registry's: (epoch, owner, sequence). Its sequence is its generation: a label that is opened again
is a new sequence, so a late request of the old one can never touch the new one. What was closed stays closed, across
flushes too; it costs nothing where it is next to another closed sequence.
"""

from __future__ import annotations

from typing import Any

from lorafsm.identity import SessionKey, VersionKey, fault_in_count, fault_in_session_key, fault_in_version_key
from lorafsm.kv.node import Node
from lorafsm.kv.ranges import Ranges
from lorafsm.kv.wheel import Wheel
from lorafsm.outcomes import Code, Refusal


class Live:
    """A session that is not closed, and the nodes that its refs hang from."""

    __slots__ = ("closed", "deadline", "expired", "frontiers", "key", "slot", "version")

    def __init__(self, key: SessionKey, version: VersionKey | None, parts: int, closed: Ranges) -> None:
        self.key = key
        self.closed = closed  # the closed sequences of its owner
        self.version = version
        # Of each component, oldest first; True: not where a request ended, but where the ref fell back to.
        self.frontiers: list[dict[Node, bool]] = [{} for _ in range(parts)]
        self.deadline: int | None = None  # ms; None: no TTL
        self.slot: dict[Any, None] | None = None  # of the timing wheel
        self.expired = False

    def leave_wheel(self) -> None:
        """Its deadline does not matter any more."""
        if self.slot is not None:
            del self.slot[self]
            self.slot = None

    @property
    def holds_refs(self) -> bool:
        """Whether any node is covered by it."""
        return any(self.frontiers)


class Sessions:
    """Live sessions, closed sequences, ended owners, and the TTL."""

    def __init__(self, parts: int, ttl: int) -> None:
        self._parts = parts
        self._ttl = ttl  # ms; 0: never
        self.live: dict[SessionKey, Live] = {}
        self._closed: dict[tuple[str, str], Ranges] = {}
        self._ended: set[tuple[str, str]] = set()
        width = max(1, ttl // 64)
        self._wheel: Wheel[Live] = Wheel(width, ttl // width + 2)

    def is_closed(self, key: SessionKey) -> bool:
        """Whether this lifecycle is over, for ever."""
        owner = (key.epoch, key.owner)
        return owner in self._ended or (owner in self._closed and key.sequence in self._closed[owner])

    def open(self, key: SessionKey, version: VersionKey | None, now: int) -> Live | Refusal:
        """The live session; opened if it was unseen.  Its version is fixed at its first request (RFC 4.1)."""
        live = self.live.get(key)
        if live is None:
            if refusal := self._late_or_bad(key, version, now):
                return refusal
            closed = self._closed.setdefault((key.epoch, key.owner), Ranges())
            live = self.live[key] = Live(key, version, self._parts, closed)
        elif live.version != version:
            return Refusal(
                Code.OPERATION_CONFLICT,
                f"session {key} is bound to {live.version or 'the base model'}; open another session",
                field="version",
            )
        self.renew(live, now)
        return live

    def _late_or_bad(self, key: SessionKey, version: VersionKey | None, now: int) -> Refusal | None:
        for name, fault in (
            ("session", fault_in_session_key(key)),
            ("version", None if version is None else fault_in_version_key(version)),
            ("now", fault_in_count(now)),
        ):
            if fault:
                return Refusal(Code.BAD_INPUT, f"{name} {fault}", field=name)
        if (key.epoch, key.owner) in self._ended:
            return Refusal(Code.SESSION_EXPIRED, f"owner {key.owner} has ended; its sessions are not revived")
        if self.is_closed(key):
            return Refusal(Code.SESSION_CLOSED, f"session {key} is CLOSED; a reopened label takes a new sequence")
        return None

    def renew(self, live: Live, now: int) -> None:
        """The session was used: its TTL starts anew."""
        if self._ttl:
            until = now + self._ttl
            if live.deadline is None or live.slot is None:
                self._wheel.put(live, until)
            elif until > live.deadline:
                live.deadline = until  # the wheel finds it when the old deadline comes up

    def due(self, now: int) -> list[Live]:
        """Sessions whose TTL ran out since the last call."""
        return self._wheel.due(now)

    def close(self, key: SessionKey) -> Live | bool:
        """Close it for ever.  The live session, if it was one; else whether it was closed already."""
        live = self.live.pop(key, None)
        if live is not None:
            if live.slot is not None:  # `leave_wheel`, without a call: the hot path
                del live.slot[live]
                live.slot = None
            live.closed.add(key.sequence)
            return live
        owner = (key.epoch, key.owner)
        return owner in self._ended or not self._closed.setdefault(owner, Ranges()).add(key.sequence)

    def end_owner(self, epoch: str, owner: str) -> list[Live]:
        """The owner's process is gone: none of its sessions comes back (rule 9).  Those that were live."""
        self._ended.add((epoch, owner))
        self._closed.pop((epoch, owner), None)
        ended = [live for key, live in self.live.items() if (key.epoch, key.owner) == (epoch, owner)]
        for live in ended:
            del self.live[live.key]
            live.leave_wheel()
        return ended

    def forget(self, live: Live) -> None:
        """An expired session without refs is unseen again: it costs nothing, and may come back."""
        del self.live[live.key]
        live.leave_wheel()

    @property
    def size(self) -> int:
        """Records kept: live sessions, ranges of closed sequences, ended owners."""
        return len(self.live) + sum(map(len, self._closed.values())) + len(self._ended)

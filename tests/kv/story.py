"""A small vocabulary for stories about the cache: requests as words, nodes named by the words that end there."""

from __future__ import annotations

from typing import Any

from lorafsm.identity import SessionKey, VersionKey
from lorafsm.kv import CacheConfig, Inserted, Lock, Node, SessionCache
from lorafsm.kv.invariants import check
from lorafsm.kv.node import FULL, subtree
from lorafsm.outcomes import Code


def key(name: str, owner: str = "o1") -> SessionKey:
    """Session s1 has the sequence 1."""
    return SessionKey("e1", owner, int(name[1:]))


def version(name: str) -> VersionKey:
    return VersionKey("e1", ord(name) - ord("A") + 1)


class Story:
    """A cache whose tokens are letters.  Every verb asserts all invariants."""

    def __init__(self, **config: Any) -> None:
        self.cache = SessionCache(CacheConfig(**config))
        self.now = 0

    def run(self, session: str | None, text: str, v: str = "", **how: Any) -> Code:
        """A request that finished: match, insert, register.  Answers the code of the register."""
        at = version(v) if v else None
        mine = {name: how.pop(name) for name in ("window_from", "state", "priority") if name in how}
        if session is not None and not (opened := self.cache.open(key(session), at, self.now)).ok:
            return opened.code
        self.cache.match(tokens(text), at)
        stored = self.cache.insert(tokens(text), at, **mine)
        assert isinstance(stored, Inserted), stored
        code = Code.OK
        if session is not None:
            code = self.cache.register(key(session), stored.node, self.now, **how).code
        self.check()
        return code

    def hit(self, text: str, v: str = "") -> int:
        found = self.cache.match(tokens(text), version(v) if v else None).length
        self.check()
        return found

    def lock(self, text: str) -> Lock:
        match = self.cache.match(tokens(text))
        assert match.length == len(text)
        lock = self.cache.lock(match.node)
        self.check()
        return lock

    def unlock(self, lock: Lock) -> None:
        self.cache.unlock(lock)
        self.check()

    def close(self, session: str) -> Code:
        code = self.cache.close(key(session)).code
        self.check()
        return code

    def wait(self, ms: int) -> list[int]:
        self.now += ms
        ended = self.cache.tick(self.now)
        self.check()
        return [session.sequence for session in ended]

    def evict(self, slots: int = 1, component: int = FULL, host: bool = False) -> list[str]:
        """The victims, by their whole text and, where two tiers or versions matter, in order."""
        names = {(n.space.version, n.start, n.end, n.key[-1]): self.text(n) for n in self.nodes()}
        done = (self.cache.evict_host if host else self.cache.evict)(slots, component)
        self.check()
        return [names[v.version, v.start, v.end, v.last] for v in done.victims]

    def refs(self, text: str, component: int = FULL, v: str = "") -> tuple[int, int]:
        """(active, expired) of the node that ends at this text."""
        part = self.node(text, v).parts[component]
        return part.active, part.expired

    def node(self, text: str, v: str = "") -> Node:
        at = version(v) if v else None
        [found] = [n for n in self.nodes() if self.text(n) == text and n.space.version == at]
        return found

    def nodes(self) -> list[Node]:
        return [n for space in self.cache.spaces.values() for n in subtree(space.root)[1:]]

    def texts(self) -> set[str]:
        return {self.text(n) for n in self.nodes()}

    @staticmethod
    def text(node: Node) -> str:
        parts: list[str] = []
        here: Node | None = node
        while here is not None:
            parts.append("".join(map(chr, here.key)))
            here = here.parent
        return "".join(reversed(parts))

    def check(self) -> None:
        assert check(self.cache) == []


def tokens(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))

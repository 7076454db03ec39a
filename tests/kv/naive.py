"""A cache policy that remembers only facts and works everything else out anew, by scanning.  Full KV, one tier.

A node is (version, path, start): the tokens from the root to its end, and where its own begin. Nothing is indexed,
counted or ranked ahead of time. It shares no code with `lorafsm.kv`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False)
class Run:
    version: Any
    path: tuple[int, ...]
    start: int
    stamp: int
    created: int
    hits: int = 1
    priority: int = 0


@dataclass
class Talk:
    version: Any
    deadline: int | None = None
    expired: bool = False
    ends: list[list[Any]] = field(default_factory=list)  # [path, fell], oldest first


class Naive:
    def __init__(self, *, page=1, policy="lru", ttl=0, branches=8, sessions=True, split_touches_suffix=False):
        self.page, self.policy, self.ttl, self.branches = page, policy, ttl, branches
        self.sessions, self.touches = sessions, split_touches_suffix
        self.runs: list[Run] = []
        self.talks: dict[Any, Talk] = {}
        self.closed: set[Any] = set()
        self.locks: list[tuple[Any, tuple[int, ...]]] = []
        self.dead: set[Any] = set()
        self.idle: set[Any] = set()
        self.clock = 0

    def tick_clock(self) -> int:
        self.clock += 1
        return self.clock

    # What can be seen

    def refs(self, run: Run) -> tuple[int, int]:
        covering = [t for t in self.talks.values() if any(self.covers(t.version, end, run) for end, _ in t.ends)]
        return sum(not t.expired for t in covering), sum(t.expired for t in covering)

    @staticmethod
    def covers(version, end, run: Run) -> bool:
        return version == run.version and end[: len(run.path)] == run.path

    def is_locked(self, run: Run) -> bool:
        return any(self.covers(version, path, run) for version, path in self.locks)

    def children(self, version, path) -> list[Run]:
        return [r for r in self.runs if r.version == version and r.start == len(path) and r.path[: len(path)] == path]

    def parent(self, run: Run) -> Run | None:
        path = run.path[: run.start]
        return next((r for r in self.runs if r.version == run.version and r.path == path), None)

    def key(self, run: Run):
        base = {
            "lru": (run.stamp,),
            "lfu": (run.hits, run.stamp),
            "fifo": (run.created, -len(run.path)),
            "mru": (-run.stamp,),
            "priority": (run.priority, run.stamp),
        }[self.policy]
        active, expired = self.refs(run)
        if run.version in self.dead:
            worth = 0
        elif run.version in self.idle:
            worth = 1
        else:
            worth = 4 if active else 3 if expired else 2
        return (worth, active or expired, *base)

    def evictable(self) -> list[Run]:
        return [r for r in self.runs if not self.children(r.version, r.path) and not self.is_locked(r)]

    # Requests

    def _descend(self, version, tokens):
        """The runs along these tokens; the last may have to be cut, at the length that is given with it."""
        at, found = 0, []
        while at < len(tokens):
            best = None
            for run in self.children(version, tokens[:at]):
                own = run.path[at:]
                shared = 0
                while shared < min(len(own), len(tokens) - at) and own[shared] == tokens[at + shared]:
                    shared += 1
                shared -= shared % self.page
                if shared:
                    best = (run, shared)
            if best is None:
                break
            found.append(best)
            at += best[1]
            if best[1] < len(best[0].path) - best[0].start:
                break
        return found

    def _cut(self, run: Run, length: int, *, touch: bool) -> Run:
        upper = Run(
            run.version, run.path[: run.start + length], run.start, run.stamp, run.created, run.hits, run.priority
        )
        run.start += length
        self.runs.append(upper)
        if touch and self.touches:
            run.stamp = self.tick_clock()
        return upper

    def match(self, version, tokens) -> int:
        tokens = tokens[: len(tokens) // self.page * self.page]
        if version in self.dead:
            return 0
        path = []
        for run, length in self._descend(version, tokens):
            path.append(self._cut(run, length, touch=True) if length < len(run.path) - run.start else run)
        for run in path:  # the deepest is the most recent
            run.stamp = self.tick_clock()
        return len(path[-1].path) if path else 0

    def insert(self, version, tokens, priority=0):
        tokens = tokens[: len(tokens) // self.page * self.page]
        if version in self.dead:
            return None
        at = 0
        for run, length in self._descend(version, tokens):
            if length < len(run.path) - run.start:
                run = self._cut(run, length, touch=self.touches)
            run.stamp = self.tick_clock()
            run.hits += 1
            run.priority = max(run.priority, priority)
            at += length
        if at < len(tokens):
            created = self.tick_clock()
            self.runs.append(Run(version, tokens, at, self.tick_clock(), created, 1, priority))
        return tokens

    # Sessions

    def open(self, key, version, now) -> bool:
        if version in self.dead or key in self.closed:
            return False
        talk = self.talks.get(key)
        if talk is None:
            talk = self.talks[key] = Talk(version)
        elif talk.version != version:
            return False
        self._renew(talk, now)
        return True

    def _renew(self, talk: Talk, now: int) -> None:
        if self.ttl:
            talk.deadline = max(talk.deadline or 0, now + self.ttl)
        talk.expired = False

    def register(self, key, version, path, now) -> bool:
        talk = self.talks.get(key)
        present = any(r.version == version and r.path == path for r in self.runs)
        if talk is None or not present or talk.version != version:
            return False
        self._renew(talk, now)
        if not self.sessions:
            return True
        old = [end for end in talk.ends if path[: len(end[0])] == end[0]]
        old.sort(key=lambda end: len(end[0]))
        if old:
            talk.ends.remove(old[-1])
        talk.ends.append([path, False])
        while len(talk.ends) > self.branches:
            del talk.ends[0]
        return True

    def close(self, key) -> None:
        self.talks.pop(key, None)
        self.closed.add(key)

    def tick(self, now) -> None:
        for key, talk in list(self.talks.items()):
            if talk.deadline is not None and talk.deadline <= now and not talk.expired:
                talk.expired = True
                talk.ends = [end for end in talk.ends if not end[1]]
                if not talk.ends:
                    del self.talks[key]

    # Memory

    def evict(self, slots: int):
        victims, freed = [], 0
        while freed < slots:
            candidates = self.evictable()
            if not candidates:
                break
            victim = min(candidates, key=self.key)
            victims.append((victim.version, victim.start, len(victim.path)))
            freed += len(victim.path) - victim.start
            self._delete(victim)
        return victims

    def _delete(self, run: Run) -> None:
        above = self.parent(run)
        self.runs.remove(run)
        for key, talk in list(self.talks.items()):
            for end in list(talk.ends):
                if talk.version == run.version and end[0] == run.path:
                    talk.ends.remove(end)
                    if above is not None and not talk.expired and all(e[0] != above.path for e in talk.ends):
                        talk.ends.append([above.path, True])
            if talk.expired and not talk.ends:
                del self.talks[key]

    def drop(self, version) -> None:
        for talk_key, talk in list(self.talks.items()):
            if talk.version == version:
                talk.ends = []
                if talk.expired:
                    del self.talks[talk_key]
        self._drop_unlocked(version)

    def _drop_unlocked(self, version) -> None:
        self.runs = [r for r in self.runs if r.version != version or self.is_locked(r)]

    def unlock(self, lock) -> None:
        self.locks.remove(lock)
        if lock[0] in self.dead:
            self._drop_unlocked(lock[0])

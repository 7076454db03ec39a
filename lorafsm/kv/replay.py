"""The trace driver: one trace of requests through one cache, on a virtual clock, and what came of it.

A trace is cached block by block: the ids in it stand for blocks of `block` tokens, and equal ids mean equal
prefixes. Requests are served one at a time, in the order of the trace: match, make room, insert, register.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Protocol, TypeAlias

from attrs import frozen

from lorafsm.errors import InvalidField
from lorafsm.identity import SessionKey, VersionKey
from lorafsm.kv.cache import SessionCache
from lorafsm.kv.node import FULL, Tokens
from lorafsm.kv.order import Class
from lorafsm.kv.ranking import Entry, Ranking
from lorafsm.outcomes import Refusal


@frozen
class Request:
    """One request: its prompt and what it generated, as ids of blocks.  `session` None: a one-shot request."""

    at: int  # ms
    session: SessionKey | None
    prompt: Tokens
    output: Tokens
    version: VersionKey | None = None


@frozen
class Close:
    """The session was closed at `at` (ms).  A session that nobody closes has no such event."""

    at: int
    session: SessionKey


Event: TypeAlias = Request | Close


@frozen
class Trace:
    """Events in order of time."""

    block: int  # tokens in a block
    events: tuple[Event, ...]

    @property
    def requests(self) -> tuple[Request, ...]:
        """The requests alone."""
        return tuple(event for event in self.events if isinstance(event, Request))

    @cached_property
    def last_uses(self) -> Mapping[int, int]:
        """The number of the last event in which a session asks for each block."""
        return {
            block: number
            for number, event in enumerate(self.events)
            if isinstance(event, Request) and event.session is not None
            for block in event.prompt
        }


@frozen
class Served:
    """What became of one request: blocks found in the cache (None: it did not fit), blocks of KV that had to go."""

    hit: int | None
    victims: tuple[int, ...]  # the last block of each victim
    active: int = 0  # victims that a live session referred to


class PrefixCache(Protocol):
    """What a cache must do to be driven by a trace."""

    def tick(self, now: int) -> object:
        """The clock stands at `now` (ms)."""

    def serve(self, request: Request) -> Served:
        """Match, make room, insert, register."""

    def close(self, session: SessionKey) -> object:
        """The session is over."""


class Pool:
    """Our cache with a pool of `blocks` blocks."""

    def __init__(self, cache: SessionCache, blocks: int) -> None:
        if type(blocks) is not int or blocks < 1:
            raise InvalidField("pool", "must be a number of blocks, at least 1")
        self.cache = cache
        self.blocks = blocks

    def tick(self, now: int) -> object:
        """The clock stands at `now` (ms)."""
        return self.cache.tick(now)

    def close(self, session: SessionKey) -> object:
        """The session is over."""
        return self.cache.close(session)

    def serve(self, request: Request) -> Served:
        """Match, make room, insert, register."""
        cache, session = self.cache, request.session
        if session is not None:
            cache.open(session, request.version, request.at)
        tokens = request.prompt + request.output
        match = cache.match(request.prompt, request.version)
        lock = cache.lock(match.node)
        lacking = len(tokens) - match.length - (self.blocks - cache.tree.used[FULL])
        victims = cache.evict(lacking).victims if lacking > 0 else ()
        served = Served(match.length, tuple(v.last for v in victims), sum(v.rank is Class.ACTIVE for v in victims))
        if len(tokens) - match.length > self.blocks - cache.tree.used[FULL]:
            cache.unlock(lock)
            return Served(None, served.victims, served.active)
        inserted = cache.insert(tokens, request.version)
        cache.unlock(lock)
        if session is not None and not isinstance(inserted, Refusal):
            cache.register(session, inserted.node, request.at)
        return served


@frozen(kw_only=True)
class Share:
    """Prompt tokens of one kind of request, and how many of them were in the cache."""

    prompt_tokens: int = 0
    hit_tokens: int = 0

    @property
    def hit_rate(self) -> float:
        """Tokens that did not have to be computed; 0 where there were none."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


@frozen(kw_only=True)
class Report:
    """What a replay says.  Rates are of prompt tokens."""

    requests: int
    sessions: Share
    one_shot: Share
    recomputed_tokens: int  # prompt tokens that were not in the cache
    victims: int  # nodes that were evicted
    live_victims: int  # of them, how many a later request of a session asked for again
    referenced_victims: int  # of them, how many a live session referred to
    not_stored: int  # requests that did not fit the pool
    hit_rates: tuple[float, ...]  # of the session requests, in ten equal parts of the trace


def replay(trace: Trace, cache: PrefixCache) -> Report:
    """Drive the cache through the trace."""
    last_uses = trace.last_uses
    kinds = {True: [0, 0], False: [0, 0]}
    tenths = [[0, 0] for _ in range(10)]
    victims = live = referenced = not_stored = 0
    for number, event in enumerate(trace.events):
        cache.tick(event.at)
        if isinstance(event, Close):
            cache.close(event.session)
            continue
        served = cache.serve(event)
        not_stored += served.hit is None
        victims += len(served.victims)
        referenced += served.active
        live += sum(last_uses.get(block, -1) > number for block in served.victims)
        counts = [kinds[event.session is not None]]
        if event.session is not None:
            counts.append(tenths[number * 10 // len(trace.events)])
        for count in counts:
            count[0] += len(event.prompt)
            count[1] += min(served.hit or 0, len(event.prompt))
    session, one_shot = (
        Share(prompt_tokens=kinds[kind][0] * trace.block, hit_tokens=kinds[kind][1] * trace.block)
        for kind in (True, False)
    )
    return Report(
        requests=len(trace.requests),
        sessions=session,
        one_shot=one_shot,
        recomputed_tokens=session.prompt_tokens - session.hit_tokens + one_shot.prompt_tokens - one_shot.hit_tokens,
        victims=victims,
        live_victims=live,
        referenced_victims=referenced,
        not_stored=not_stored,
        hit_rates=tuple(hit / asked if asked else 0.0 for asked, hit in tenths),
    )


class Infinite:
    """A pool without end: what is left to compute is what nobody computed before."""

    def __init__(self) -> None:
        self._seen: set[tuple[VersionKey | None, int]] = set()

    def tick(self, now: int) -> None:
        """Nothing expires."""

    def close(self, session: SessionKey) -> None:
        """Nothing is let go."""

    def serve(self, request: Request) -> Served:
        """Every block stays."""
        version = request.version
        hit = _leading(request.prompt, lambda block: (version, block) in self._seen)
        self._seen.update((version, block) for block in request.prompt + request.output)
        return Served(hit, ())


class Belady:
    """The offline optimum, block by block: what is needed again latest goes first, what never is at once.

    A block's parent is needed no later than the block, so what stays is closed under prefixes by itself.
    """

    def __init__(self, trace: Trace, blocks: int) -> None:
        self._blocks = blocks
        self._uses = _next_uses(trace.requests)
        self._ranking: Ranking[tuple[VersionKey | None, int]] = Ranking()
        self._held: dict[tuple[VersionKey | None, int], Entry[tuple[VersionKey | None, int]]] = {}

    def tick(self, now: int) -> None:
        """Time does not matter."""

    def close(self, session: SessionKey) -> None:
        """It knows that already."""

    def serve(self, request: Request) -> Served:
        """Keep what is needed soonest."""
        version, held = request.version, self._held
        hit = _leading(request.prompt, lambda block: (version, block) in held)
        for depth, (block, use) in enumerate(zip(request.prompt + request.output, next(self._uses), strict=True)):
            name = (version, block)
            entry = held.get(name)
            if use is None:
                if entry is not None:
                    self._ranking.remove(entry)
                    del held[name]
            elif entry is not None:
                self._ranking.move(entry, (-use, -depth, block))
            else:
                held[name] = self._ranking.add((-use, -depth, block), name)
        while len(held) > self._blocks:
            farthest = self._ranking.first()
            assert farthest is not None
            self._ranking.remove(held.pop(farthest))
        return Served(hit, ())


def _next_uses(requests: Sequence[Request]) -> Iterator[list[int | None]]:
    """For each request in turn, when each of its blocks is asked for next; None: never."""
    coming: dict[tuple[VersionKey | None, int], int] = {}
    uses: list[list[int | None]] = []
    for number in range(len(requests) - 1, -1, -1):
        request = requests[number]
        uses.append([coming.get((request.version, block)) for block in request.prompt + request.output])
        for block in request.prompt:
            coming[request.version, block] = number
    return reversed(uses)


def _leading(prompt: Tokens, present: Callable[[int], bool]) -> int:
    for number, block in enumerate(prompt):
        if not present(block):
            return number
    return len(prompt)

"""A seeded agentic trace: sessions that grow turn by turn, one-shot requests between them, sessions nobody closes."""

from __future__ import annotations

from itertools import count
from random import Random

from attrs import frozen

from lorafsm.identity import SessionKey
from lorafsm.kv.replay import Close, Event, Request, Trace


@frozen(kw_only=True)
class Agentic:
    """What the generated trace is like.  Lengths in blocks of `block` tokens, times in ms."""

    seed: int = 0
    sessions: int = 150
    live: int = 24  # at a time: when one ends, the next begins
    block: int = 64
    shared: int = 512  # the system prompt and tools that every session begins with: 32 k tokens
    task: int = 250  # what a task adds to it (a repository, a long problem), on average
    group: int = 6  # sessions on one task, one after another: the rollouts of one group
    turns: int = 13  # on average
    added: int = 84  # a turn's tool result, on average
    output: int = 8  # what a turn generates, on average
    think: int = 10_000  # median time from a turn to the next; log-normal
    spread: float = 0.7  # of the think time's logarithm
    noise: float = 0.8  # one-shot requests for each session request
    noise_length: int = 160  # their prompts, on average; nothing is shared
    fork: float = 0.3  # chance that a turn first tries something that is given up: one more branch
    leak: float = 0.0  # share of sessions that nobody closes


def agentic(shape: Agentic) -> Trace:
    """The trace; the same for the same shape on every machine."""
    random = Random(shape.seed)  # noqa: S311
    fresh = count()
    shared = tuple(next(fresh) for _ in range(shape.shared))

    def blocks(mean: float) -> tuple[int, ...]:
        length = max(1, round(random.gammavariate(2.0, mean / 2.0)))
        return tuple(next(fresh) for _ in range(length))

    def pause() -> int:
        return max(1, round(shape.think * random.lognormvariate(0.0, shape.spread)))

    events: list[Event] = []
    # Each place holds one session after another.
    free = [random.randrange(shape.think * 4) for _ in range(shape.live)]
    task: tuple[int, ...] = ()
    for number in range(shape.sessions):
        if number % shape.group == 0:
            task = blocks(shape.task)
        place = min(range(shape.live), key=lambda at: free[at])
        now, context = free[place], shared + task + blocks(shape.added)
        session = SessionKey("e1", "agents", number)
        for _ in range(max(2, round(random.gammavariate(6.0, shape.turns / 6.0)))):
            output = blocks(shape.output)
            events.append(Request(now, session, context, output))
            if random.random() < shape.fork:
                tried = context + output + blocks(shape.added)
                events.append(Request(now + pause() // 4, session, tried, blocks(shape.output)))
            if random.random() < shape.noise:
                events.append(Request(now + pause() // 2, None, blocks(shape.noise_length), blocks(shape.output)))
            context = context + output + blocks(shape.added)
            now += pause()
        if random.random() >= shape.leak:
            events.append(Close(now, session))
        free[place] = now + pause()
    return Trace(shape.block, tuple(sorted(events, key=lambda event: event.at)))

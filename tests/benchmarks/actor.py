"""What a registry in a Ray actor costs beside an actor of the same kind that does nothing, and what a burst gains."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, TypeAlias

import psutil
import ray
from attrs import define, field

from lorafsm import events as ev
from lorafsm.identity import VersionKey
from lorafsm.lifecycle import SessionState
from lorafsm.outcomes import Binding, Closed
from lorafsm.records import Config
from lorafsm_asyncio.questions import SessionStateOf
from lorafsm_journal import encode_outcome
from lorafsm_ray import AsyncClient, Patience, connect, start_registry, stop_registry
from lorafsm_ray.calls import NAMESPACE, RayCalls
from tests.benchmarks.figures import Figure, Goal
from tests.benchmarks.fleet import EPOCH, OWNERS, session_key, story_to_published
from tests.benchmarks.sizes import Sizes

CALLERS = (1, 16, 256)
NAME, NOOP = "bench-registry", "bench-noop"
GOALS = {
    **{f"actor.{operation}.throughput_ratio": Goal(at_least=0.75) for operation in ("bind", "may_dispatch", "close")},
    **{f"actor.{operation}.p50_ratio": Goal(1.3) for operation in ("bind", "may_dispatch", "close")},
    "actor.bind_batch.per_s": Goal(at_least=20_000),
    "actor.sessions_1e5.rss_growth_mib": Goal(16),
    "actor.sessions_1e5.lost": Goal(0),
}
Call: TypeAlias = Callable[[AsyncClient, int], Awaitable[bool]]
_PATIENT = Patience(deadline_s=300, try_s=300)
_BATCH, _IN_FLIGHT, _LIVE_AT_ONCE = 512, 2, 64


class NoOpActor:
    """Methods of the registry actor's signatures that answer at once."""

    def __init__(self, answer: str) -> None:
        self._answer = answer

    async def apply_text(self, events: str) -> str:
        """One answer for each event."""
        return "\n".join([self._answer] * (events.count("\n") + 1))

    async def ask(self, question: object) -> SessionState:
        """Always the same."""
        return SessionState.BOUND


@define
class Taken:
    """Calls of one kind: seconds of each, and how many a second."""

    seconds: list[float] = field(factory=list)
    rates: list[float] = field(factory=list)

    def p(self, hundredth: int) -> float:
        """A percentile in ms."""
        return 1000 * sorted(self.seconds)[len(self.seconds) * hundredth // 100]


def figures(sizes: Sizes) -> Iterator[Figure]:
    """All of it, on a cluster of two CPUs that is started for it."""
    tiny = sizes.live[-1] < 1000
    mine = not ray.is_initialized()
    if mine:
        ray.init(
            num_cpus=2, include_dashboard=False, object_store_memory=100_000_000, log_to_driver=False, logging_level=40
        )
    try:
        with tempfile.TemporaryDirectory() as folder:
            yield from asyncio.run(_measured(Path(folder), tiny))
    finally:
        if mine:
            ray.shutdown()


async def _measured(folder: Path, tiny: bool) -> list[Figure]:
    start_registry(NAME, Config(owner_lease=3_600_000), folder / "journal", epoch=EPOCH)
    noop = _noop_actor()
    try:
        client = connect(NAME, _PATIENT)
        assert all(outcome.ok for outcome in await client.apply_all(story_to_published()))
        sessions = Sessions()
        found = [*await _singles(sessions, tiny), *await _bursts(sessions, client, tiny)]
        return found + await _many_sessions(sessions, client, 320 if tiny else 100_000)
    finally:
        ray.kill(noop)
        stop_registry(NAME)


def _noop_actor() -> Any:
    answer = Binding(session_key(0), VersionKey(EPOCH, 1), "relax_policy_lora@bench-1-aaaaaaaaaaaa", "a" * 64)
    actor = ray.remote(NoOpActor).options(
        name=NOOP, namespace=NAMESPACE, num_cpus=0, max_concurrency=10_000, max_restarts=-1
    )
    return actor.remote(encode_outcome(answer))


async def _apply_bind(client: AsyncClient, number: int) -> bool:
    return (await client.apply(_bind(number))).ok


async def _ask_state(client: AsyncClient, number: int) -> bool:
    return await client.ask(SessionStateOf(session_key(number))) is SessionState.BOUND


async def _apply_close(client: AsyncClient, number: int) -> bool:
    return (await client.apply(_close(number))).ok


_OPERATIONS: dict[str, Call] = {"bind": _apply_bind, "may_dispatch": _ask_state, "close": _apply_close}


class Sessions:
    """Numbers of sessions that nobody has used yet."""

    def __init__(self) -> None:
        self._next = 0

    def take(self, count: int) -> list[int]:
        """So many more."""
        self._next += count
        return list(range(self._next - count, self._next))


async def _singles(sessions: Sessions, tiny: bool) -> list[Figure]:
    """Each operation, one a call, beside the no-op, in turns."""
    registry, noop = (AsyncClient(RayCalls(name), name, _PATIENT, coalesce=False) for name in (NAME, NOOP))
    taken: dict[tuple[str, str, int], Taken] = {}
    for callers in CALLERS:
        each, rounds = (2, 2) if tiny else ({1: 100, 16: 30, 256: 6}[callers], 10)
        for turn in range(rounds):
            numbers = sessions.take(callers * each)
            for operation, call in _OPERATIONS.items():
                for client in (registry, noop) if turn % 2 else (noop, registry):
                    times = taken.setdefault((operation, client.name, callers), Taken()) if turn else Taken()
                    await _time(times, client, call, numbers, callers)
    return [figure for operation in _OPERATIONS for figure in _beside(taken, operation)]


async def _time(times: Taken, client: AsyncClient, call: Call, numbers: list[int], callers: int) -> None:
    async def caller(mine: list[int]) -> None:
        for number in mine:
            start = perf_counter()
            assert await call(client, number)
            times.seconds.append(perf_counter() - start)

    start = perf_counter()
    await asyncio.gather(*(caller(numbers[place::callers]) for place in range(callers)))
    times.rates.append(len(numbers) / (perf_counter() - start))


def _beside(taken: dict[tuple[str, str, int], Taken], operation: str) -> Iterator[Figure]:
    worst: dict[str, list[float]] = {"throughput": [], "p50": [], "p99": []}
    for callers in CALLERS:
        ours, theirs = taken[operation, NAME, callers], taken[operation, NOOP, callers]
        where = f"actor.{operation}.callers_{callers}"
        rates = median(ours.rates), median(theirs.rates)
        yield Figure(f"{where}.per_s", rates[0], "calls/s", "no-op", rates[1])
        worst["throughput"].append(rates[0] / rates[1])
        for hundredth in (50, 99):
            pair = ours.p(hundredth), theirs.p(hundredth)
            yield Figure(f"{where}.p{hundredth}.ms", pair[0], "ms", "no-op", pair[1])
            worst[f"p{hundredth}"].append(pair[0] / pair[1])
    yield Figure(f"actor.{operation}.throughput_ratio", min(worst["throughput"]), "×")
    yield Figure(f"actor.{operation}.p50_ratio", max(worst["p50"]), "×")
    yield Figure(f"actor.{operation}.p99_ratio", max(worst["p99"]), "×")


async def _bursts(sessions: Sessions, client: AsyncClient, tiny: bool) -> list[Figure]:
    """Rows of binds in one call, and 256 callers whose calls the client puts together."""
    rows, each, rounds = (2, 2, 1) if tiny else (16, 40, 5)
    noop = AsyncClient(RayCalls(NOOP), NOOP, _PATIENT, coalesce=False)
    plain = AsyncClient(RayCalls(NAME), NAME, _PATIENT, coalesce=False)
    batched: dict[str, list[float]] = {NAME: [], NOOP: []}
    shared = Taken()
    for _ in range(rounds):
        numbers = sessions.take(rows * _BATCH)
        for one in (plain, noop):
            binds = [_bind(number) for number in numbers]
            start = perf_counter()
            await _in_flight(_IN_FLIGHT, [_row(one, binds[at : at + _BATCH]) for at in range(0, len(binds), _BATCH)])
            batched[one.name].append(len(binds) / (perf_counter() - start))
        closes = [_close(number) for number in numbers]
        await _in_flight(_IN_FLIGHT, [_row(plain, closes[at : at + _BATCH]) for at in range(0, len(closes), _BATCH)])
        numbers = sessions.take(256 * each)
        await _time(shared, client, _apply_bind, numbers, 256)
        await client.apply_all([_close(number) for number in numbers])
    return [
        Figure("actor.bind_batch.per_s", median(batched[NAME]), "binds/s", "no-op", median(batched[NOOP])),
        Figure("actor.bind_coalesced.callers_256.per_s", median(shared.rates), "binds/s"),
        Figure("actor.bind_coalesced.callers_256.p50.ms", shared.p(50), "ms"),
        Figure("actor.bind_coalesced.callers_256.p99.ms", shared.p(99), "ms"),
    ]


def _row(client: AsyncClient, events: list[ev.Event]) -> Callable[[], Awaitable[None]]:
    async def send() -> None:
        assert all(outcome.ok for outcome in await client.apply_all(events))

    return send


async def _in_flight(limit: int, calls: list[Callable[[], Awaitable[None]]]) -> None:
    waiting = iter(calls)

    async def worker() -> None:
        for call in waiting:
            await call()

    await asyncio.gather(*(worker() for _ in range(limit)))


async def _many_sessions(sessions: Sessions, client: AsyncClient, count: int) -> list[Figure]:
    """Sixteen owners, a client each, open, bind and close; the actor's memory after a tenth of them and at the end."""
    before = await client.live()
    process = psutil.Process(before.pid)
    clients = [connect(NAME, _PATIENT) for _ in range(OWNERS)]
    released = 0
    start = perf_counter()
    first = 0
    for part in (count // 10, count - count // 10):
        released += await _lives(clients, sessions.take(part))
        first = first or process.memory_info().rss
    seconds = perf_counter() - start
    growth = (process.memory_info().rss - first) / 2**20
    status = (await client.live()).status
    held = status.live_sessions - before.status.live_sessions + sum(version.session_refs for version in status.versions)
    return [
        Figure("actor.sessions_1e5.rss_growth_mib", growth, "MiB"),
        Figure("actor.sessions_1e5.rss_mib", first / 2**20, "MiB"),
        Figure("actor.sessions_1e5.lost", count - released + held, "sessions"),
        Figure("actor.sessions_1e5.per_s", count / seconds, "sessions/s"),
    ]


async def _lives(clients: list[AsyncClient], numbers: list[int]) -> int:
    """Each owner has so many sessions at a time; how many dropped their ref."""
    released = 0

    async def life(client: AsyncClient, mine: Iterator[int]) -> None:
        nonlocal released
        for number in mine:
            opened = await client.apply(ev.Open(session=session_key(number), label="agent"))
            bound = await client.apply(_bind(number))
            closing = await client.apply_all([ev.BeginClose(session=session_key(number)), _close(number)])
            assert opened.ok, opened
            assert isinstance(bound, Binding), bound
            released += isinstance(closing[1], Closed) and closing[1].released == bound.key

    by_owner = [iter([n for n in numbers if n % OWNERS == owner]) for owner in range(OWNERS)]
    await asyncio.gather(
        *(life(client, mine) for client, mine in zip(clients, by_owner, strict=True) for _ in range(_LIVE_AT_ONCE))
    )
    return released


def _bind(number: int) -> ev.Event:
    return ev.BindFirst(session=session_key(number))


def _close(number: int) -> ev.Event:
    return ev.CloseAndRelease(session=session_key(number))

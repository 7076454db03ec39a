"""Hypothesis plays sessions, publications, crashes and a bad network in any order; then the storm ends.

Whatever happened: each session was bound to one version and released once, a request ran on exactly that version or
not at all, an engine unloaded what it had loaded, and, once everybody answers again, nothing is left but the default.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lorafsm.errors import LoraFsmError
from lorafsm.events import BindFirst, CloseAndRelease
from lorafsm.identity import SessionKey, VersionKey
from lorafsm.outcomes import Binding, Closed, Reserved
from lorafsm_asyncio import Call, Publisher, Reclaimer, Repairer, Seat, SessionBinder, Watcher, ask_engines
from tests.adapters.asyncio_services.fault_injection import Fault
from tests.adapters.asyncio_services.stage import EPOCH, Stage, name_of, stage
from tests.adapters.asyncio_services.test_dispatch import ANSWER, said
from tests.adapters.asyncio_services.virtual_time import now_ms, virtually

FINE = ("UP", "QUARANTINED")
SERVICES = ("publisher", "reclaimer", "repairer", "watcher")
CALLS = {"answered": ANSWER, "refused": said("prompt too long"), "lost": Call(0)}

_session = st.integers(0, 5)
_engine = st.sampled_from(["E0", "E1"])
_faults = st.lists(st.one_of(st.none(), st.sampled_from(list(Fault))), min_size=1, max_size=6)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.integers(0, 1)),
        st.tuples(st.just("ensure"), _session),
        st.tuples(st.just("cancel"), _session),
        st.tuples(st.just("turn"), _session, st.sampled_from(sorted(CALLS)), _engine),
        st.tuples(st.just("turn"), _session, st.just("answered"), _engine),
        st.tuples(st.just("settle"), _session),
        st.tuples(st.just("close"), _session),
        st.tuples(st.just("publish")),
        st.tuples(st.just("fault"), _faults),
        st.tuples(st.just("outage"), st.sampled_from([1, 5, 40])),
        st.tuples(st.just("wait"), st.sampled_from([0, 1, 10, 45])),
        st.tuples(st.just("kill_service"), st.sampled_from(SERVICES)),
        st.tuples(st.just("kill_shard"), st.integers(0, 1)),
        st.tuples(st.just("kill_engine"), _engine),
        st.tuples(st.just("start_engine"), _engine),
        st.tuples(st.just("hang"), _engine),
        st.tuples(st.just("damage"), _engine),
    ),
    min_size=4,
    max_size=40,
)


class Storm:
    """The players, and one method a step."""

    def __init__(self, s: Stage) -> None:
        self.s = s
        self.tasks: dict[str, asyncio.Task[Any]] = {}
        self.shards: list[SessionBinder] = []
        self.sessions: list[tuple[SessionBinder, SessionKey]] = []
        self.waiters: dict[int, asyncio.Task[Any]] = {}
        self.work: set[asyncio.Task[Any]] = set()
        self.next_version = 2
        self.turns = 0
        self.engines: list[Any] = []
        self.ran: list[tuple[str, str]] = []

    # -- services ---------------------------------------------------------------------------------------

    def service(self, name: str) -> Any:
        s = self.s
        more = {"clock": now_ms, "notify": s.notices.append}
        seats = [Seat(host.name, host.connect, host.exited) for host in s.hosts.values()]
        match name:
            case "publisher":
                return Publisher(s.client, s.executors, **more).run()
            case "reclaimer":
                return Reclaimer(s.client, s.executors, **more).run()
            case "repairer":
                return Repairer(s.client, s.executors, **more).run()
            case _:
                return Watcher(s.client, EPOCH, seats, s.executors, **more).run()

    async def begin(self) -> None:
        for name in SERVICES:
            self.tasks[name] = self.s.on(self.service(name))
        for number in range(2):
            self.shards.append(await self.shard(number))
            for _ in range(2):
                await self.on_open(number)

    async def shard(self, number: int) -> SessionBinder:
        ask = ask_engines(lambda: [self.s.executors[name] for name in sorted(self.s.executors)])
        while True:
            try:
                binder = await self.s.binder(f"shard-{number}", ask=ask)
                self.tasks[f"shard-{number}"] = self.s.on(binder.run())
                return binder
            except LoraFsmError:
                continue

    def go(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self.work.add(task)
        return task

    # -- steps ------------------------------------------------------------------------------------------

    async def do(self, step: tuple[Any, ...]) -> None:
        await getattr(self, f"on_{step[0]}")(*step[1:])
        await asyncio.sleep(0)

    async def on_open(self, number: int) -> None:
        binder = self.shards[number]
        if not binder.lost:
            self.sessions.append((binder, binder.open()))

    def known(self, index: int) -> tuple[SessionBinder, SessionKey] | None:
        return self.sessions[index % len(self.sessions)] if self.sessions else None

    async def on_ensure(self, index: int) -> None:
        if found := self.known(index):
            self.waiters[index] = self.go(found[0].ensure(found[1]))

    async def on_cancel(self, index: int) -> None:
        if index in self.waiters:
            self.waiters[index].cancel()

    async def on_turn(self, index: int, end: str, engine: str) -> None:
        if found := self.known(index):
            self.turns += 1
            self.go(self.turn(*found, f"t{self.turns:04}:0", end, engine))

    async def turn(self, binder: SessionBinder, session: SessionKey, rid: str, end: str, engine: str) -> None:
        async with binder.attempt(session, rid) as attempt:
            process = self.s.hosts[engine].process
            if process is None or process.hung:
                attempt.heard(Call(0))
            elif self.s.hosts[engine].serves(rid, attempt.lora_path):
                assert attempt.lora_path in process.loaded
                self.ran.append((str(session), attempt.lora_path))
                asyncio.get_running_loop().call_later(3.0, lambda: process.alive and process.end(rid))
                await asyncio.sleep(1.0)
                attempt.heard(CALLS[end] if end == "lost" else ANSWER)
            else:
                attempt.heard(said("VERSION_MISSING: not served here") if end != "lost" else Call(0))

    async def on_settle(self, index: int) -> None:
        if found := self.known(index):
            self.go(found[0].settle(found[1]))

    async def on_close(self, index: int) -> None:
        if found := self.known(index):
            self.go(self.close(*found))

    async def close(self, binder: SessionBinder, session: SessionKey) -> None:
        await binder.begin_close(session)
        await binder.close_and_release(session)

    async def on_publish(self) -> None:
        key = VersionKey(EPOCH, self.next_version)
        if isinstance(await self.s.reserve(key), Reserved):
            self.next_version += 1
            publisher = Publisher(self.s.client, self.s.executors, clock=now_ms, notify=self.s.notices.append)
            self.go(publisher.publish(key, f"token-{key}", patience=None))

    async def on_fault(self, faults: list[Fault | None]) -> None:
        self.s.client.faults.extend(faults)

    async def on_outage(self, seconds: float) -> None:
        self.s.client.out = True
        await asyncio.sleep(seconds)
        self.s.client.out = False

    async def on_wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        assert len(self.s.r.slots) <= self.s.r.config.capacity

    async def on_kill_service(self, name: str) -> None:
        await self.s.kill(self.tasks[name])
        self.tasks[name] = self.s.on(self.service(name))

    async def on_kill_shard(self, number: int) -> None:
        await self.s.kill(self.tasks[f"shard-{number}"])
        dead = self.shards[number]
        self.sessions = [each for each in self.sessions if each[0] is not dead]
        self.shards[number] = await self.shard(number)

    async def on_kill_engine(self, engine: str) -> None:
        host = self.s.hosts[engine]
        if host.process is not None:
            self.engines.append(host.process)
            host.kill()

    async def on_start_engine(self, engine: str) -> None:
        if self.s.hosts[engine].process is None:
            self.s.hosts[engine].start()

    async def on_hang(self, engine: str) -> None:
        process = self.s.hosts[engine].process
        if process is not None:
            process.hung = not process.hung

    async def on_damage(self, engine: str) -> None:
        process = self.s.hosts[engine].process
        if process is not None:
            process.corrupt.add(name_of(VersionKey(EPOCH, self.next_version)))

    # -- the end ----------------------------------------------------------------------------------------

    async def calm(self) -> None:
        """Everybody answers, every session closes; what was late arrives last."""
        s = self.s
        s.client.out = False
        s.client.faults.clear()
        for host in s.hosts.values():
            if host.process is None:
                host.start()
            host.running().hung = False
            host.running().corrupt.clear()
        for binder, session in self.sessions:
            self.go(self.close(binder, session))
        ends = await asyncio.gather(*self.work, return_exceptions=True)
        strange = [e for e in ends if isinstance(e, BaseException) and not _expected(e)]
        assert strange == []
        await s.client.deliver_late()
        await s.until(self.at_rest, within_s=900)

    def at_rest(self) -> bool:
        r = self.s.r
        unheld = all(b.live == 0 for b in self.shards) and all(self.s.refs(key) == 0 for key in r.slots)
        return (
            unheld
            and r.unresolved == 0
            and r.slots == (r.default,)
            and all(m.state in ("UP", "QUARANTINED") and not m.strays for m in r.engines.values())
        )

    def check(self) -> None:
        s = self.s
        bound: dict[SessionKey, set[VersionKey]] = defaultdict(set)
        for outcome in s.client.outcomes_of(BindFirst):
            if isinstance(outcome, Binding):
                bound[outcome.session].add(outcome.key)
        assert all(len(keys) == 1 for keys in bound.values())
        closes = s.client.outcomes_of(CloseAndRelease)
        released = Counter(o.session for o in closes if isinstance(o, Closed) and o.released)
        assert set(released.values()) <= {1}
        names = {str(session): {s.r.versions[key].lora_name for key in keys} for session, keys in bound.items()}
        assert all(path in names[session] for session, path in self.ran)
        for process in [*self.engines, *(host.running() for host in s.hosts.values())]:
            assert not Counter(process.unloads) - Counter(process.loads), "unloaded more often than loaded"


def _expected(error: BaseException) -> bool:
    return isinstance(error, LoraFsmError | asyncio.CancelledError)


@settings(max_examples=max(20, settings.default.max_examples // 2))
@given(STEPS)
def test_after_any_storm_nothing_is_left_but_the_default(steps: list[tuple[Any, ...]]):
    async def story() -> None:
        async with stage() as s:
            storm = Storm(s)
            await storm.begin()
            for step in steps:
                await storm.do(step)
            await storm.calm()
            storm.check()

    virtually(story())

"""A registry, its services and a guarded engine: under load, killed in each phase, and what the journal says of it all.

First in this folder: the numbers of the registry's attempts begin at 1, and the engine has seen none yet.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="not installed: torch (`make test` installs it)")

from lorafsm.identity import VersionKey
from lorafsm.orders import Unload
from lorafsm.outcomes import Aborted, Committed
from lorafsm.records import Config
from lorafsm_asyncio.questions import Routable
from lorafsm_asyncio.reclaimer import holders
from lorafsm_journal import JournaledRegistry
from lorafsm_sglang import OK, EnginePort, wait_all_ready
from lorafsm_sglang.guard.fingerprint import base_fingerprint
from lorafsm_sglang.tiny_model import VOCAB_SIZE
from lorafsm_tla.trace import check_journal
from tests.engines.conftest import DEADLINE_S
from tests.engines.guard.deployment import ENGINE, Deployment, deployed
from tests.engines.guard.house import EPOCH_ID, LONG, PROMPT, Guarded, client, rid, until, who
from tests.engines.guard.traffic import TOLERANCE, Baseline, Traffic, scored
from tests.spec.test_tla_trace import needs_tlc

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

# `LORAFSM_STRESS=2000,20` asks for that many requests and publications; the suite runs fewer.
REQUESTS, PUBLICATIONS = (int(n) for n in os.environ.get("LORAFSM_STRESS", "240,6").split(","))

PHASES = ("before begin", "PREPARED", "armed", "received", "loading", "READY", "committed", "unloading")
IN_THE_SUITE = ("unloading",)  # each costs one start of an engine; `make test-long` sees them all
ALL_KILLS = "LORAFSM_KILLS"

Needed = tuple[VersionKey, Baseline]
"""What the new process must serve, and how it answered before."""


@pytest.fixture(scope="module")
def host(guarded: Guarded, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JournaledRegistry]:
    """One registry for this module: an engine fences the numbers that it has seen."""
    config = Config(base_fingerprint=base_fingerprint(guarded.model))
    with JournaledRegistry.open(tmp_path_factory.mktemp("registry") / "journal.db", config, EPOCH_ID) as opened:
        yield opened


async def test_nothing_is_mixed_up_or_left_behind(guarded: Guarded, host: JournaledRegistry):
    """Every answer is its version's, at most two versions are resident, and no reference is left (RFC 5, 7.1)."""
    async with deployed(guarded, host) as it, EnginePort(guarded.process.url, vocab_size=VOCAB_SIZE) as web:
        traffic = Traffic(web, REQUESTS, seed=7)
        clients = asyncio.create_task(traffic.run())
        baselines, open_to = dict[str, Baseline](), list[tuple[VersionKey, Any]]()
        engine: Any = it.engines[ENGINE]
        resident: list[int] = []
        polls = asyncio.create_task(poll(engine, resident))
        try:
            for publication in range(PUBLICATIONS):
                if len(open_to) == 2:
                    old, session = open_to.pop(0)
                    # The version is still asked for when its last session goes: late requests are refused, no more.
                    await close(it, session)
                    await it.until(lambda old=old: it.state(old) != "RETIRED", f"{old} is reclaimed")
                    traffic.open_to.pop(it.name(old))
                letter = "ABC"[publication % 3]
                key, outcome = await it.publish(letter)
                assert isinstance(outcome, Committed), outcome
                session = it.binder.open(f"turns-{publication}")
                assert (await it.binder.ensure(session)).key == key
                open_to.append((key, session))
                baseline = await scored(web, it.name(key))
                baselines.setdefault(letter, baseline)
                traffic.open_to[it.name(key)] = baseline
                await traffic.until_left(REQUESTS - REQUESTS // PUBLICATIONS * (publication + 1))
            await clients
        finally:
            clients.cancel()
            polls.cancel()
        assert traffic.wrong == []
        first = list(baselines.values())
        assert all(a[0] != b[0] or abs(a[1] - b[1]) >= 10 * TOLERANCE for i, a in enumerate(first) for b in first[:i])
        assert max(resident) == 2
        assert len(resident) >= PUBLICATIONS
        assert sum(traffic.ended.values()) == REQUESTS
        assert traffic.ended["finish"] >= REQUESTS // 5, traffic.ended
        for _, session in open_to:
            await close(it, session)
        await it.until(lambda: len(it.r.slots) == 1, "only the default is left")
        [adapter] = (await engine.status())["adapters"]
        assert (adapter["refs"], adapter["sglang_count"]) == (0, 0)
        assert (await engine.status())["quarantine"] == []


async def poll(engine: Any, resident: list[int]) -> None:
    """How many managed versions the engine holds, again and again until cancelled."""
    while True:
        resident.append(len((await engine.status()).get("adapters", ())))
        await asyncio.sleep(0.1)


async def close(it: Deployment, session: Any) -> None:
    await it.binder.begin_close(session)
    await it.binder.close_and_release(session)


@pytest.mark.parametrize("phase", PHASES)
async def test_an_engine_that_is_killed(guarded: Guarded, host: JournaledRegistry, phase: str):
    """kill -9: an attempt ends, a new incarnation gets what sessions need from the store and serves after its proof."""
    if phase not in IN_THE_SUITE and not os.environ.get(ALL_KILLS):
        pytest.skip(f"each kill costs the start of an engine; set {ALL_KILLS}=1 to see this phase")
    async with deployed(guarded, host) as it:
        if it.r.default is None:
            assert isinstance((await it.publish("A"))[1], Committed)
        await it.until(lambda: it.routable(it.r.default) == (ENGINE,), "the default is served")
        needed = it.r.default
        session = it.binder.open(f"through {phase}")
        assert (await it.binder.ensure(session)).key == needed
        before = it.r.engines[ENGINE].incarnation
        needed, baseline = await _KILLED.get(phase, while_publishing)(it, phase, session, needed)
        await it.until(lambda: it.r.engines[ENGINE].state == "DEAD", "the engine is dead")
        assert await it.client.ask(Routable(needed)) == ()
        seen = len(it.story)
        guarded.process.start()
        await asyncio.to_thread(wait_all_ready, [guarded.process], DEADLINE_S)
        await it.until(lambda: it.r.engines[ENGINE].state == "UP", "the new process holds what sessions need")
        assert it.r.engines[ENGINE].incarnation > before
        assert it.routable(needed) == (ENGINE,)
        events = [name for name, _ in it.story[seen:]]
        proof = events.index("repair_ready")
        assert "engine_up" in events[:proof]
        assert all(routable == () for _, routable in it.story[seen : seen + proof]), "served before the proof"
        engine: Any = it.engines[ENGINE]
        done = [op["op"] for op in await engine.operations() if op["lora_name"] == it.name(needed)]
        assert done == ["fetch", "verify", "load", "probe"]
        async with EnginePort(guarded.process.url, vocab_size=VOCAB_SIZE) as web:
            assert await scored(web, it.name(needed)) == pytest.approx(baseline, abs=TOLERANCE)
        if it.binder.binding(session) is not None:
            await close(it, session)
        assert isinstance((await it.publish("C"))[1], Committed), "publication goes on"


async def while_publishing(it: Deployment, phase: str, session: Any, needed: VersionKey) -> Needed:
    """The next version has come as far as this when the engine ends; its attempt is aborted and clean."""
    async with EnginePort(it.guarded.process.url, vocab_size=VOCAB_SIZE) as web:
        baseline = await scored(web, it.name(needed))
    happened: list[str] = []

    async def reached(now: str) -> None:
        if now == phase and not happened:
            happened.append(now)
            await it.kill()

    it.reached, it.stops_in = reached, phase
    key, outcome = await it.publish("B")
    it.stops_in = ""
    assert happened == [phase]
    assert isinstance(outcome, Aborted), outcome
    assert it.state(key) == "FAILED_CLEAN"
    assert it.r.default == needed
    return needed, baseline


async def after_commit(it: Deployment, phase: str, session: Any, needed: VersionKey) -> Needed:
    async with EnginePort(it.guarded.process.url, vocab_size=VOCAB_SIZE) as web:
        baseline = await scored(web, it.name(needed))
        running = asyncio.create_task(web.generate(PROMPT, it.name(needed), LONG, rid()))
        await held(it, needed)
        await it.kill()
        assert not isinstance(await running, OK)
    return needed, baseline


async def while_unloading(it: Deployment, phase: str, session: Any, needed: VersionKey) -> Needed:
    """The version is drained behind a request; the death of its engine is the proof that it is gone (rule 14)."""
    old = needed
    key, outcome = await it.publish("A")
    assert isinstance(outcome, Committed), outcome
    async with EnginePort(it.guarded.process.url, vocab_size=VOCAB_SIZE) as web:
        baseline = await scored(web, it.name(key))
        running = asyncio.create_task(web.generate(PROMPT, it.name(old), LONG, rid()))
        await held(it, old)
        await close(it, session)
        engine: Any = it.engines[ENGINE]

        async def draining() -> bool:
            adapters = (await engine.status())["adapters"]
            return any((a["lora_name"], a["state"]) == (it.name(old), "DRAINING") for a in adapters)

        await until(draining, f"{old} drains")
        assert it.state(old) == "RECLAIMING"
        await it.kill()
        assert not isinstance(await running, OK)
    await it.until(lambda: it.state(old) == "RECLAIMED", "the dead engine holds nothing")
    return key, baseline


_Kill = Callable[[Deployment, str, Any, VersionKey], Awaitable[Needed]]
_KILLED: dict[str, _Kill] = {"committed": after_commit, "unloading": while_unloading}


async def held(it: Deployment, key: VersionKey) -> None:
    """Wait until a request of the version is in flight."""
    async with asyncio.timeout(60):
        while not await holders(it.engines[ENGINE], it.name(key)):  # each look is a request of its own
            pass


@needs_tlc
def test_the_journal_of_all_this_is_a_behaviour_of_the_specification(host: JournaledRegistry, guarded: Guarded):
    """Every row of the stress run and of the kills, state by state, by TLC."""
    path = host.journal.path
    assert "are a behaviour of LoraRegistry.tla" in check_journal(path)


async def test_the_engine_is_left_as_it_was_found(guarded: Guarded, host: JournaledRegistry):
    """The deployment's last version goes, so that the other modules find an empty engine."""
    proof = await client(guarded.process, guarded.token).attest()
    engine = client(guarded.process, guarded.token, proof.incarnation)
    for adapter in (await engine.status())["adapters"]:
        version = next(v for v in host.registry.versions.values() if v.lora_name == adapter["lora_name"])
        what = {"key": version.key, "digest": version.digest, "lora_name": version.lora_name}
        await engine.carry_out(Unload(**who(proof.incarnation), **what, reclaim_id=f"r-leave-{version.key.version_id}"))
    assert (await engine.status())["adapters"] == []
    await engine.aclose()

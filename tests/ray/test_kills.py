"""kill -9 of the registry's process: after every record of a whole life, and while many clients are at work."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from attrs import evolve

from lorafsm.events import CloseAndRelease, Event, Recovered
from lorafsm.outcomes import Lease, Outcome
from lorafsm.records import new_registry
from lorafsm.registry import step
from lorafsm_journal import Journal
from lorafsm_ray import AsyncClient, Patience, connect
from lorafsm_tla.trace import check_journal
from tests.adapters.journal_stories import CONFIG, EPOCH, life
from tests.ray.hooks import FOLDER, sentence
from tests.ray.programs import publisher, replayed, require_story_was_told, shard
from tests.spec.test_tla_trace import needs_tlc

LONG = Patience(deadline_s=120)


def without_time(value: Event | Outcome) -> Event | Outcome:
    """What is the same whenever it happens."""
    if isinstance(value, Lease):
        return evolve(value, until=0)
    return evolve(value, now=0) if hasattr(value, "now") else value


def told(path: Path) -> list[tuple[Event, Outcome]]:
    """The journal's rows but for recoveries; what was asked again counts once, and must have one answer."""
    found: dict[Event, Outcome] = {}
    with Journal.read(path) as journal:
        for row in journal.rows():
            if not isinstance(row.event, Recovered):
                event, outcome = without_time(row.event), without_time(row.outcome)
                first = found.setdefault(event, outcome)
                assert outcome == first or (isinstance(event, CloseAndRelease) and outcome.code == "ALREADY_CLOSED")
    return list(found.items())


def undisturbed() -> list[tuple[Event, Outcome]]:
    """What the core answers to the same life."""
    registry, rows = new_registry(EPOCH, CONFIG), []
    for event in life():
        done = step(registry, event)
        registry = done.registry
        rows.append((without_time(event), without_time(done.outcome)))
    return rows


async def killed_after_its_records(name: str, path: Path, doomed: set[int]) -> int:
    """Live the life, the process being killed after each doomed record; the number of processes that it took."""
    papers = Path(os.environ[FOLDER]) / name
    papers.mkdir()
    client, pids = connect(name, LONG), set()
    expected = undisturbed()
    for number, event in enumerate(life()):
        pids.add((await client.live()).pid)
        if number in doomed:
            (papers / sentence(event)).touch()
        await client.apply(event)
        assert not list(papers.iterdir()), "it died of this event, after the record and before the reply"
        assert told(path) == expected[: number + 1], "exactly what was acknowledged"
    pids.add((await client.live()).pid)
    return len(pids)


@pytest.mark.timeout(280)
async def test_killed_after_each_record_of_a_whole_life(started, tmp_path: Path):
    """Four registries live it, each killed after another quarter of the records: each record is the last one once."""
    names = "abcd"
    for name in names:
        started(name, on_event=f"tests.ray.hooks:kill_{name}")
    doomed = {name: set(range(place, len(life()), len(names))) for place, name in enumerate(names)}
    processes = await asyncio.gather(
        *(killed_after_its_records(name, tmp_path / f"{name}.journal", doomed[name]) for name in names)
    )
    assert processes == [1 + len(doomed[name]) for name in names]
    for name in names:
        replayed(tmp_path / f"{name}.journal")


@pytest.fixture
async def killed_at_work(started, tmp_path: Path) -> Path:
    """The journal of a deployment whose registry was killed three times while publisher and shards were at work."""
    started("work")
    clients = [connect("work", LONG) for _ in range(4)]

    async def killer(client: AsyncClient) -> None:
        for accepted in (10, 25, 45):
            seen = 0
            while seen < accepted:
                seen = await client.changed(seen, 5.0)
            os.kill((await client.live()).pid, signal.SIGKILL)
        await client.live()  # it is back

    _, _, *bound = await asyncio.gather(
        killer(connect("work", LONG)),
        publisher(clients[0]),
        *(shard(client, f"o{n}", 5) for n, client in enumerate(clients)),
    )
    path = tmp_path / "work.journal"
    require_story_was_told(path, [one for each in bound for one in each])
    with Journal.read(path) as journal:
        assert sum(isinstance(row.event, Recovered) for row in journal.rows()) == 3
    return path


@needs_tlc
async def test_killed_at_work_nothing_happens_twice_and_tlc_accepts_the_journal(killed_at_work: Path):
    assert "are a behaviour of LoraRegistry.tla" in check_journal(killed_at_work)

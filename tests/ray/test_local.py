"""The actor's class without Ray: time, groups, last events, hook, long poll, and a journal that does not take a row."""

import asyncio
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from attrs import evolve

from lorafsm.errors import InvalidField
from lorafsm.events import BindFirst, Heartbeat, Open, OwnerUp
from lorafsm.outcomes import Binding, Code, Lease, Refusal
from lorafsm.records import Config
from lorafsm_asyncio.questions import ConfigOf, ExpiredOwners, StatusAt
from lorafsm_journal import Journal, JournalCode, JournaledRegistry, JournalError, Level
from lorafsm_ray import RegistryActor, RegistrySettings
from lorafsm_ray.clock import Clock
from lorafsm_ray.host import RegistryHost
from tests.adapters.journal_stories import CONFIG, EPOCH, life, session
from tests.ray import hooks
from tests.ray.local import HOOKS, TickingClock, local_actor, settings

FAR = 2**50  # ms; a clock that is wrong by some thousand years


async def lived(actor: RegistryActor) -> None:
    for event in life():
        assert (await actor.apply(event)).ok, event


async def test_there_is_one_clock_and_it_is_the_actors(tmp_path: Path):
    actor = local_actor(tmp_path)
    lease = await actor.apply(OwnerUp(owner="o1", now=FAR))
    assert isinstance(lease, Lease)
    assert lease.until < 100_000
    assert await actor.ask(ExpiredOwners(FAR)) == ()
    assert (await actor.ask(StatusAt(0))).now > 1_000
    with Journal.read(tmp_path / "local.journal") as journal:
        assert [row.event.now < 2_000 for row in journal.rows()] == [True]


def test_the_clock_starts_no_earlier_than_what_was_seen_and_goes_on():
    clock = Clock(FAR)
    first, second = clock(), clock()
    assert FAR <= first <= second < FAR + 60_000
    assert 1_700_000_000_000 < Clock()() < FAR


async def test_calls_that_are_there_together_are_one_commit_and_each_has_its_own_answer(tmp_path: Path, monkeypatch):
    actor = local_actor(tmp_path)
    commits: list[int] = []
    step_all = JournaledRegistry.step_all
    monkeypatch.setattr(
        JournaledRegistry, "step_all", lambda self, events: commits.append(len(events)) or step_all(self, events)
    )
    answers = await asyncio.gather(
        *(actor.apply(OwnerUp(owner=f"o{n}")) for n in range(20)), actor.apply(Heartbeat(owner="nobody"))
    )
    assert [getattr(answer, "owner", answer.code) for answer in answers] == [
        *(f"o{n}" for n in range(20)),
        Code.UNKNOWN_OWNER,
    ]
    assert commits == [21]


async def test_in_company_a_call_waits_for_more_and_alone_it_does_not(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("lorafsm_ray.actor._LINGER_S", 0.25)  # long enough for a process that is kept off its core
    actor = local_actor(tmp_path)
    commits: list[int] = []
    step_all = JournaledRegistry.step_all
    monkeypatch.setattr(
        JournaledRegistry, "step_all", lambda self, events: commits.append(len(events)) or step_all(self, events)
    )

    async def one_after_another() -> None:
        first = asyncio.create_task(actor.apply(Heartbeat(owner="nobody")))
        for _ in range(3):
            await asyncio.sleep(0)
        await asyncio.gather(first, actor.apply(Heartbeat(owner="nobody")))

    await one_after_another()
    assert commits == [1, 1]
    await asyncio.gather(actor.apply(OwnerUp(owner="o1")), actor.apply(OwnerUp(owner="o2")))
    await one_after_another()
    assert commits == [1, 1, 2, 2]
    await actor.apply(Heartbeat(owner="nobody"))
    await one_after_another()
    assert commits == [1, 1, 2, 2, 1, 1, 1]


async def test_a_row_of_events_keeps_its_order_and_a_refusal_does_not_end_it(tmp_path: Path):
    actor = local_actor(tmp_path)
    row = [OwnerUp(owner="o1"), BindFirst(session=session(0)), Open(session=session(0))]
    assert [answer.code for answer in await actor.apply_all(row)] == [Code.OK, Code.NO_PUBLISHED_VERSION, Code.OK]


async def test_what_is_no_event_is_refused_as_input(tmp_path: Path):
    actor = local_actor(tmp_path)
    answer = await actor.apply("publish it")
    assert isinstance(answer, Refusal)
    assert answer.code is Code.BAD_INPUT


async def test_the_last_32_events_and_the_counts(tmp_path: Path):
    actor = local_actor(tmp_path)
    await lived(actor)
    for n in range(40):
        await actor.apply(Heartbeat(owner=f"nobody-{n}"))
    live = await actor.live()
    assert [(one.event, one.code) for one in live.last] == [("Heartbeat", "UNKNOWN_OWNER")] * 32
    assert [one.at for one in live.last] == sorted(one.at for one in live.last)
    counts = {(event, code): count for event, code, count in live.counts}
    assert counts["Heartbeat", "UNKNOWN_OWNER"] == 40
    assert counts["Commit", "OK"] == 2
    assert sum(counts.values()) == live.rows == len(life()) + 40
    assert live.accepted == len(life())
    assert live.as_dict()["registry"] == "local"
    assert live.as_dict()["live"]["last"][0]["code"] == "UNKNOWN_OWNER"


async def test_a_hook_sees_every_event_and_one_that_raises_harms_nobody(tmp_path: Path):
    hooks.seen.clear()
    seeing = local_actor(tmp_path, name="seeing", on_event=f"{HOOKS}:remember")
    await lived(seeing)
    await seeing.apply(Heartbeat(owner="nobody"))
    assert [type(one.event) for one in hooks.seen] == [*map(type, life()), Heartbeat]
    assert [one.changed for one in hooks.seen] == [True] * len(life()) + [False]
    failing = local_actor(tmp_path, name="failing", on_event=f"{HOOKS}:broken")
    await lived(failing)
    assert (await failing.live()).hook_errors == len(life())


@pytest.mark.parametrize("path", ["tests.ray.hooks:nothing", "no_such_module_at_all:f", f"{HOOKS}:FOLDER"])
async def test_a_hook_that_is_not_there_is_said_at_the_start(tmp_path: Path, path: str):
    with pytest.raises(InvalidField) as caught:
        await local_actor(tmp_path, on_event=path).start()
    assert caught.value.field == "on_event"


async def test_the_long_poll_wakes_for_a_change_and_for_nothing_else(tmp_path: Path):
    actor = local_actor(tmp_path)
    before = await actor.start()
    waiting = asyncio.create_task(actor.changed(before, 30))
    await actor.apply(Heartbeat(owner="nobody"))
    assert not waiting.done()
    await actor.apply(OwnerUp(owner="o1"))
    assert await waiting == before + 1
    assert await actor.changed(before, 30) == before + 1
    assert await actor.changed(before + 1, 0.01) == before + 1
    assert await actor.changed(before + 99, 30) == before + 1, "what was lost is news"


async def test_a_registry_that_comes_back_grants_every_lease_anew(tmp_path: Path):
    first = local_actor(tmp_path)
    await lived(first)
    accepted = (await first.live()).accepted
    await first.stop()
    with pytest.raises(JournalError) as caught:
        await first.apply(OwnerUp(owner="o2"))
    assert caught.value.code == JournalCode.JOURNAL_CLOSED
    later = TickingClock(500_000)
    second = RegistryActor(settings(tmp_path), later)
    assert (await second.live()).last[0].event == "Recovered"
    assert await second.start() >= accepted
    assert await second.ask(ExpiredOwners(0)) == ()
    later.now += CONFIG.owner_lease + 1
    assert await second.ask(ExpiredOwners(0)) == ("o1",)


async def test_time_does_not_stand_still_where_the_machine_of_the_recovery_is_behind(tmp_path: Path):
    with JournaledRegistry.open(tmp_path / "local.journal", CONFIG, EPOCH) as before:
        assert before.apply(OwnerUp(owner="o1", now=FAR)).ok
    host = RegistryHost(settings(tmp_path))
    assert host.registry.now >= FAR
    assert host.clock() >= host.registry.now
    host.close()


async def test_a_second_registry_on_one_journal_is_refused_and_takes_over_once_the_first_ends(tmp_path: Path):
    first = local_actor(tmp_path)
    await first.start()
    second = RegistryActor(settings(tmp_path), TickingClock())
    for _ in range(2):
        with pytest.raises(JournalError) as caught:
            await second.apply(OwnerUp(owner="o1"))
        assert caught.value.code == JournalCode.JOURNAL_LOCKED
    await first.stop()
    assert (await second.apply(OwnerUp(owner="o1"))).ok


@contextmanager
def no_file_grows(beyond: Path) -> Iterator[None]:
    """As on a full disk: writing past the size that this file has now fails, here EFBIG instead of ENOSPC."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (beyond.stat().st_size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_full_disk_is_told_before_the_reply_and_changes_nothing(tmp_path: Path):
    actor = local_actor(tmp_path)
    await lived(actor)
    before = actor._opened().registry
    with no_file_grows(tmp_path / "local.journal-wal"):
        with pytest.raises(JournalError) as caught:
            await actor.apply(OwnerUp(owner="o2"))
        assert caught.value.code in (JournalCode.JOURNAL_UNWRITABLE, JournalCode.JOURNAL_UNCERTAIN)
    after = actor._opened().registry
    assert (after.versions, after.slots, set(after.owners)) == (before.versions, before.slots, {"o1"})
    assert (await actor.apply(OwnerUp(owner="o2"))).ok
    await actor.stop()
    with Journal.read(tmp_path / "local.journal") as journal:
        assert [row.event.owner for row in journal.rows() if isinstance(row.event, OwnerUp)] == ["o1", "o2"]


@pytest.mark.parametrize("written", [False, True])
async def test_a_commit_of_unknown_fate_is_settled_by_a_recovery(tmp_path: Path, monkeypatch, written: bool):
    actor = local_actor(tmp_path)
    await lived(actor)
    step_all = JournaledRegistry.step_all

    def uncertain_commit(self, events):
        if written:
            step_all(self, events)
        raise JournalError(JournalCode.JOURNAL_UNCERTAIN, "the commit failed; close it, open it again and recover")

    monkeypatch.setattr(JournaledRegistry, "step_all", uncertain_commit)
    with pytest.raises(JournalError):
        await actor.apply(BindFirst(session=session(7)))
    monkeypatch.setattr(JournaledRegistry, "step_all", step_all)
    again = await actor.apply(BindFirst(session=session(7)))
    assert isinstance(again, Binding)
    with Journal.read(tmp_path / "local.journal") as journal:
        bound = [row for row in journal.rows() if getattr(row.event, "session", None) == session(7)]
    assert len(bound) == 1 + written
    assert {row.outcome for row in bound} == {again}


async def test_an_error_of_one_caller_is_not_its_neighbours(tmp_path: Path, monkeypatch):
    actor = local_actor(tmp_path)
    step_all = JournaledRegistry.step_all

    def poisoned(self, events):
        if any(getattr(event, "owner", "") == "poison" for event in events):
            raise RuntimeError("a programming error")
        return step_all(self, events)

    monkeypatch.setattr(JournaledRegistry, "step_all", poisoned)
    answers = await asyncio.gather(
        *(actor.apply(OwnerUp(owner=owner)) for owner in ("o1", "poison", "o2")), return_exceptions=True
    )
    assert [type(answer) for answer in answers] == [Lease, RuntimeError, Lease]


async def test_a_question_is_answered_and_what_is_none_is_refused(tmp_path: Path):
    actor = local_actor(tmp_path)
    assert await actor.ask(ConfigOf()) == CONFIG
    with pytest.raises(TypeError):
        await actor.ask("how are you")


@pytest.mark.parametrize(
    "field, value",
    [
        ("name", "no/name"),
        ("name", ""),
        ("epoch", "no-epoch"),
        ("journal", "relative/journal"),
        ("config", None),
        ("epochs", "relative/epochs"),
        ("level", "process"),
        ("metrics_port", 70_000),
        ("metrics_port", "9090"),
        ("metrics_host", ""),
        ("on_event", "module.function"),
    ],
)
def test_settings_name_the_field_that_is_wrong(tmp_path: Path, field: str, value: object):
    with pytest.raises(InvalidField) as caught:
        settings(tmp_path, **{field: value})
    assert caught.value.field == field


def test_settings_are_data(tmp_path: Path):
    made = settings(tmp_path, level=Level.POWER)
    assert evolve(made) == made
    assert RegistrySettings(name="r", epoch="e1", journal="/j").config == Config()

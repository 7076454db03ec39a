"""Batches are one commit and one new state; the level says what the commit waits for."""

from pathlib import Path

import pytest

from lorafsm import registry as rules
from lorafsm.errors import InvalidField
from lorafsm.events import BindFirst, Heartbeat, Open, OwnerUp
from lorafsm.identity import SessionKey
from lorafsm.outcomes import Done
from lorafsm.records import new_registry
from lorafsm_journal import Journal, JournalCode, JournaledRegistry, JournalError, Level, Undecodable
from tests.adapters.journal_stories import CONFIG, EPOCH, life, session

REFUSED = BindFirst(session=SessionKey(EPOCH, "nobody", 0))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "registry.journal"


def code_of(call) -> str:
    with pytest.raises(JournalError) as caught:
        call()
    return caught.value.code


def test_a_batch_is_one_commit_and_each_event_has_its_outcome(path: Path):
    events = [*life()[:2], REFUSED, *life()[2:]]
    with JournaledRegistry.open(path, CONFIG, EPOCH) as host:
        outcomes = host.apply_all(events)
        registry = host.registry
        assert [row.outcome for row in host.journal.rows()] == list(outcomes)
        assert host.apply_all(()) == ()
    assert [outcome.ok for outcome in outcomes] == [event is not REFUSED for event in events]
    one_by_one = new_registry(EPOCH, CONFIG)
    for event in events:
        one_by_one = rules.step(one_by_one, event).registry
    assert registry == one_by_one
    with JournaledRegistry.open(path, CONFIG, EPOCH) as host:
        assert host.registry == registry


def test_a_batch_that_cannot_be_written_has_not_happened(path: Path):
    with JournaledRegistry.open(path, CONFIG, EPOCH) as host:
        before = host.registry
        host.journal._writer._db.execute("PRAGMA max_page_count = 1")
        batch = [OwnerUp(owner="o1"), *(Open(session=session(n), label="x" * 500) for n in range(100))]
        assert code_of(lambda: host.apply_all(batch)) == JournalCode.JOURNAL_UNWRITABLE
        assert host.registry is before
        assert len(host.journal) == 0
        assert list(host.journal.rows()) == []


@pytest.mark.parametrize(("level", "waits"), [("process", 1), (Level.POWER, 2)])
def test_a_level_says_what_a_commit_waits_for(path: Path, level: str, waits: int):
    with JournaledRegistry.open(path, CONFIG, EPOCH, level) as host:
        synchronous = lambda: host.journal._writer._db.execute("PRAGMA synchronous").fetchone()[0]  # noqa: E731
        assert host.apply(OwnerUp(owner="o1")).ok
        assert synchronous() == waits
        assert not host.apply(REFUSED).ok
        assert synchronous() == 1, "a refusal is not waited for"
        host.apply_all([REFUSED, OwnerUp(owner="o2")])
        assert synchronous() == waits


def test_an_unknown_level_is_refused_before_a_file_is_made(path: Path):
    with pytest.raises(InvalidField) as caught:
        Journal.open(path, CONFIG, EPOCH, "none")
    assert caught.value.field == "level"
    assert not path.exists()


def test_a_batch_with_an_accepted_event_without_a_form_is_not_written(path: Path):
    with Journal.open(path, CONFIG, EPOCH) as journal:
        with pytest.raises(Undecodable):
            journal.append_all([OwnerUp(owner="o1"), Heartbeat(owner=5)], [Done(), Done()])
        with pytest.raises(ValueError, match="every event has one"):
            journal.append_all([OwnerUp(owner="o1")], [])
        assert len(journal) == 0
        assert journal.append_all([], []) == 0
        assert journal.append(OwnerUp(owner="o1"), Done()) == 1

"""Snapshots: the same state as the replay, a shortcut that is passed over when in doubt, and what compaction keeps."""

import json
import sqlite3
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from lorafsm.events import BindFirst, Commit, OwnerUp
from lorafsm.holders import Holders
from lorafsm.outcomes import Refusal
from lorafsm.records import Registry, new_registry
from lorafsm.registry import step
from lorafsm_journal import Journal, JournalCode, JournaledRegistry, JournalError, Undecodable, snapshots
from lorafsm_journal.codec import decode_registry, encode_registry
from lorafsm_journal.forms import form_of
from tests.adapters import journal_histories as made
from tests.adapters.journal_stories import CONFIG, EPOCH, life, session
from tests.core import story


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "registry.journal"


def lived(path: Path, every: int) -> Registry:
    with JournaledRegistry.open(path, CONFIG, EPOCH, snapshot_every=every) as host:
        for event in life():
            assert host.apply(event).ok
        return host.registry


def alter(path: Path, statement: str, *values: object) -> None:
    db = sqlite3.connect(path)
    db.execute(statement, values)
    db.commit()
    db.close()


def code_of(call) -> tuple[str, int | None]:
    with pytest.raises(JournalError) as caught:
        call()
    return caught.value.code, caught.value.row


# The text of a state


@given(made.histories())
@settings(max_examples=60, deadline=None)
def test_every_state_comes_back_and_its_text_is_canonical(events):
    for registry in made.states(events)[:: max(1, len(events) // 4)]:
        text = encode_registry(registry)
        assert decode_registry(text) == registry
        slow = {"Registry": form_of(Registry).write(registry, "Registry")}
        assert text == json.dumps(slow, sort_keys=True, separators=(",", ":")), "the compiled writer is the form"
        assert form_of(Registry).read(slow["Registry"], "Registry") == registry


def test_holders_of_many_sessions_come_back():
    held = Holders()
    for sequence in range(100_000):
        held = held.append(sequence, sequence)
    for position in range(0, 100_000, 3):
        held = held.remove(position)
    form = form_of(Holders)
    back = form.read(json.loads(json.dumps(form.write(held, ""))), "")
    assert back == held
    assert back.oldest() == held.oldest()


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ('"now":0', '"now":"0"', "Registry.now"),
        ('"owners":{}', '"owners":[]', "Registry.owners"),
        ('"versions":[]', '"versions":{}', "Registry.versions"),
        ('"versions":[]', '"versions":[[1]]', "Registry.versions[0]"),
        ('"receipts":[]', '"receipts":[[["commit","t"],{"Nothing":{}}]]', "Registry.receipts[0]"),
        ('"now":0,', "", "Registry"),
    ],
)
def test_a_state_is_read_strictly(old: str, new: str, field: str):
    text = encode_registry(new_registry(EPOCH, CONFIG))
    assert old in text
    with pytest.raises(Undecodable) as caught:
        decode_registry(text.replace(old, new))
    assert caught.value.field == field


# Recovery starts at the latest good one


@given(made.histories(), st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_recovery_from_a_snapshot_is_the_replay(events, every: int):
    with TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        with JournaledRegistry.open(path, made.CONFIG, made.EPOCH, snapshot_every=every) as host:
            for event in events:
                host.apply(event)
            expected = host.registry
        with Journal.read(path) as journal:
            found, verified = journal.recovered(), journal.verify()
        assert found.registry == verified.registry == expected == made.states(events)[-1]
        assert found.snapshot == max(verified.snapshots)
        assert verified.accepted + verified.refused == verified.rows == len(events)


def test_a_snapshot_is_due_after_so_many_accepted_events(path: Path):
    refused = BindFirst(session=evolve(session(0), owner="nobody"))
    with JournaledRegistry.open(path, CONFIG, EPOCH, snapshot_every=5) as host:
        for number, event in enumerate(life()[:12], 1):
            host.apply_all([event, refused])
            assert host.journal.recovered().snapshot == ((number // 5 * 10) or None)
        assert host.journal.verify().snapshots == (10, 20), "the latest two are kept"
    with Journal.read(path) as journal:
        found = journal.recovered()
        assert (found.snapshot, found.accepted) == (24, 0), "closing keeps one"


def test_what_was_journaled_after_the_snapshot_is_replayed(path: Path):
    events = life()
    with JournaledRegistry.open(path, CONFIG, EPOCH, snapshot_every=len(events) - 3) as host:
        host.apply_all(events[:-3])
        host.apply_all(events[-3:])
        found = host.journal.recovered()
        assert (found.snapshot, found.accepted) == (len(events) - 3, 3)
        assert found.registry == host.registry


def test_a_receipt_survives_in_a_snapshot(path: Path):
    commit = next(event for event in life() if isinstance(event, Commit))
    with JournaledRegistry.open(path, CONFIG, EPOCH, snapshot_every=1) as host:
        outcomes = {event: host.apply(event) for event in life()}
        host.compact()
    with JournaledRegistry.open(path, CONFIG, EPOCH) as host:
        assert host.apply(commit) == outcomes[commit]


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE snapshots SET state = replace(state, 'RECLAIMED', 'RETIRED')",
        "UPDATE snapshots SET chain = replace(chain, 'a', 'b')",
        "UPDATE snapshots SET digest = ''",
        "UPDATE snapshots SET number = number - 1",
    ],
)
def test_a_damaged_snapshot_is_passed_over_and_found(path: Path, damage: str):
    expected = lived(path, every=100)
    alter(path, damage)
    with Journal.read(path) as journal:
        found = journal.recovered()
        assert (found.registry, found.snapshot) == (expected, None)
        assert code_of(journal.verify) == (JournalCode.JOURNAL_CORRUPT, None)


def test_of_two_snapshots_the_good_one_is_taken(path: Path):
    expected = lived(path, every=10)
    alter(path, "UPDATE snapshots SET digest = '' WHERE number = (SELECT max(number) FROM snapshots)")
    with Journal.read(path) as journal:
        found = journal.recovered()
    assert (found.registry, found.snapshot) == (expected, 20)


def test_a_snapshot_of_another_state_is_found_by_verify(path: Path):
    registry = lived(path, every=0)
    other = step(registry, OwnerUp(owner="o7", now=9)).registry
    with Journal.open(path, CONFIG, EPOCH) as journal:
        journal.snapshot(other)
        assert code_of(journal.verify) == (JournalCode.JOURNAL_DIVERGED, len(life()))


def test_a_snapshot_of_another_journal_is_passed_over(path: Path):
    lived(path, every=0)
    with Journal.read(path) as journal:
        expected = journal.recover()
    state = encode_registry(new_registry("e9", CONFIG))
    with Journal.open(path, CONFIG, EPOCH) as journal:
        number, chain = journal._writer.head.number, journal._writer.head.chain
    row = (number, state, chain, snapshots.digest(number, state, chain))
    alter(path, "INSERT INTO snapshots VALUES (?, ?, ?, ?)", *row)
    with Journal.read(path) as journal:
        assert journal.recovered().registry == expected


def test_a_snapshot_that_cannot_be_written_takes_nothing_away(path: Path, monkeypatch: pytest.MonkeyPatch):
    with JournaledRegistry.open(path, CONFIG, EPOCH, snapshot_every=2) as host:
        failed = JournalError(JournalCode.JOURNAL_UNWRITABLE, "full")

        def refuse(registry: Registry) -> int:
            raise failed

        with monkeypatch.context() as patch:
            patch.setattr(host.journal, "snapshot", refuse)
            assert all(host.apply(event).ok for event in life()[:5])
            assert host.snapshot_fault is failed
        assert host.apply(life()[5]).ok
        assert host.snapshot_fault is None
        assert host.journal.recovered().snapshot == 6


# Compaction


def test_a_compacted_journal_goes_on(path: Path):
    events = life()
    with JournaledRegistry.open(path, CONFIG, EPOCH) as host:
        host.apply_all(events[:10])
        assert host.compact() == 10
        assert list(host.journal.rows()) == []
        host.apply_all(events[10:])
        assert host.compact() == len(events) - 10
        assert host.compact() == 0
        assert not host.apply(BindFirst(session=evolve(session(0), owner="nobody"))).ok
        expected = host.registry
    with JournaledRegistry.open(path, CONFIG, EPOCH) as host:
        assert host.registry == expected
        verified = host.journal.verify()
        assert (verified.base, verified.rows, verified.refused) == (len(events), len(events) + 1, 1)
        assert isinstance(next(iter(host.journal.rows())).outcome, Refusal)


def test_a_compacted_file_is_small(path: Path):
    with JournaledRegistry.open(path, CONFIG, EPOCH) as host:
        host.apply_all(life())
        refused = BindFirst(session=evolve(session(0), owner="nobody"))
        for _ in range(20):
            host.apply_all([refused] * 200)
        files = path, path.with_name(path.name + "-wal")
        before = sum(file.stat().st_size for file in files)
        assert host.compact() == 24 + 4_000
        assert sum(file.stat().st_size for file in files) < before / 10


def test_a_compaction_that_fails_drops_nothing(path: Path, monkeypatch: pytest.MonkeyPatch):
    with JournaledRegistry.open(path, CONFIG, EPOCH) as host:
        host.apply_all(life())
        with monkeypatch.context() as patch:
            patch.setattr("lorafsm_journal.journal.decode_registry", lambda text: new_registry(EPOCH, CONFIG))
            assert code_of(host.compact) == (JournalCode.JOURNAL_CORRUPT, len(life()))
        assert [row.event for row in host.journal.rows()] == life()
        assert host.apply(OwnerUp(owner="o7")).ok


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE snapshots SET state = replace(state, 'RECLAIMED', 'RETIRED')",
        "UPDATE about SET base = base - 1",
        "UPDATE about SET anchor = ''",
        "DELETE FROM snapshots",
    ],
)
def test_without_the_snapshot_at_its_base_nothing_is_guessed(path: Path, damage: str):
    lived(path, every=0)
    with JournaledRegistry.open(path, CONFIG, EPOCH) as host:
        host.compact()
    alter(path, damage)
    assert code_of(lambda: JournaledRegistry.open(path, CONFIG, EPOCH))[0] == JournalCode.JOURNAL_CORRUPT
    with Journal.read(path) as journal:
        assert code_of(journal.verify)[0] == JournalCode.JOURNAL_CORRUPT


def test_later_snapshots_do_not_push_out_the_one_at_the_base(path: Path):
    with JournaledRegistry.open(path, CONFIG, EPOCH, snapshot_every=3) as host:
        host.apply_all(life()[:4])
        host.compact()
        for event in life()[4:]:
            host.apply(event)
        assert host.journal.verify().snapshots[0] == 4
        assert len(host.journal.verify().snapshots) == 3


def test_the_epoch_of_the_stories_is_that_of_the_histories():
    assert made.EPOCH == story.EPOCH

"""The journal: what was told is on disk, what is on disk can be told again, and nothing bypasses `step`."""

import pickle
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from attrs import evolve

from lorafsm import registry as rules
from lorafsm.errors import InvalidField, LoraFsmError
from lorafsm.events import BindFirst, Commit, Heartbeat, Open, OwnerUp, Reserve
from lorafsm.identity import SessionKey, VersionKey
from lorafsm.lifecycle import VersionState
from lorafsm.manifest import Plan
from lorafsm.outcomes import Code, Done, Refusal
from lorafsm.records import Config, Registry, new_registry
from lorafsm.registry import Step
from lorafsm_journal import Journal, JournalCode, JournaledRegistry, JournalError, Malformed, Undecodable
from lorafsm_journal.rows import link
from tests.adapters.journal_stories import CONFIG, EPOCH, life, session

REFUSED = BindFirst(session=SessionKey(EPOCH, "nobody", 0))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "registry.journal"


def lived(path: Path, snapshot_every: int = 0) -> Registry:
    """A journal with a whole life in it, closed; the registry at its end."""
    with JournaledRegistry.open(path, CONFIG, EPOCH, snapshot_every=snapshot_every) as host:
        for event in life():
            outcome = host.apply(event)
            assert outcome.ok, f"{event} was answered {outcome}"
        return host.registry


def alter(path: Path, statement: str) -> None:
    db = sqlite3.connect(path)
    db.execute(statement)
    db.commit()
    db.close()


def code_of(call) -> tuple[str, int | None]:
    with pytest.raises(JournalError) as caught:
        call()
    return caught.value.code, caught.value.row


# What was told is there again


def test_a_life_comes_back(path: Path):
    registry = lived(path)
    assert registry.versions[VersionKey(EPOCH, 1)].state is VersionState.RECLAIMED
    assert registry.default == VersionKey(EPOCH, 2)
    with JournaledRegistry.open(path, CONFIG, EPOCH) as again:
        assert again.registry == registry
        assert len(again.journal) == len(life())


def test_a_life_goes_on_where_it_stopped(path: Path):
    events = life()
    for event in events:
        with JournaledRegistry.open(path, CONFIG, EPOCH) as host:
            assert host.apply(event).ok
    with Journal.read(path) as journal:
        assert [row.event for row in journal.rows()] == events
        assert [row.number for row in journal.rows()] == list(range(1, len(events) + 1))


@pytest.mark.parametrize("snapshot_every", [0, 3])
def test_a_version_counter_that_went_back_is_refused_after_recovery(path: Path, snapshot_every: int):
    """A trainer that comes back from an old checkpoint; the registry came back from its rows, or from a snapshot."""
    lived(path, snapshot_every)
    skipped = Reserve(key=VersionKey(EPOCH, 0), digest="0" * 64, plan=Plan(0, "f" * 64), token="again")
    with JournaledRegistry.open(path, CONFIG, EPOCH) as host:
        refused = host.apply(skipped)
        assert isinstance(refused, Refusal)
        assert (refused.code, refused.field) == (Code.VERSION_BACKWARDS, "key")


def test_a_receipt_is_the_same_after_recovery(path: Path):
    commit = next(event for event in life() if isinstance(event, Commit))
    with JournaledRegistry.open(path, CONFIG, EPOCH) as host:
        outcomes = {event: host.apply(event) for event in life()}
    with JournaledRegistry.open(path, CONFIG, EPOCH) as host:
        before = host.registry
        assert host.apply(commit) == outcomes[commit]
        assert host.registry == before


def test_the_journal_is_written_before_the_state_is_seen(path: Path, monkeypatch: pytest.MonkeyPatch):
    with JournaledRegistry.open(path, CONFIG, EPOCH) as host:
        before, append_all, seen = host.registry, host.journal.append_all, []

        def watched(events, outcomes):
            seen.append(host.registry)
            return append_all(events, outcomes)

        monkeypatch.setattr(host.journal, "append_all", watched)
        assert host.apply(OwnerUp(owner="o1")).ok
        assert seen == [before]
        assert host.registry != before


def test_the_caller_gets_the_effects(path: Path):
    with JournaledRegistry.open(path, CONFIG, EPOCH) as host:
        for event in life():
            expected = rules.step(host.registry, event)
            assert host.step(event) == expected


# Refusals


def test_a_refusal_is_journaled_and_changes_nothing(path: Path):
    with JournaledRegistry.open(path, CONFIG, EPOCH) as host:
        assert host.apply(OwnerUp(owner="o1", now=3)).ok
        before = host.registry
        outcome = host.apply(REFUSED)
        assert isinstance(outcome, Refusal)
        assert outcome.code is Code.UNKNOWN_OWNER
        assert host.registry is before
    with Journal.read(path) as journal:
        assert [row.outcome.ok for row in journal.rows()] == [True, False]
        assert journal.recover() == before


def test_refusals_play_no_part_in_recovery(path: Path):
    with Journal.open(path, CONFIG, EPOCH) as journal:
        # A later version of the rules may refuse otherwise, or not at all.
        journal.append(OwnerUp(owner="o1"), Refusal(Code.NOT_NEEDED, "not today"))
        assert journal.recover() == new_registry(EPOCH, CONFIG)


def test_a_malformed_event_leaves_a_row_without_its_contents(path: Path):
    bad = Open(session=("e1", "o1", 0), label="secret")
    with JournaledRegistry.open(path, CONFIG, EPOCH) as host:
        outcome = host.apply(bad)
        assert isinstance(outcome, Refusal)
        assert (outcome.code, outcome.field) == (Code.BAD_INPUT, "session")
        [row] = host.journal.rows()
    assert isinstance(row.event, Malformed)
    assert "Open.session" in row.event.text
    assert "secret" not in path.read_bytes().decode("latin-1")
    with JournaledRegistry.open(path, CONFIG, EPOCH) as host:
        assert host.registry == new_registry(EPOCH, CONFIG)


def test_an_accepted_event_without_a_form_is_not_written(path: Path):
    with Journal.open(path, CONFIG, EPOCH) as journal:
        with pytest.raises(Undecodable):
            journal.append(Heartbeat(owner=5), Done())
        assert len(journal) == 0
        assert journal.append(OwnerUp(owner="o1"), Done()) == 1


def test_rows_print_on_one_line(path: Path):
    with JournaledRegistry.open(path, CONFIG, EPOCH) as host:
        host.apply(OwnerUp(owner="o1"))
        host.apply(REFUSED)
        first, second = map(str, host.journal.rows())
    assert first == "1 OwnerUp -> Lease"
    assert second.startswith("2 BindFirst -> UNKNOWN_OWNER: ")


# Nothing bypasses step


def refuse_all(registry: Registry, event: object) -> Step:
    return Step(registry, Refusal(Code.NOT_NEEDED, "this step refuses everything"))


def test_apply_is_step(path: Path, monkeypatch: pytest.MonkeyPatch):
    with JournaledRegistry.open(path, CONFIG, EPOCH) as host:
        before = host.registry
        monkeypatch.setattr("lorafsm.registry.step", refuse_all)
        for event in life():
            assert host.apply(event) == Refusal(Code.NOT_NEEDED, "this step refuses everything")
        assert host.registry is before


def test_recovery_is_step(path: Path, monkeypatch: pytest.MonkeyPatch):
    lived(path)
    monkeypatch.setattr("lorafsm.registry.step", refuse_all)
    assert code_of(lambda: JournaledRegistry.open(path, CONFIG, EPOCH)) == (JournalCode.JOURNAL_DIVERGED, 1)


def test_a_row_that_is_now_answered_otherwise_is_named(path: Path):
    with Journal.open(path, CONFIG, EPOCH) as journal:
        owner = OwnerUp(owner="o1")
        journal.append(owner, rules.step(journal.recover(), owner).outcome)
        journal.append(Open(session=session(0)), Done())
    assert code_of(lambda: JournaledRegistry.open(path, CONFIG, EPOCH)) == (JournalCode.JOURNAL_DIVERGED, 2)
    # The refused recovery gave the lock back.
    Journal.open(path, CONFIG, EPOCH).close()


# Damage


@pytest.mark.parametrize(
    ("statement", "row"),
    [
        ("UPDATE entries SET event = replace(event, 'first', 'worst') WHERE event LIKE '%first%'", 11),
        ("UPDATE entries SET outcome = '{\"Done\":{}}' WHERE number = 4", 4),
        ("UPDATE entries SET chain = '' WHERE number = 7", 7),
        ("DELETE FROM entries WHERE number = 1", 1),
        ("DELETE FROM entries WHERE number = 5", 5),
        ("UPDATE entries SET number = number + 1000 WHERE number = 5", 5),
        ("INSERT INTO entries SELECT 1000, event, outcome, chain FROM entries WHERE number = 1", None),
    ],
)
def test_a_damaged_row_is_named(path: Path, statement: str, row: int | None):
    lived(path)
    alter(path, statement)
    expected = len(life()) + 1 if row is None else row
    assert code_of(lambda: JournaledRegistry.open(path, CONFIG, EPOCH)) == (JournalCode.JOURNAL_CORRUPT, expected)


def test_a_row_of_foreign_text_is_corrupt_even_with_a_good_check(path: Path):
    Journal.open(path, CONFIG, EPOCH).close()
    texts = '{"System":{"command":"ls"}}', '{"Done":{}}'
    db = sqlite3.connect(path)
    db.execute("INSERT INTO entries VALUES (1, ?, ?, ?)", (*texts, link("", *texts)))
    db.commit()
    db.close()
    assert code_of(lambda: JournaledRegistry.open(path, CONFIG, EPOCH)) == (JournalCode.JOURNAL_CORRUPT, 1)


def test_a_torn_file_is_corrupt_and_stays_as_it_is(path: Path):
    lived(path)
    data = bytearray(path.read_bytes())
    data[4096:] = b"\x5a" * (len(data) - 4096)
    path.write_bytes(data)
    code, _ = code_of(lambda: JournaledRegistry.open(path, CONFIG, EPOCH))
    assert code == JournalCode.JOURNAL_CORRUPT
    assert path.read_bytes()[4096:] == data[4096:]


# Who may write, and where


def test_a_second_writer_is_refused_in_this_process_and_in_another(path: Path):
    script = (
        "import sys; from lorafsm_journal import Journal; from lorafsm.records import Config\n"
        "try:\n    Journal.open(sys.argv[1], Config(), 'e1')\n"
        "except Exception as error:\n    print(error.code)\n"
        "else:\n    print('opened')\n"
    )

    def other() -> str:
        done = subprocess.run(
            [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True, timeout=60
        )
        return done.stdout.strip()

    with Journal.open(path, CONFIG, EPOCH):
        assert code_of(lambda: Journal.open(path, CONFIG, EPOCH)) == (JournalCode.JOURNAL_LOCKED, None)
        assert other() == "JOURNAL_LOCKED"
    assert other() == "opened"
    Journal.open(path, CONFIG, EPOCH).close()


def test_a_reader_looks_while_the_writer_writes(path: Path):
    with JournaledRegistry.open(path, CONFIG, EPOCH) as host:
        host.apply(OwnerUp(owner="o1"))
        with Journal.read(path) as reader:
            host.apply(OwnerUp(owner="o2"))
            assert [row.event.owner for row in reader.rows()] == ["o1", "o2"]
            assert reader.recover() == host.registry
            assert code_of(lambda: reader.append(OwnerUp(owner="o3"), Done()))[0] == JournalCode.JOURNAL_UNWRITABLE
            assert (reader.epoch, reader.config) == (EPOCH, CONFIG)


def test_a_read_only_file_is_refused_and_untouched(path: Path):
    registry = lived(path)
    path.chmod(0o444)
    data = path.read_bytes()
    with pytest.raises(JournalError, match="read-only; make it writable") as caught:
        JournaledRegistry.open(path, CONFIG, EPOCH)
    assert caught.value.code == JournalCode.JOURNAL_UNWRITABLE
    assert path.read_bytes() == data
    path.chmod(0o644)
    with JournaledRegistry.open(path, CONFIG, EPOCH) as host:
        assert host.registry == registry


def test_a_full_disk_leaves_the_state_and_the_journal_as_they_were(path: Path):
    with JournaledRegistry.open(path, CONFIG, EPOCH) as host:
        host.apply(OwnerUp(owner="o1"))
        [pages] = host.journal._writer._db.execute("PRAGMA page_count").fetchone()
        host.journal._writer._db.execute(f"PRAGMA max_page_count = {pages}")
        done, before = 0, host.registry

        def fill() -> None:
            nonlocal done, before
            while True:
                before = host.registry
                assert host.apply(Open(session=session(done), label="x" * 500)).ok
                done += 1

        with pytest.raises(JournalError, match="full") as caught:
            fill()
        assert caught.value.code == JournalCode.JOURNAL_UNWRITABLE
        assert done > 0
        assert host.registry is before
        assert len(host.journal) == 1 + done
        host.journal._writer._db.execute("PRAGMA max_page_count = 1000000")
        assert host.apply(Open(session=session(done), label="y")).ok
        after = host.registry
    with JournaledRegistry.open(path, CONFIG, EPOCH) as host:
        assert host.registry == after


class FailingCommit:
    """A connection whose commits fail, as when the disk goes away."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def execute(self, statement: str, *arguments):
        if statement == "COMMIT":
            raise sqlite3.OperationalError("disk I/O error")
        return self._db.execute(statement, *arguments)

    def executemany(self, statement: str, rows):
        return self._db.executemany(statement, rows)

    def close(self) -> None:
        self._db.close()


def test_after_a_failed_commit_only_recovery_knows(path: Path):
    with JournaledRegistry.open(path, CONFIG, EPOCH) as host:
        host.apply(OwnerUp(owner="o1"))
        before = host.registry
        host.journal._writer._db = FailingCommit(host.journal._writer._db)
        assert code_of(lambda: host.apply(OwnerUp(owner="o2"))) == (JournalCode.JOURNAL_UNCERTAIN, 2)
        assert host.registry is before
        assert code_of(lambda: host.apply(OwnerUp(owner="o3")))[0] == JournalCode.JOURNAL_UNCERTAIN
    with JournaledRegistry.open(path, CONFIG, EPOCH) as host:
        assert host.registry == before


def test_another_epoch_or_config_is_another_journal(path: Path):
    lived(path)
    assert code_of(lambda: Journal.open(path, CONFIG, "e2"))[0] == JournalCode.JOURNAL_MISMATCH
    assert code_of(lambda: Journal.open(path, evolve(CONFIG, owner_lease=1), EPOCH))[0] == JournalCode.JOURNAL_MISMATCH
    with pytest.raises(InvalidField) as caught:
        Journal.open(path.with_name("new"), Config(), "no/epoch")
    assert caught.value.field == "epoch"
    assert not path.with_name("new").exists()


@pytest.mark.parametrize("content", [b"not a database at all, but long enough " * 200, None])
def test_a_foreign_file_is_refused_and_untouched(path: Path, content: bytes | None):
    if content is None:
        alter(path, "CREATE TABLE other (x)")
    else:
        path.write_bytes(content)
    data = path.read_bytes()
    assert code_of(lambda: Journal.open(path, CONFIG, EPOCH)) == (JournalCode.JOURNAL_SCHEMA, None)
    assert code_of(lambda: Journal.read(path)) == (JournalCode.JOURNAL_SCHEMA, None)
    assert path.read_bytes()[100:] == data[100:]


def test_another_schema_version_is_refused(path: Path):
    lived(path)
    alter(path, "PRAGMA user_version = 1")
    assert code_of(lambda: Journal.open(path, CONFIG, EPOCH)) == (JournalCode.JOURNAL_SCHEMA, None)


def test_places_that_are_not_there(path: Path, tmp_path: Path):
    assert code_of(lambda: Journal.open(tmp_path / "no" / "j", CONFIG, EPOCH))[0] == JournalCode.JOURNAL_UNWRITABLE
    assert code_of(lambda: Journal.open(tmp_path, CONFIG, EPOCH))[0] == JournalCode.JOURNAL_UNWRITABLE
    assert code_of(lambda: Journal.read(path))[0] == JournalCode.JOURNAL_SCHEMA
    assert not path.exists()


def test_a_closed_journal_says_so(path: Path):
    host = JournaledRegistry.open(path, CONFIG, EPOCH)
    host.close()
    host.close()
    assert code_of(lambda: host.apply(OwnerUp(owner="o1"))) == (JournalCode.JOURNAL_CLOSED, None)
    assert code_of(lambda: list(host.journal.rows())) == (JournalCode.JOURNAL_CLOSED, None)


def test_errors_are_of_the_family_and_cross_processes():
    error = JournalError(JournalCode.JOURNAL_CORRUPT, "not what was written", 7)
    assert isinstance(error, LoraFsmError)
    back = pickle.loads(pickle.dumps(error))
    assert (back.code, back.row, str(back)) == (error.code, 7, "JOURNAL_CORRUPT [row 7]: not what was written")

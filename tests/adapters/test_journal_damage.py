"""Damage of every kind: found, named, never guessed over; what can be kept is kept, what is lost is said."""

import shutil
import sqlite3
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lorafsm.events import OwnerUp
from lorafsm.records import Registry, new_registry
from lorafsm.registry import step
from lorafsm_journal import (
    Journal,
    JournalCode,
    JournaledRegistry,
    JournalError,
    Row,
    cut,
    encode_event,
    encode_outcome,
)
from lorafsm_journal.rows import link
from tests.adapters.journal_stories import CONFIG, EPOCH, life

EVENTS = life()
LAST = len(EVENTS)
DAMAGED = (JournalCode.JOURNAL_CORRUPT, JournalCode.JOURNAL_SCHEMA, JournalCode.JOURNAL_UNWRITABLE)


def all_states() -> list[Registry]:
    found = [new_registry(EPOCH, CONFIG)]
    for event in EVENTS:
        found.append(step(found[-1], event).registry)
    return found


STATES = all_states()


def write(path: Path, snapshot_every: int = 0) -> None:
    with JournaledRegistry.open(path, CONFIG, EPOCH, snapshot_every=snapshot_every) as host:
        for event in EVENTS:
            assert host.apply(event).ok


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "registry.journal"


class Files(dict[str, bytes]):
    def __repr__(self) -> str:
        return "files"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """The bytes of journals: closed without and with snapshots, and of a writer that was killed (file and WAL)."""
    folder = tmp_path_factory.mktemp("journals")
    for name, every in (("plain", 0), ("snapshots", 7)):
        write(folder / name, every)
    host = JournaledRegistry.open(folder / "killed", CONFIG, EPOCH, snapshot_every=0)
    for event in EVENTS:
        assert host.apply(event).ok
    for suffix in ("", "-wal"):
        shutil.copy(folder / f"killed{suffix}", folder / f"copy{suffix}")
    host.close()
    return Files({name: (folder / name).read_bytes() for name in ("plain", "snapshots", "copy", "copy-wal")})


def alter(path: Path, statement: str) -> None:
    db = sqlite3.connect(path)
    db.execute(statement)
    db.commit()
    db.close()


def error_of(call) -> JournalError:
    with pytest.raises(JournalError) as caught:
        call()
    return caught.value


def recovered(path: Path) -> Registry | JournalError:
    try:
        with JournaledRegistry.open(path, CONFIG, EPOCH, snapshot_every=0) as host:
            return host.registry
    except JournalError as error:
        return error


# Bytes


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_changed_byte_changes_no_state(files: Files, data: st.DataObject):
    """Any byte of the file: the journal is refused, or recovers exactly what was acknowledged."""
    content = bytearray(files[data.draw(st.sampled_from(["plain", "snapshots"]))])
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        path.write_bytes(content)
        found = recovered(path)
        if isinstance(found, JournalError):
            assert found.code in DAMAGED
        else:
            assert found == STATES[-1]


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_file_cut_short_is_refused(files: Files, data: st.DataObject):
    content = files["plain"]
    length = data.draw(st.integers(1, len(content) - 1))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        path.write_bytes(content[:length])
        found = recovered(path)
        assert isinstance(found, JournalError)
        assert found.code in DAMAGED


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_a_torn_write_ahead_log_leaves_a_prefix(files: Files, data: st.DataObject):
    """Cut at any byte, or with any byte changed: whole batches up to there are in, nothing of the others is."""
    log = bytearray(files["copy-wal"])
    at = data.draw(st.integers(0, len(log) - 1))
    if data.draw(st.booleans()):
        del log[at:]
    else:
        log[at] ^= data.draw(st.integers(1, 255))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        path.write_bytes(files["copy"])
        path.with_name("journal-wal").write_bytes(log)
        found = recovered(path)
        assert isinstance(found, Registry), found
        with Journal.read(path) as journal:
            assert found == STATES[len(journal)]
            assert [row.event for row in journal.rows()] == EVENTS[: len(journal)]


def test_an_untouched_log_holds_everything(files: Files, path: Path):
    path.write_bytes(files["copy"])
    path.with_name(path.name + "-wal").write_bytes(files["copy-wal"])
    assert recovered(path) == STATES[-1]


# Rows


@given(
    row=st.integers(1, LAST),
    damage=st.sampled_from(
        [
            "UPDATE entries SET event = event || ' ' WHERE number = {row}",
            "UPDATE entries SET outcome = '{{\"Done\":{{}}}}' WHERE number = {row} AND outcome NOT LIKE '%Done%'",
            "UPDATE entries SET event = outcome, outcome = event WHERE number = {row}",
            "UPDATE entries SET chain = upper(chain) WHERE number = {row}",
            "UPDATE entries SET chain = 'é' WHERE number = {row}",
            "UPDATE entries SET event = CAST(x'ff' AS TEXT) WHERE number = {row}",
            "DELETE FROM entries WHERE number = {row}",
            "DELETE FROM entries WHERE number >= {row}",
            "UPDATE entries SET number = -number WHERE number = {row}",
        ]
    ),
    snapshots=st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_damage_to_any_one_row_is_found_by_verify(files: Files, row: int, damage: str, snapshots: bool):
    with TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        path.write_bytes(files["snapshots" if snapshots else "plain"])
        alter(path, damage.format(row=row))
        with Journal.read(path) as journal:
            before = list(_read(journal))
            unchanged = [r.event for r in before] == EVENTS and len(before) == LAST
            if unchanged:  # a statement that had nothing to change
                assert journal.verify().rows == LAST
                return
            assert [r.number for r in before] == list(range(1, row)), "the rows before it can be read"
            error = error_of(journal.verify)
            assert (error.code, error.row) == (JournalCode.JOURNAL_CORRUPT, row)
        found = recovered(path)
        assert found == STATES[-1] if isinstance(found, Registry) else found.code == JournalCode.JOURNAL_CORRUPT


def _read(journal: Journal) -> list[Row]:
    rows = []
    try:
        for row in journal.rows():
            rows.append(row)
    except JournalError:
        pass
    return rows


def forge(path: Path, texts: list[tuple[str, str]], *ends: int) -> None:
    """Rows that were never written by a journal, with checks that are right: one each, or at these rows."""
    Journal.open(path, CONFIG, EPOCH).close()
    db = sqlite3.connect(path)
    [chain] = db.execute("SELECT chain FROM head").fetchone()
    for first, end in pairwise((0, *(ends or range(1, len(texts) + 1)))):
        commit = texts[first:end]
        chain = link(chain, *[event for event, _ in commit], *[outcome for _, outcome in commit])
        for number, row in enumerate(commit, first + 1):
            db.execute("INSERT INTO entries VALUES (?, ?, ?, ?)", (number, *row, chain if number == end else None))
        db.execute("UPDATE head SET number = ?, chain = ?", (end, chain))
    db.commit()
    db.close()


def written(count: int) -> list[tuple[str, str]]:
    return [
        (encode_event(event), encode_outcome(step(state, event).outcome))
        for event, state in zip(EVENTS[:count], STATES, strict=False)
    ]


FOREIGN = '{"System":{"command":"ls"}}', '{"Done":{}}'
SPLIT = written(1)[0][0][:-1], '{"Done":{}}'  # with its neighbour it would be a list of two
OTHERWISE = written(1)[0][0], '{"Done":{}}'


@pytest.mark.parametrize(
    ("at", "texts", "code"),
    [
        (1, FOREIGN, "JOURNAL_CORRUPT"),
        (5, FOREIGN, "JOURNAL_CORRUPT"),
        (3, SPLIT, "JOURNAL_CORRUPT"),
        (2, OTHERWISE, "JOURNAL_DIVERGED"),
        (9, (written(1)[0][0] + " ", written(1)[0][1]), "JOURNAL_CORRUPT"),
        (4, (written(1)[0][0], "torn"), "JOURNAL_CORRUPT"),
    ],
)
def test_a_row_that_no_journal_wrote_is_named_though_its_check_is_right(
    path: Path, at: int, texts: tuple[str, str], code: str
):
    rows = written(10)
    rows[at - 1] = texts
    rows[9:] = [FOREIGN]  # a later fault, which is not to be the one that is named
    forge(path, rows)
    for call in (lambda: JournaledRegistry.open(path, CONFIG, EPOCH), lambda: Journal.read(path).verify()):
        error = error_of(call)
        assert (error.code, error.row) == (code, at)


@pytest.mark.parametrize("text", ["epoch = 'e9'", "id = 'other'", "config = replace(config, '30000', '30001')"])
def test_what_a_journal_says_of_itself_is_checked_too(path: Path, text: str):
    write(path)
    alter(path, f"UPDATE about SET {text}")
    assert error_of(lambda: Journal.read(path)).code == JournalCode.JOURNAL_CORRUPT


@pytest.mark.parametrize("head", ["number = number - 1", "number = number + 1", "chain = ''"])
def test_where_it_ends_is_checked_too(path: Path, head: str):
    write(path)
    alter(path, f"UPDATE head SET {head}")
    with Journal.read(path) as journal:
        error = error_of(journal.recover)
        assert (error.code, abs((error.row or 0) - LAST) <= 1) == (JournalCode.JOURNAL_CORRUPT, True)


# Cutting


@given(row=st.integers(1, LAST))
@settings(max_examples=30, deadline=None)
def test_what_is_kept_is_the_state_before_the_damage(files: Files, row: int):
    with TemporaryDirectory() as folder:
        path, new = Path(folder) / "journal", Path(folder) / "kept"
        path.write_bytes(files["plain"])
        alter(path, f"UPDATE entries SET outcome = 'torn' WHERE number = {row}")
        assert cut(path, row, new, drop_following=True).kept == row - 1
        with JournaledRegistry.open(new, CONFIG, EPOCH, snapshot_every=0) as host:
            assert host.registry == STATES[row - 1]
            assert all(host.apply(event).ok for event in EVENTS[row - 1 :])
            assert host.registry == STATES[-1]


def test_a_damaged_last_row_is_cut(path: Path, tmp_path: Path):
    write(path)
    alter(path, f"UPDATE entries SET outcome = 'torn' WHERE number = {LAST}")
    error = error_of(lambda: JournaledRegistry.open(path, CONFIG, EPOCH))
    damaged, new = path.read_bytes(), tmp_path / "kept.journal"
    assert (error.code, error.row) == (JournalCode.JOURNAL_CORRUPT, LAST)
    assert "lorafsm journal cut" in error.message
    done = cut(path, LAST, new)
    assert (done.kept, done.lost) == (LAST - 1, 1)
    assert path.read_bytes() == damaged, "the damaged file stays"
    with JournaledRegistry.open(new, CONFIG, EPOCH) as host:
        assert host.registry == STATES[-2]
        assert host.apply(EVENTS[-1]).ok
        assert host.journal.verify().rows == LAST


def test_what_was_cut_takes_the_place_of_the_damaged_one(path: Path, tmp_path: Path):
    write(path)
    alter(path, f"DELETE FROM entries WHERE number = {LAST}")
    cut(path, LAST, tmp_path / "kept")
    path.rename(tmp_path / "damaged")
    (tmp_path / "kept").rename(path)
    assert recovered(path) == STATES[-2]


def test_rows_after_the_damage_are_never_dropped_unasked(path: Path, tmp_path: Path):
    write(path)
    alter(path, "UPDATE entries SET outcome = 'torn' WHERE number = 9")
    new = tmp_path / "kept"
    error = error_of(lambda: cut(path, 9, new))
    assert (error.code, error.row) == (JournalCode.JOURNAL_UNCUT, 9)
    assert f"rows 10 to {LAST} follow it" in error.message
    assert not new.exists()
    done = cut(path, 9, new, drop_following=True)
    assert (done.kept, done.lost) == (8, LAST - 8)
    with Journal.read(new) as journal:
        assert journal.verify().registry == STATES[8]


def test_a_journal_that_recovers_from_a_later_snapshot_is_not_cut_unasked(path: Path, tmp_path: Path):
    write(path, snapshot_every=7)
    alter(path, "UPDATE entries SET outcome = 'torn' WHERE number = 9")
    error = error_of(lambda: cut(path, 9, tmp_path / "kept"))
    assert (error.code, error.row) == (JournalCode.JOURNAL_UNCUT, 9)
    assert f"snapshot after row {LAST}" in error.message
    with JournaledRegistry.open(path, CONFIG, EPOCH) as host:
        assert host.registry == STATES[-1]
        assert host.compact() == LAST
        assert host.journal.verify().registry == STATES[-1]


def test_a_compacted_journal_is_cut_too(path: Path, tmp_path: Path):
    with JournaledRegistry.open(path, CONFIG, EPOCH, snapshot_every=0) as host:
        host.apply_all(EVENTS[:10])
        host.compact()
        for event in EVENTS[10:]:
            host.apply(event)
    alter(path, f"UPDATE entries SET chain = '' WHERE number = {LAST}")
    assert cut(path, LAST, tmp_path / "kept").kept == LAST - 1
    with Journal.read(tmp_path / "kept") as journal:
        assert journal.verify().registry == STATES[-2]


def in_batches(path: Path, *ends: int) -> None:
    """All events, a commit up to each of these rows."""
    with JournaledRegistry.open(path, CONFIG, EPOCH, snapshot_every=0) as host:
        for first, end in pairwise((0, *ends)):
            host.apply_all(EVENTS[first:end])


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE entries SET outcome = 'torn' WHERE number = 9",
        "DELETE FROM entries WHERE number = 9",
        "UPDATE entries SET chain = 'é' WHERE number = 9",
        "UPDATE entries SET chain = NULL WHERE number = 11",
        "UPDATE entries SET event = outcome, outcome = event WHERE number = 11",
        "DELETE FROM entries WHERE number > 9",
    ],
)
def test_of_a_damaged_commit_no_row_is_believed(path: Path, tmp_path: Path, damage: str):
    """A commit is kept as a whole or not at all: its first row is named, and those before it are kept."""
    in_batches(path, 6, 11, LAST)
    alter(path, damage)
    with Journal.read(path) as journal:
        assert [row.number for row in _read(journal)] == list(range(1, 7))
        assert error_of(journal.verify).row == 7
    assert error_of(lambda: JournaledRegistry.open(path, CONFIG, EPOCH)).row == 7
    assert cut(path, 7, tmp_path / "kept", drop_following=True).kept == 6
    assert recovered(tmp_path / "kept") == STATES[6]


@pytest.mark.parametrize("at", [8, 11, 12])
def test_a_commit_that_is_cut_in_its_middle_ends_there(path: Path, tmp_path: Path, at: int):
    """The check is right, so the rows before the one that is now answered otherwise are what was written."""
    rows = written(LAST)
    rows[at - 1] = OTHERWISE
    forge(path, rows, 6, 11, LAST)
    error = error_of(lambda: JournaledRegistry.open(path, CONFIG, EPOCH))
    assert (error.code, error.row) == (JournalCode.JOURNAL_DIVERGED, at)
    assert cut(path, at, tmp_path / "kept", drop_following=True).kept == at - 1
    with JournaledRegistry.open(tmp_path / "kept", CONFIG, EPOCH, snapshot_every=0) as host:
        assert host.registry == STATES[at - 1]
        assert all(outcome.ok for outcome in host.apply_all(EVENTS[at - 1 :]))
        assert host.journal.verify().registry == STATES[-1]


@pytest.mark.parametrize(("row", "said"), [(8, "the first damaged row is 9"), (10, "the first damaged row is 9")])
def test_only_the_first_damaged_row_can_be_named(path: Path, tmp_path: Path, row: int, said: str):
    write(path)
    alter(path, "UPDATE entries SET outcome = 'torn' WHERE number = 9")
    error = error_of(lambda: cut(path, row, tmp_path / "kept", drop_following=True))
    assert error.code == JournalCode.JOURNAL_UNCUT
    assert said in error.message


def test_a_cut_needs_damage_a_new_file_and_no_writer(path: Path, tmp_path: Path):
    write(path)
    assert error_of(lambda: cut(path, 1, tmp_path / "kept")).code == JournalCode.JOURNAL_UNCUT
    (tmp_path / "there").touch()
    assert error_of(lambda: cut(path, 1, tmp_path / "there")).code == JournalCode.JOURNAL_UNWRITABLE
    assert error_of(lambda: cut(tmp_path / "none", 1, tmp_path / "kept")).code == JournalCode.JOURNAL_SCHEMA
    with JournaledRegistry.open(path, CONFIG, EPOCH) as host:
        assert error_of(lambda: cut(path, 1, tmp_path / "kept")).code == JournalCode.JOURNAL_LOCKED
        assert host.apply(OwnerUp(owner="o8")).ok
    assert not (tmp_path / "kept").exists()

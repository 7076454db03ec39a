"""Who may write: one writer, the latest; one journal an epoch; and only what the disk takes."""

import json
import resource
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from lorafsm.events import Open, OwnerUp
from lorafsm.outcomes import Done
from lorafsm_journal import Journal, JournalCode, JournaledRegistry, JournalError
from tests.adapters.journal_stories import CONFIG, EPOCH, life, session


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "registry.journal"


def code_of(call) -> str:
    with pytest.raises(JournalError) as caught:
        call()
    return caught.value.code


def opened(path: Path, epoch: str = EPOCH, **more) -> JournaledRegistry:
    return JournaledRegistry.open(path, CONFIG, epoch, **more)


def break_lock(path: Path) -> None:
    """As somebody does who believes the holder to be dead."""
    path.with_name(path.name + ".lock").unlink()


# Fencing


def test_of_two_registries_on_one_journal_one_wins(path: Path):
    with opened(path) as first:
        assert code_of(lambda: opened(path)) == JournalCode.JOURNAL_LOCKED
        assert first.apply(OwnerUp(owner="o1")).ok


def test_a_writer_whose_lock_was_broken_cannot_write_beside_its_successor(path: Path):
    first = opened(path)
    assert first.apply(OwnerUp(owner="o1")).ok
    break_lock(path)
    second = opened(path)
    assert (first.journal.writer, second.journal.writer) == (1, 2)
    assert second.registry == first.registry
    before = first.registry
    for _ in range(2):
        assert code_of(lambda: first.apply(OwnerUp(owner="o2"))) == JournalCode.JOURNAL_FENCED
    assert first.registry is before
    assert second.apply(OwnerUp(owner="o3")).ok
    first.close()
    assert second.apply(OwnerUp(owner="o4")).ok
    second.close()
    with Journal.read(path) as journal:
        assert [row.event.owner for row in journal.rows()] == ["o1", "o3", "o4"]
        assert journal.verify().registry == second.registry


def test_a_fenced_writer_keeps_no_snapshot(path: Path):
    first = opened(path, snapshot_every=2)
    assert first.apply(OwnerUp(owner="o1")).ok
    break_lock(path)
    with opened(path, snapshot_every=0) as second:
        assert code_of(lambda: first.journal.snapshot(first.registry)) == JournalCode.JOURNAL_FENCED
        first.close()
        assert second.journal.verify().snapshots == ()


def test_what_an_earlier_writer_saw_takes_nothing_back(path: Path):
    first = opened(path)
    break_lock(path)
    opened(path).close()
    first.close()  # it never wrote, and so never learnt that it was fenced
    assert json.loads(path.with_name(path.name + ".epochs").read_text())["epochs"][0]["writer"] == 2
    opened(path).close()


@pytest.mark.parametrize("successor", [True, False])
def test_a_writer_whose_file_was_replaced_tells_nothing_that_is_not_in_it(path: Path, successor: bool):
    with opened(path) as first:
        assert first.apply(OwnerUp(owner="o1")).ok
        before = first.registry
        path.rename(path.with_name("moved"))
        if successor:
            shutil.copy(path.with_name("moved"), path)
        assert code_of(lambda: first.apply(OwnerUp(owner="o2"))) == JournalCode.JOURNAL_FENCED
        assert code_of(lambda: first.apply(OwnerUp(owner="o3"))) == JournalCode.JOURNAL_FENCED
        assert first.registry is before


def test_a_row_slipped_in_by_hand_fences_the_writer(path: Path):
    with opened(path) as host:
        assert host.apply(OwnerUp(owner="o1")).ok
        db = sqlite3.connect(path)
        db.execute("UPDATE head SET number = number + 1")
        db.commit()
        db.close()
        assert code_of(lambda: host.apply(OwnerUp(owner="o2"))) == JournalCode.JOURNAL_FENCED


# Epochs


def test_an_epoch_is_not_begun_twice(path: Path):
    opened(path).close()
    for file in path.parent.glob("*.journal*"):
        if not file.name.endswith(".epochs"):
            file.unlink()
    assert code_of(lambda: opened(path)) == JournalCode.JOURNAL_EPOCH_USED
    assert not path.exists()
    opened(path, "e2").close()


def test_journals_that_share_a_list_share_their_epochs(path: Path, tmp_path: Path):
    shared = tmp_path / "epochs"
    opened(path, epochs=shared).close()
    other = tmp_path / "other.journal"
    assert code_of(lambda: opened(other, epochs=shared)) == JournalCode.JOURNAL_EPOCH_USED
    opened(other, "e2", epochs=shared).close()
    assert code_of(lambda: opened(path, epochs=shared)) == JournalCode.JOURNAL_EPOCH_OLD
    opened(other, "e2", epochs=shared).close()
    assert [entry["epoch"] for entry in json.loads(shared.read_text())["epochs"]] == [EPOCH, "e2"]


def test_an_older_epoch_is_not_gone_back_to(path: Path):
    opened(path).close()
    old = path.rename(path.with_name("old"))
    opened(path, "e2").close()
    path.rename(path.with_name("new"))
    old.rename(path)
    assert code_of(lambda: opened(path)) == JournalCode.JOURNAL_EPOCH_OLD
    path.with_name("new").rename(path)
    opened(path, "e2").close()


def test_another_journal_of_the_same_epoch_is_refused(path: Path, tmp_path: Path):
    opened(path).close()
    opened(tmp_path / "stranger").close()
    (tmp_path / "stranger").rename(path)
    assert code_of(lambda: opened(path)) == JournalCode.JOURNAL_EPOCH_USED


@pytest.mark.parametrize("clean", [True, False])
def test_an_older_copy_of_a_journal_is_refused(path: Path, clean: bool):
    with opened(path) as host:
        host.apply(OwnerUp(owner="o1"))
    backup = path.read_bytes()
    host = opened(path)
    host.apply(OwnerUp(owner="o2"))
    if clean:
        host.close()
    else:  # the host is gone without a word
        host.journal._writer._lock.release()
        host.journal._writer._db.close()
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    path.write_bytes(backup)
    assert code_of(lambda: opened(path)) == JournalCode.JOURNAL_BACKWARDS


@pytest.mark.parametrize("text", ["", "[]", '{"epochs": 1}', '{"epochs": [{"epoch": "e1"}]}'])
def test_a_list_of_epochs_that_says_nothing_is_refused(path: Path, text: str):
    path.with_name(path.name + ".epochs").write_text(text)
    assert code_of(lambda: opened(path)) == JournalCode.JOURNAL_CORRUPT
    assert not path.exists()


def test_a_list_of_epochs_that_cannot_be_written_is_refused(path: Path, tmp_path: Path):
    error = code_of(lambda: opened(path, epochs=tmp_path / "no" / "epochs"))
    assert error == JournalCode.JOURNAL_UNWRITABLE
    opened(path).close()


# The disk

FULL = """
import json, os, resource, sys
sys.path.insert(0, sys.argv[1])
from lorafsm.events import Open, OwnerUp
from lorafsm_journal import JournaledRegistry, JournalError
from tests.adapters.journal_stories import CONFIG, EPOCH, session
host = JournaledRegistry.open(sys.argv[2], CONFIG, EPOCH, sys.argv[3], snapshot_every=0)
host.apply(OwnerUp(owner="o1"))
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
done = 0
while True:
    before = host.registry
    try:
        assert host.apply(Open(session=session(done), label="x" * 500)).ok
    except JournalError as error:
        print(json.dumps([done, error.code, host.registry is before]), flush=True)
        break
    done += 1
os._exit(0)  # as a killed process: nothing is tidied
"""


@pytest.mark.parametrize("level", ["process", "power"])
def test_a_full_disk_is_said_before_the_reply(path: Path, level: str):
    """The size of files is limited, which SQLite sees as it sees a full disk: a write that fails."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", FULL, str(root), str(path), level]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    opens, code, unchanged = json.loads(done.stdout)
    assert opens > 10
    assert code in (JournalCode.JOURNAL_UNWRITABLE, JournalCode.JOURNAL_UNCERTAIN)
    assert unchanged
    with opened(path) as host:
        assert len(host.journal) - 1 in (opens, opens + 1), "the one without a reply is wholly there or wholly absent"
        assert len(host.registry.owners["o1"].sessions) == len(host.journal) - 1
        assert host.apply(Open(session=session(opens + 1), label="y")).ok
        assert host.journal.verify().registry == host.registry


def test_the_limit_of_that_test_is_only_the_childs():
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 200_000


def test_a_reader_writes_nothing(path: Path):
    with opened(path) as host:
        host.apply_all(life())
    data = path.read_bytes()
    with Journal.read(path) as reader:
        for write in (
            lambda: reader.append(OwnerUp(owner="o9"), Done()),
            lambda: reader.snapshot(host.registry),
            lambda: reader.compact(host.registry),
        ):
            assert code_of(write) == JournalCode.JOURNAL_UNWRITABLE
        assert reader.verify().registry == host.registry
    assert path.read_bytes() == data


def test_a_read_only_folder_is_refused(path: Path):
    opened(path).close()
    path.parent.chmod(0o555)
    try:
        assert code_of(lambda: opened(path)) == JournalCode.JOURNAL_UNWRITABLE
    finally:
        path.parent.chmod(0o755)
    opened(path).close()

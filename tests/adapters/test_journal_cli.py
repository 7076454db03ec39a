"""`lorafsm journal`: what it says of a whole journal and of a damaged one, on one line and as JSON."""

import json
import sqlite3
from pathlib import Path

import pytest

from lorafsm.events import BindFirst
from lorafsm.identity import SessionKey
from lorafsm_cli.main import app
from lorafsm_cli.one_line import CliError
from lorafsm_journal import Journal, JournaledRegistry
from lorafsm_tla.trace import read_story
from tests.adapters.journal_stories import CONFIG, EPOCH, life

ROWS = len(life()) + 1


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]):
    """Run a command in this process: (exit status, stdout, stderr)."""

    def command(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            app(["journal", *map(str, words)], prog_name="lorafsm")
        out = capsys.readouterr()
        return end.value.code if isinstance(end.value.code, int) else 0, out.out, out.err

    return command


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "registry.journal"
    with JournaledRegistry.open(path, CONFIG, EPOCH, snapshot_every=10) as host:
        host.apply_all(life())
        host.apply(BindFirst(session=SessionKey(EPOCH, "nobody", 0)))
        host.compact()
        host.apply_all(life())
    return path


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    path = tmp_path / "plain.journal"
    with JournaledRegistry.open(path, CONFIG, EPOCH, snapshot_every=0) as host:
        for event in life():
            host.apply(event)
        host.apply(BindFirst(session=SessionKey(EPOCH, "nobody", 0)))
    return path


def alter(path: Path, statement: str) -> None:
    db = sqlite3.connect(path)
    db.execute(statement)
    db.commit()
    db.close()


def test_verify_a_whole_one(run, plain: Path):
    code, out, err = run("verify", plain)
    assert (code, err) == (0, "")
    assert f"rows 1 to {ROWS}" in out
    assert f"{ROWS - 1} accepted, 1 refused" in out
    code, out, err = run("verify", plain, "--json")
    assert (code, err) == (0, "")
    facts = json.loads(out)
    assert facts == {
        "journal": str(plain),
        "ok": True,
        "epoch": EPOCH,
        "base": 0,
        "rows": ROWS,
        "accepted": ROWS - 1,
        "refused": 1,
        "snapshots": [],
    }


def test_verify_beside_the_writer(run, tmp_path: Path):
    path = tmp_path / "registry.journal"
    with JournaledRegistry.open(path, CONFIG, EPOCH) as host:
        host.apply(life()[0])
        assert json.loads(run("verify", path, "--json")[1])["rows"] == 1


def test_verify_a_damaged_one(run, plain: Path):
    alter(plain, "UPDATE entries SET outcome = 'torn' WHERE number = 9")
    for more in ((), ("--json",)):
        code, out, err = run("verify", plain, *more)
        assert (code, out) == (1, "")
        assert err.count("\n") == 1
        assert err.startswith("lorafsm: JOURNAL_CORRUPT [row 9]: ")
        assert "lorafsm journal cut" in err


def test_show(run, journal: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "160")
    code, out, err = run("show", journal, "--last", 5)
    assert (code, err) == (0, "")
    for text in (
        f"epoch {EPOCH}",
        "ConfirmReclaim",
        "ReclaimOrdered",
        f"rows {ROWS + 1} to {2 * ROWS - 1}",
        "writer 1",
    ):
        assert text in out, text
    assert "OwnerUp" not in out, "not among the last five"


def test_show_for_machines_and_without_tokens(run, plain: Path):
    code, out, err = run("show", plain, "--json")
    assert (code, err) == (0, "")
    facts = json.loads(out)
    assert (facts["epoch"], facts["rows"], facts["base"], facts["writer"]) == (EPOCH, ROWS, 0, 1)
    assert facts["config"]["capacity"] == CONFIG.capacity
    assert [row["row"] for row in facts["last"]] == list(range(ROWS - 19, ROWS + 1))
    assert facts["last"][-1]["code"] == "UNKNOWN_OWNER"
    assert "t1" not in out
    assert "token" not in out


def test_compact(run, plain: Path):
    with Journal.read(plain) as reader:
        expected = reader.recover()
    code, out, err = run("compact", plain, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == {"journal": str(plain), "dropped": ROWS, "base": ROWS}
    with Journal.read(plain) as reader:
        assert reader.verify().registry == expected
    assert "0 rows dropped" in run("compact", plain)[1]
    with JournaledRegistry.open(plain, CONFIG, EPOCH) as host:
        assert host.registry == expected
        code, out, err = run("compact", plain)
        assert (code, out) == (1, "")
        assert err.startswith("lorafsm: JOURNAL_LOCKED")


def test_a_compacted_journal_has_no_trace_to_check(run, plain: Path):
    assert run("compact", plain)[0] == 0
    with pytest.raises(CliError, match="was compacted"):
        read_story(plain)


def test_compact_verifies_first_unless_told_to_trust_the_snapshot(run, tmp_path: Path):
    path = tmp_path / "registry.journal"
    with JournaledRegistry.open(path, CONFIG, EPOCH, snapshot_every=10) as host:
        for event in life():
            host.apply(event)
        expected = host.registry
    alter(path, "UPDATE entries SET outcome = 'torn' WHERE number = 9")
    code, out, err = run("compact", path)
    assert (code, out) == (1, "")
    assert "[row 9]" in err
    assert run("compact", path, "--trust-snapshot")[0] == 0
    with Journal.read(path) as reader:
        assert reader.verify().registry == expected


def test_cut(run, plain: Path, tmp_path: Path):
    alter(plain, f"DELETE FROM entries WHERE number >= {ROWS - 1}")
    new = tmp_path / "kept"
    code, out, err = run("cut", plain, "--from", ROWS - 1, "--to", new)
    assert (code, out) == (1, "")
    assert "JOURNAL_UNCUT" in err
    assert f"rows {ROWS} to {ROWS} follow it" in err
    code, out, err = run("cut", plain, "--from", ROWS - 1, "--to", new, "--drop-following", "--json")
    assert (code, err) == (0, "")
    assert {**json.loads(out), "damage": ""} == {
        "journal": str(plain),
        "to": str(new),
        "kept": ROWS - 2,
        "lost": 2,
        "damage": "",
    }
    assert json.loads(run("verify", new, "--json")[1])["rows"] == ROWS - 2


@pytest.mark.parametrize("command", ["verify", "show", "compact"])
def test_no_journal_is_one_line(run, tmp_path: Path, command: str):
    (tmp_path / "text").write_text("not a journal, but long enough to be looked at " * 40)
    for name in ("none", "text"):
        code, out, err = run(command, tmp_path / name)
        assert (code, out) == (1, "")
        assert err.count("\n") == 1
        assert err.startswith("lorafsm: JOURNAL_SCHEMA")
    assert not (tmp_path / "none").exists()


def test_a_wrong_word_is_one_line(run):
    code, out, err = run("verfy")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1

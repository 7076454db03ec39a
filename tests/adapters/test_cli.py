"""The command line: what it says, where, and with which exit status."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lorafsm import box, invariants
from lorafsm_cli import demo, explore_boxes, lifecycles, status_tables
from lorafsm_cli.main import app
from lorafsm_journal import JournaledRegistry
from tests.adapters.journal_stories import CONFIG, EPOCH, life

SAMPLE = Path(__file__).parents[1] / "e2e" / "sample_report.json"  # made up; no result of a run


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]):
    """Run a command in this process: (exit status, stdout, stderr)."""

    def command(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            app(list(words), prog_name="lorafsm")
        out = capsys.readouterr()
        code = end.value.code
        return code if isinstance(code, int) else 0, out.out, out.err

    return command


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A journal that ends with a version half reclaimed."""
    path = tmp_path / "registry.journal"
    with JournaledRegistry.open(path, CONFIG, EPOCH) as host:
        for event in life()[:-1]:
            assert host.apply(event).ok
    return path


def test_without_a_command_it_says_what_it_can_do(run):
    status, out, err = run()
    assert (status, err) == (0, "")
    assert [name for name in ("demo", "status", "diagram", "explore") if name not in out] == []


def test_the_version(run):
    assert run("--version") == (0, "lorafsm 0.1.0\n", "")


@pytest.mark.parametrize(
    "words, status, said",
    [
        (["stats"], 2, "status"),
        (["--what"], 2, "--what"),
        (["status"], 2, "--journal"),
        (["demo"], 2, "--out"),
        (["demo", "--out", "x", "--engines", "1"], 2, "--engines"),
        (["demo", "--out", "x", "--engines", "two"], 2, "--engines"),
        (["demo", "--out", str(SAMPLE)], 2, "is a file"),
        (["status", "--journal", "no/such/file"], 1, "JOURNAL_SCHEMA"),
        (["status", "--journal", str(SAMPLE)], 1, "not a lorafsm journal"),
        (["diagram", "sessions"], 2, "one of version, attempt"),
        (["diagram", "session", "--format", "svg"], 2, "mermaid"),
        (["explore", "--box", "rolback"], 2, "did you mean 'rollback'"),
        (["explore", "--max-states", "0"], 2, "--max-states"),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_an_error_is_one_line(run, words: list[str], status: int, said: str, as_json: bool):
    takes_json = words[0] in ("demo", "status", "diagram", "explore")
    code, out, err = run(*words, *(["--json"] if as_json and takes_json else []))
    assert (code, out) == (status, "")
    assert err.startswith("lorafsm: ")
    assert err.count("\n") == 1
    assert said in err


def test_a_bug_is_one_line_too_and_can_be_traced(run, journal: Path, monkeypatch: pytest.MonkeyPatch):
    def broken(*_: object) -> None:
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr(status_tables, "show", broken)
    code, _, err = run("status", "--journal", str(journal))
    assert (code, err) == (1, "lorafsm: RuntimeError: first line second line\n")
    monkeypatch.setenv("LORAFSM_TRACEBACK", "1")
    assert "Traceback" in run("status", "--journal", str(journal))[2]


def test_an_interrupt_ends_with_130(run, journal: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(status_tables, "show", interrupted)
    code, _, err = run("status", "--journal", str(journal))
    assert (code, err.strip()) == (130, "lorafsm: interrupted")
    assert err.count("\n") <= 1


def test_status_for_people(run, journal: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "160")
    code, out, err = run("status", "--journal", str(journal))
    assert (code, err) == (0, "")
    for text in ("e1-2 at revision 2", "RECLAIMING", "Reclaim r1 of e1-1", "ORDERED", "UNLOADED", "e1/o1/1"):
        assert text in out, text
    assert "CAPACITY_ERROR" in out
    assert "unload not confirmed by E1" in out


def test_status_for_machines(run, journal: Path):
    code, out, err = run("status", "--journal", str(journal), "--json")
    assert (code, err) == (0, "")
    seen = json.loads(out)
    assert (seen["default"], seen["revision"], seen["epoch"]) == ("e1-2", 2, "e1")
    assert seen["next_reserve"]["code"] == "CAPACITY_ERROR"
    assert seen["journal_rows"] == len(life()) - 1
    assert [u["state"] for u in seen["reclaims"][0]["unloads"]] == ["UNLOADED", "ORDERED"]


def test_status_can_be_asked_beside_the_writer(run, tmp_path: Path):
    path = tmp_path / "registry.journal"
    with JournaledRegistry.open(path, CONFIG, EPOCH) as host:
        host.apply(life()[0])
        assert json.loads(run("status", "--journal", str(path), "--json")[1])["live_owners"] == 1


@pytest.mark.parametrize(
    "ms, text",
    [(0, "0 ms"), (999, "999 ms"), (12_340, "12.3 s"), (245_000, "4 min 05 s"), (11_220_000, "3 h 07 min")],
)
def test_durations(ms: int, text: str):
    assert status_tables.duration(ms) == text


def pretend_demo(monkeypatch: pytest.MonkeyPatch, report: dict[str, Any], noise: str = "") -> list[Any]:
    """Stand in for the main job: `gpu_e2e.cpu` needs real engines."""
    calls: list[Any] = []

    def run_demo(out: Path, engines: int, progress: Any, *, transport: str, registry: str) -> dict[str, Any]:
        calls.append((out, engines, transport, registry))
        progress("engines [E0] are up")
        if noise:
            print(noise)
        return report

    module = ModuleType("gpu_e2e.cpu")
    module.run_demo = run_demo  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gpu_e2e.cpu", module)
    monkeypatch.setattr(demo, "missing", lambda: ())
    return calls


def sample(ok: bool = True) -> dict[str, Any]:
    report = json.loads(SAMPLE.read_text())
    report["ok"] = report["expectations"][2]["ok"] = ok
    return report


def test_demo_shows_expectations_on_stdout_and_progress_on_stderr(run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("COLUMNS", "160")
    calls = pretend_demo(monkeypatch, sample())
    code, out, err = run("demo", "--out", str(tmp_path), "--engines", "3")
    assert calls == [(tmp_path, 3, "torch", "")]
    assert code == 0
    assert "engines [E0] are up" in err
    assert "S_old is bound to A" in out
    assert "every expectation held" in out
    assert "engines [E0]" not in out


def test_demo_fails_when_an_expectation_fails(run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    pretend_demo(monkeypatch, sample(ok=False))
    code, out, _ = run("demo", "--out", str(tmp_path), "--quiet")
    assert code == 1
    assert "FAILED" in out
    assert "1 of 24 failed" in out


def test_demo_prints_the_report_and_nothing_else(run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    pretend_demo(monkeypatch, sample(), noise="a library says hello")
    code, out, err = run("demo", "--out", str(tmp_path), "--json")
    assert code == 0
    assert json.loads(out) == sample()
    assert "a library says hello" in err


def test_quiet_is_quiet(run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    pretend_demo(monkeypatch, sample())
    assert run("demo", "--out", str(tmp_path), "--json", "--quiet")[2] == ""


def test_demo_without_its_extras_says_what_installs_them(run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(demo, "find_spec", lambda name: None if name in ("torch", "sglang") else object())
    code, out, err = run("demo", "--out", str(tmp_path / "new"))
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "torch, sglang" in err
    assert "make venv" in err
    assert "pip install" in err
    assert not (tmp_path / "new").exists()


def test_diagrams(run, monkeypatch: pytest.MonkeyPatch):
    drawing = ModuleType("lorafsm_cli.diagram")
    drawing.mermaid = lambda name: f"stateDiagram-v2\n    [*] --> {name}\n"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lorafsm_cli.diagram", drawing)
    assert "--> session" in run("diagram", "session")[1]
    every = run("diagram")[1]
    assert [name for name in lifecycles.LIFECYCLES if f"--> {name}" not in every] == []
    assert set(json.loads(run("diagram", "--json")[1])) == set(lifecycles.LIFECYCLES)


def test_explore_names_its_boxes(run):
    code, out, _ = run("explore", "--list")
    assert code == 0
    assert "one bucket" in out.splitlines()
    assert json.loads(run("explore", "--list", "--json")[1]) == out.splitlines()


def test_explore_a_box_to_its_end(run):
    code, out, _ = run("explore", "--box", "no version yet", "--json")
    assert code == 0
    [seen] = json.loads(out)
    assert (seen["frontier"], seen["violations"], seen["ok"]) == (0, [], True)
    assert seen["states"] > 1
    assert seen["taken"]["bind_first"]["NO_PUBLISHED_VERSION"] > 0


def test_a_box_that_was_not_seen_to_its_end_is_not_ok(run):
    code, out, _ = run("explore", "--box", "one bucket", "--max-states", "5")
    assert code == 1
    assert "limit" in out


def test_a_broken_invariant_comes_with_a_program_that_runs(run, monkeypatch: pytest.MonkeyPatch):
    def no_second_state(registry: Any) -> tuple[str, ...]:
        return ("nobody may bind",) if any(o.sessions for o in registry.owners.values()) else ()

    small = box.Box(events=frozenset({"owner_up", "open"}))
    monkeypatch.setattr(invariants, "check", no_second_state)
    monkeypatch.setattr(explore_boxes, "BOXES", {"small": small})
    code, out, _ = run("explore", "--box", "small", "--json")
    assert code == 1
    [seen] = json.loads(out)
    [violation] = seen["violations"]
    assert violation["sentences"] == ["nobody may bind"]
    ran = subprocess.run([sys.executable, "-c", violation["program"]], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert len(ran.stdout.splitlines()) == violation["events"] == 2
    shown = run("explore", "--box", "small")[1]
    assert "nobody may bind" in shown
    assert "BROKEN" in shown


def test_a_reader_that_stops_early_is_no_error(journal: Path):
    """The installed command, its reader gone before it writes."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    program = "import sys; from lorafsm_cli.main import app; app(sys.argv[1:])"
    command = [sys.executable, "-c", program, "status", "--journal", str(journal), "--json"]
    try:
        done = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, text=True, timeout=60)
    finally:
        os.close(write_end)
    assert (done.returncode, done.stderr) == (1, "")

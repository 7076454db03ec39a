"""The main job's bad input and bad ends, without an engine: whose folder it is, and what a broken run says."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

for _name in ("torch", "transformers", "safetensors", "psutil", "httpx", "jinja2", "ray"):
    pytest.importorskip(_name, reason=f"not installed: {_name} (`make test` installs it)")

from gpu_e2e import cpu, fleet, hosting  # noqa: E402
from lorafsm.errors import InvalidField  # noqa: E402
from lorafsm.records import Config  # noqa: E402
from lorafsm_cli import demo  # noqa: E402
from lorafsm_cli.main import app  # noqa: E402
from lorafsm_journal import JournaledRegistry  # noqa: E402


def tree(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() if p.is_file() else "" for p in sorted(folder.rglob("*"))}


@pytest.mark.parametrize("file", ["notes.txt", "model/weights", "logs/mine.log", "report.json"])
def test_a_folder_with_somebodys_files_is_refused_and_untouched(
    tmp_path: Path, file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """Names that a run would use prove nothing without the mark that a run leaves."""
    monkeypatch.setattr(demo, "missing", lambda: ())
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("precious")
    before = tree(tmp_path)
    with pytest.raises(SystemExit) as end:
        app(["demo", "--out", str(tmp_path), "--json", "--quiet"], prog_name="lorafsm")
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (1, "")
    assert err.count("\n") == 1
    assert file.split("/")[0] in err
    assert "name an empty or a new folder" in err
    assert tree(tmp_path) == before


def test_the_folder_of_an_earlier_run_is_cleared(tmp_path: Path):
    out = tmp_path / "a" / "b"
    cpu._clear(out)
    with JournaledRegistry.open(out / "journal.sqlite", Config(), "e1"):
        left = {path.name for path in out.iterdir()}
    assert {"journal.sqlite.epochs", "journal.sqlite.lock"} <= left, "all that a journal leaves beside it"
    for name in ("report.json", "journal.sqlite-shm"):
        (out / name).write_text("old")
    for name in ("model", "store", "hosts", "logs"):
        (out / name).mkdir()
        (out / name / "old").write_text("old")
    cpu._clear(out)
    assert set(tree(out)) == {".lorafsm-demo"}
    (out / "mine.txt").write_text("precious")
    with pytest.raises(InvalidField, match=r"mine\.txt"):
        cpu._clear(out)


@pytest.mark.parametrize("engines", [-1, 0, 1, 17])
def test_the_number_of_engines_is_bounded_before_anything_is_written(tmp_path: Path, engines: int):
    with pytest.raises(InvalidField, match="engines"):
        cpu.run_demo(tmp_path / "out", engines, print)
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("registry", ["redis", "Ray"])
def test_an_unknown_registry_is_refused_before_anything_is_written(tmp_path: Path, registry: str):
    with pytest.raises(InvalidField, match="ray, local"):
        cpu.run_demo(tmp_path / "out", 2, print, registry=registry)
    assert tree(tmp_path) == {}


def test_without_ray_the_registry_is_local_and_ray_is_refused(monkeypatch: pytest.MonkeyPatch):
    assert hosting.chosen() == hosting.chosen("ray") == "ray"
    monkeypatch.setattr(hosting, "find_spec", lambda name: None)
    assert hosting.chosen() == "local"
    with pytest.raises(InvalidField, match=r"lorafsm\[ray\]"):
        hosting.chosen("ray")


def test_an_unknown_transport_is_refused_before_anything_is_written(tmp_path: Path):
    with pytest.raises(InvalidField, match="torch, store"):
        cpu.run_demo(tmp_path / "out", 2, print, transport="carrier pigeon")
    assert tree(tmp_path) == {}


class Process:
    """Stands in for an engine's process; counts how often it was stopped."""

    def __init__(self, name: str, error: str = "") -> None:
        self.log_path = Path(f"/logs/engine-{name}.log")
        self.stopped = 0
        self.error = error

    def start(self) -> None:
        if self.error:
            raise OSError(self.error)

    def stop(self) -> None:
        self.stopped += 1
        if self.error:
            raise RuntimeError(self.error)


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> dict[str, Process]:
    """A run without model and engines, up to the story."""
    them = {name: Process(name) for name in ("E0", "E1")}
    monkeypatch.setattr(cpu, "write_model", lambda path: path)
    monkeypatch.setattr(fleet, "fingerprint", lambda path: "f" * 64)
    monkeypatch.setattr(fleet, "launch", lambda *_: them)
    return them


def test_a_run_that_breaks_off_stops_the_engines_and_names_the_logs(tmp_path, processes, monkeypatch):
    def broken(*_: object) -> None:
        raise TimeoutError("E1 never came")

    monkeypatch.setattr(cpu, "_play", broken)
    with pytest.raises(cpu.RunFailed, match=r"E1 never came.*engine-E0\.log, /logs/engine-E1\.log"):
        cpu.run_demo(tmp_path / "out", 2, print)
    assert [p.stopped for p in processes.values()] == [1, 1]


def test_an_expectation_that_failed_names_the_logs_too(tmp_path, processes, monkeypatch):
    def not_ok(*_: object) -> dict[str, bool]:
        return {"ok": False}

    said: list[str] = []
    monkeypatch.setattr(cpu, "_play", not_ok)
    assert cpu.run_demo(tmp_path / "out", 2, said.append) == {"ok": False}
    assert "engine-E0.log, /logs/engine-E1.log" in said[-1]
    assert [p.stopped for p in processes.values()] == [1, 1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_ended_from_outside_stops_the_engines(tmp_path, processes, monkeypatch, number: signal.Signals):
    before = signal.getsignal(signal.SIGTERM)

    def ended(*_: object) -> None:
        signal.raise_signal(number)

    monkeypatch.setattr(cpu, "_play", ended)
    interrupts = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores SIGINT
    try:
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            cpu.run_demo(tmp_path / "out", 2, print)
    finally:
        signal.signal(signal.SIGINT, interrupts)
    assert [p.stopped for p in processes.values()] == [1, 1]
    assert signal.getsignal(signal.SIGTERM) is before


def test_one_engine_that_cannot_be_stopped_does_not_keep_the_other():
    first, second = Process("E0", error="outlived SIGKILL"), Process("E1", error="outlived it too")
    with pytest.raises(RuntimeError, match="outlived"):
        fleet.stop_all({"E0": first, "E1": second})
    assert (first.stopped, second.stopped) == (1, 1)


def test_an_engine_that_cannot_even_be_launched_ends_those_that_were(monkeypatch, tmp_path):
    made = iter([Process("E0"), SimpleNamespace(start=_fails, stop=lambda: None)])
    first: list[Process] = []

    def make(*_: object) -> object:
        process = next(made)
        first.append(process)
        return process

    monkeypatch.setattr(fleet, "EngineProcess", make)
    monkeypatch.setattr(fleet, "cpu_flags", lambda model: ())
    monkeypatch.setattr(fleet, "cpu_environment", dict)
    with pytest.raises(OSError, match="no python"):
        fleet.launch(["E0", "E1"], tmp_path, tmp_path)
    assert first[0].stopped == 1


def _fails() -> None:
    raise OSError("no python")

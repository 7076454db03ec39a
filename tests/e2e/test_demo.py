"""The main job through its command, once a session, on two real engines: what it must show, what it must not leave."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from attrs import field, frozen

psutil = pytest.importorskip("psutil", reason="not installed: psutil (`make test` installs it)")
pytest.importorskip("ray", reason="not installed: ray (`make test` installs it)")
pytest.importorskip("jinja2", reason="not installed: jinja2 (`make test` installs it)")

from gpu_e2e.report import SCHEMA  # noqa: E402
from lorafsm.invariants import check  # noqa: E402
from lorafsm_cli import demo  # noqa: E402
from lorafsm_journal import Journal  # noqa: E402
from lorafsm_sglang import control_calls  # noqa: E402
from lorafsm_tla.trace import check_journal  # noqa: E402
from tests.spec.test_tla_trace import needs_tlc  # noqa: E402

pytestmark = [pytest.mark.engines, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
DEADLINE_S = 280


@frozen
class Run:
    """One run of the command: its exit status, what it printed, what it wrote, and the processes that it started."""

    out: Path
    status: int
    stdout: str
    stderr: str
    started: tuple[psutil.Process, ...]
    names: frozenset[str]  # of those processes
    report: dict[str, Any] = field(factory=dict)


def watched(command: list[str], out: Path, scratch: Path, interrupt_at: str = "") -> Run:
    """Run a command and note every process below it while it runs.

    With `interrupt_at`, press Ctrl-C once stderr says so: SIGINT to all of the terminal's foreground processes.
    """
    seen: dict[tuple[int, float], psutil.Process] = {}
    names: set[str] = set()
    stdout, stderr = scratch / "stdout", scratch / "stderr"
    with stdout.open("wb") as to_out, stderr.open("wb") as to_err:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=to_out,
            stderr=to_err,
            process_group=0,
            preexec_fn=_hears_ctrl_c,
        )
        top = psutil.Process(process.pid)
        end = time.monotonic() + DEADLINE_S
        while True:
            try:
                for child in top.children(recursive=True):
                    seen.setdefault((child.pid, child.create_time()), child)
                    names.add(child.name())
            except psutil.NoSuchProcess:
                pass
            if interrupt_at and interrupt_at in stderr.read_text():
                interrupt_at = ""
                os.killpg(process.pid, signal.SIGINT)
            try:
                status = process.wait(0.5)
                break
            except subprocess.TimeoutExpired:
                if time.monotonic() > end:
                    process.terminate()  # it stops its engines
                    process.wait(60)
                    pytest.fail(f"still running after {DEADLINE_S} s: {stderr.read_text()[-2000:]}")
    report = json.loads((out / "report.json").read_text()) if (out / "report.json").is_file() else {}
    return Run(out, status, stdout.read_text(), stderr.read_text(), tuple(seen.values()), frozenset(names), report)


def left(run: Run) -> list[str]:
    """Processes of a run that are still there; those that Ray started end within moments of it."""
    _, alive = psutil.wait_procs(run.started, timeout=10)
    return [str(p) for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture(scope="session", autouse=True)
def _everything_is_installed() -> None:
    if missing := demo.missing():
        pytest.skip(f"not installed: {', '.join(missing)} (`make test` installs them)")


def _hears_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # where these tests are a shell's background job, SIGINT is ignored


def demo_in(scratch: Path, *options: str, interrupt_at: str = "") -> Run:
    """One run of the command."""
    out = scratch / "out"
    program = "from lorafsm_cli.main import app; app(prog_name='lorafsm')"
    command = [sys.executable, "-c", program, "demo", "--out", str(out), "--json", *options]
    return watched(command, out, scratch, interrupt_at)


@pytest.fixture(scope="session")
def run(_everything_is_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """`lorafsm demo --json`, once."""
    return demo_in(tmp_path_factory.mktemp("demo"))


def test_it_exits_with_0_and_prints_its_report(run: Run):
    assert run.status == 0, run.stderr
    assert json.loads(run.stdout) == run.report
    assert run.report["ok"] is True
    assert [row["name"] for row in run.report["expectations"] if not row["ok"]] == []
    assert len(run.report["expectations"]) >= 49


def test_the_report_follows_its_schema(run: Run):
    jsonschema.validate(run.report, SCHEMA)


def test_its_registry_was_an_actor_of_ray(run: Run):
    assert run.report["registry"] == "ray"
    assert "raylet" in run.names, "a cluster of its own was started"


def test_sessions_keep_the_version_they_were_bound_to(run: Run):
    """S_mid was bound while only E0 was READY(B): it must get A; S_new came after the commit (RFC 3.4)."""
    sessions = run.report["sessions"]
    assert (sessions["S_old"], sessions["S_mid"], sessions["S_new"]) == ("A", "A", "B")
    assert len(sessions) >= 12
    served = {(row["session"], row["version"]) for row in run.report["kv"]}
    assert dict(served) == sessions
    assert len(served) == len(sessions), "a session was served by two versions"
    assert set(sessions.values()) == {"A", "B", "C"}


def test_nothing_failed_and_nothing_was_paused(run: Run):
    report = run.report
    assert (report["request_failures"], report["pause_calls"], report["max_managed_versions"]) == (0, 0, 2)
    assert report["requests"] == len(report["kv"]) >= 60
    for engine in report["engines"]:
        counts = control_calls(run.out / engine["log"])
        stops = ("pause_generation", "continue_generation", "flush_cache", "abort_request")
        assert {name: counts[name] for name in stops} == dict.fromkeys(stops, 0)
        assert counts["generate"] > 10, "a log that shows no request shows no pause either"


def test_a_reclaim_waited_for_the_request_in_flight(run: Run):
    reclaim = run.report["reclaim"]
    assert reclaim["drain_s"] >= 2
    assert reclaim["in_flight_at_claim"] >= 1
    assert reclaim["unloads"] == {"E0": 1, "E1": 1}


def test_what_had_to_be_refused_was_refused(run: Run):
    refused = [(row["event"], row["code"]) for row in run.report["refusals"]]
    assert ("bind_first(S_early)", "NO_PUBLISHED_VERSION") in refused
    assert ("commit", "NOT_READY") in refused
    assert refused.count(("reserve", "CAPACITY_ERROR")) == 2


def test_a_broken_version_left_nothing_behind(run: Run):
    [d] = [version for version in run.report["versions"] if version["name"] == "D"]
    assert [span["state"] for span in d["spans"]] == ["LOADING", "ABORTED", "FAILED_CLEAN"]
    done = [(row["phase"], row["engine"]) for row in run.report["phases"] if row["version"] == "D"]
    assert ("probe", "E0") in done
    assert ("unload", "E0") in done
    assert ("load", "E1") not in done, "a broken copy reached the engine"


def test_every_version_came_in_buckets_that_both_engines_had_armed(run: Run):
    assert run.report["transport"] == "torch"
    done = Counter((row["version"], row["phase"], row["engine"]) for row in run.report["phases"])
    for version in "ABCD":
        for engine in ("E0", "E1"):
            times = [done[version, phase, engine] for phase in ("begin", "arm", "bucket", "end")]
            assert times == [1, 3, 3, 1], (version, engine)
    for op in run.report["operations"]:
        if op["op"] == "bucket":
            others = [o for o in run.report["operations"] if o["op"] == "arm" and o["version"] == op["version"]]
            assert all(o["end"] <= op["end"] for o in others if o["bucket"] == op["bucket"])


@pytest.mark.skipif(
    not os.environ.get("LORAFSM_DEMOS"), reason="set LORAFSM_DEMOS=1 (make test-long): two more minutes"
)
def test_through_the_artifact_store_and_without_ray_the_story_is_the_same(tmp_path: Path):
    stored = demo_in(tmp_path, "--transport", "store", "--registry", "local")
    assert stored.status == 0, stored.stderr
    assert (stored.report["registry"], stored.report["transport"]) == ("local", "store")
    assert [row["name"] for row in stored.report["expectations"] if not row["ok"]] == []
    phases = {row["phase"] for row in stored.report["phases"]}
    assert phases == {"begin", "verify", "load", "probe", "end", "unload"}
    assert left(stored) == []


def test_versions_differ_and_answers_agree_with_the_reference(run: Run):
    tolerance = run.report["separation"]["tolerance"]
    pairs = {frozenset((pair["a"], pair["b"])): pair["delta"] for pair in run.report["separation"]["pairs"]}
    for a, b in ("AB", "AC", "BC", ("A", "base"), ("B", "base"), ("C", "base")):
        assert pairs[frozenset((a, b))] >= 10 * tolerance
    assert set(run.report["errors"]) == {"A", "B", "C"}
    assert max(run.report["errors"].values()) <= tolerance


def test_the_journal_recovers(run: Run):
    with Journal.read(run.out / "journal.sqlite") as journal:
        registry, rows = journal.recover(), len(journal)
    assert rows == run.report["journal_events"]
    assert check(registry) == ()
    assert {key.version_id: str(version.state) for key, version in registry.versions.items()} == {
        1: "RECLAIMED",
        2: "RECLAIMED",
        3: "PUBLISHED",
        4: "FAILED_CLEAN",
    }


@needs_tlc
def test_tlc_accepts_the_journal(run: Run):
    assert "are a behaviour of LoraRegistry.tla" in check_journal(run.out / "journal.sqlite")


class Page(HTMLParser):
    """What a page asks a browser to fetch or to run."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.wants: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.wants += [
            value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "srcset", "data", "action")
        ]


def test_the_page_needs_nothing_from_elsewhere(run: Run):
    html = (run.out / "report.html").read_text()
    page = Page(html)
    assert {"svg", "table"} <= page.tags
    assert page.tags.isdisjoint({"script", "link", "iframe", "object", "embed"})
    assert [target for target in page.wants if not target.startswith(("#", "data:"))] == []
    assert "@import" not in html
    assert "url(http" not in html
    for name in ("S_old", "S_mid", "S_new", "FAILED_CLEAN"):
        assert name in html


def test_no_engine_is_left(run: Run):
    names = {engine["name"] for engine in run.report["engines"]}
    assert len(run.started) >= 2 * len(names), "each engine is a server and a scheduler at least"
    assert left(run) == []


def test_an_engine_that_does_not_start_is_named_with_its_log(tmp_path: Path):
    """A flag that no engine knows: one line that names the log, exit status 1, no process left."""
    program = (
        "import gpu_e2e.fleet as fleet; known = fleet.cpu_flags;"
        "fleet.cpu_flags = lambda model: (*known(model), '--no-such-flag');"
        "from lorafsm_cli.main import app; app(prog_name='lorafsm')"
    )
    out = tmp_path / "out"
    words = ["demo", "--out", str(out), "--json", "--quiet", "--registry", "local"]
    failed = watched([sys.executable, "-c", program, *words], out, tmp_path)
    assert (failed.status, failed.stdout) == (1, "")
    last = failed.stderr.strip().splitlines()[-1]
    assert last.startswith("lorafsm: EngineStartError")
    assert str(out / "logs" / "engine-E") in last
    assert "--no-such-flag" in last
    assert failed.report == {}
    assert failed.started
    assert left(failed) == []


def test_ctrl_c_leaves_no_process(tmp_path: Path):
    """While the engines start and the registry is up: one line, exit status 130, and every process is gone."""
    ended = demo_in(tmp_path, interrupt_at="waiting for")
    assert (ended.status, ended.stdout, ended.report) == (130, "", {})
    assert ended.stderr.strip().splitlines()[-1] == "lorafsm: interrupted"
    assert ended.started
    assert left(ended) == []

"""The experiment's report: nothing that did not run passes, goals are judged, the page needs nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gpu_e2e.experiment.figures import GOALS, pauses
from gpu_e2e.experiment.report import CLAUSES, SCHEMA, assemble, write
from gpu_e2e.experiment.report_curves import percentile_rows
from lorafsm_sglang import AccessLogError


def sections() -> dict[str, dict[str, Any]]:
    held = [{"name": "something <b>", "expected": 1, "seen": 1, "ok": True}]
    found: dict[str, dict[str, Any]] = {name: {"ok": True, "conditions": held} for name in CLAUSES}
    found["numeric"] |= {"epsilon": 1e-3, "logprob_max_error": 1e-5, "ab_separation": 40.0}
    found["online"] |= {
        "failed_requests": 0,
        "pauses": 0,
        "gap_p99_ratio": 1.2,
        "gap_max_ratio": 1.5,
        "publication_ratio": 0.8,
        "reclaim_after_last_ms": 40.0,
        "max_managed_versions": 2,
        "gaps": {"publishing": {"max": 900.0}},
        "measures": {"token gap": {"publishing": [1.0, 2.0], "quiet": []}},
        "occupancy": [[0.0, 1], [2.0, 2]],
        "no_progress_ms": {"E0": 12.5},
    }
    found["environment"] = {"cpus": 2}
    return found


def states(report: dict[str, Any]) -> dict[str, str]:
    return {condition["name"]: condition["state"] for condition in report["conditions"]}


def test_a_report_of_nothing_passes_nothing(tmp_path: Path) -> None:
    report = write({}, tmp_path)
    assert not report["ok"]
    assert set(states(report).values()) == {"not run"}
    jsonschema.validate(json.loads((tmp_path / "report.json").read_text()), SCHEMA)


def test_a_whole_report_passes_and_keeps_its_schema(tmp_path: Path) -> None:
    report = write(sections(), tmp_path)
    assert report["ok"]
    written = json.loads((tmp_path / "report.json").read_text())
    jsonschema.validate(written, SCHEMA)
    assert set(written["figures"]) == set(GOALS)


@pytest.mark.parametrize("section", CLAUSES)
def test_a_missing_section_is_no_pass(section: str) -> None:
    found = sections()
    del found[section]
    report = assemble(found)
    assert not report["ok"]
    assert states(report)[f"section {section}"] == "not run"


@pytest.mark.parametrize(
    ("section", "figure", "value"),
    [
        ("online", "failed_requests", 1),
        ("online", "pauses", 1),
        ("online", "gap_p99_ratio", 1.51),
        ("online", "gap_max_ratio", 2.01),
        ("numeric", "logprob_max_error", 0.0011),
        ("numeric", "ab_separation", 9.9),
        ("online", "publication_ratio", 1.01),
        ("online", "reclaim_after_last_ms", 101),
        ("online", "max_managed_versions", 3),
    ],
)
def test_a_figure_beyond_its_goal_fails(section: str, figure: str, value: float) -> None:
    found = sections()
    found[section][figure] = value
    report = assemble(found)
    assert states(report)[figure] == "fail"
    assert not report["ok"]


def test_a_small_largest_gap_keeps_its_goal_whatever_the_ratio() -> None:
    found = sections()
    found["online"] |= {"gap_max_ratio": 5.0, "gaps": {"publishing": {"max": 250.0}}}
    assert states(assemble(found))["gap_max_ratio"] == "pass"


def test_the_page_escapes_and_fetches_nothing(tmp_path: Path) -> None:
    write(sections(), tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "something &lt;b&gt;" in page
    assert "<script" not in page
    assert page.count("<svg") >= 2
    assert "http://" not in page.split("<body>")[0]
    assert "src=" not in page


def test_a_kind_without_a_value_says_so_in_the_percentiles() -> None:
    publishing, quiet = sorted(percentile_rows({"gap": {"publishing": [1.0]}}), key=lambda row: row["while"])
    assert publishing["max"] == 1.0
    assert quiet["max"] == "not run"


def test_the_log_reader_counts_a_deliberate_pause_and_not_an_abort_of_one_request(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    line = 'INFO:     127.0.0.1:1 - "POST {} HTTP/1.1" 200 OK\n'
    log.write_text("".join(line.format(route) for route in ("/generate", "/abort_request?rid=r1")))
    assert pauses([log]) == 0
    with log.open("a") as more:
        more.write("".join(line.format(r) for r in ("/pause_generation", "/flush_cache", "/abort_request")))
    assert pauses([log]) == 3


def test_a_log_without_an_access_line_proves_nothing(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("started\n")
    with pytest.raises(AccessLogError):
        pauses([log])


def test_the_comparison_stands_beside_what_the_online_part_measured(tmp_path: Path) -> None:
    found = sections()
    found["comparison"] = {"ok": True, "conditions": [], "rows": [{"way": "overwrite", "publication_ms": 7.0}]}
    found["online"]["rows"] = [{"version": "01", "publication_ms": 321.5}, {"version": "02", "publication_ms": 300.0}]
    write(found, tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "Other ways of publishing" in page
    assert "321.5" in page.split("Other ways of publishing")[1].split("</table>")[0]


def test_the_timeline_shows_the_acts_and_not_a_long_row(tmp_path: Path) -> None:
    found = sections()
    spans = [{"state": "LOADING", "start": 0.0, "end": 1.0}, {"state": "PUBLISHED", "start": 1.0, "end": 90.0}]
    late = [{"state": "LOADING", "start": 50.0, "end": 51.0}]
    found["online"] |= {
        "windows": [["publishing", float(n), n + 0.5] for n in range(5, 50)],
        "versions": [{"name": "A", "key": "o-1", "spans": spans}, {"name": "40", "key": "o-44", "spans": late}],
        "session_spans": [],
        "operations": [],
    }
    write(found, tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "version 1" in page
    assert "version 44" not in page
    assert json.loads((tmp_path / "report.json").read_text())["sections"]["online"]["versions"][1]["name"] == "40"


@pytest.mark.parametrize(("cores", "state", "ok"), [(3, "not judged", True), (4, "fail", False)])
def test_a_ratio_that_too_few_cores_decide_is_shown_and_not_judged(cores: int, state: str, ok: bool) -> None:
    found = sections()
    found["plan"] = {"limits": {"gap_ratio_cores": 4}}
    found["environment"] = {"cpus": cores}
    found["online"]["gap_p99_ratio"] = 2.4
    report = assemble(found)
    assert (states(report)["gap_p99_ratio"], report["ok"]) == (state, ok)
    assert report["figures"]["gap_p99_ratio"] == 2.4
    jsonschema.validate(report, SCHEMA)

"""The report: its schema, and a page that copes with whatever a run left and lets nothing through unescaped.

sample_report.json is made up, to develop the page against; it is no result of a run.
"""

import copy
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gpu_e2e.report import SCHEMA, render, write
from gpu_e2e.report.timeline import STATES, close_ups, timeline

VOID = {"meta", "br", "hr", "img", "link", "input"}


def sample() -> dict[str, Any]:
    return json.loads((Path(__file__).parent / "sample_report.json").read_text())


class Page(HTMLParser):
    """Text, tags and attributes of a page; refuses tags that do not pair."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text.append(data)

    def said(self) -> str:
        return " ".join(" ".join(self.text).split())

    def classes(self) -> set[str]:
        return {c for _, attrs in self.tags for c in (attrs.get("class") or "").split()}


def test_the_schema_is_one_and_the_sample_follows_it():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(sample(), SCHEMA)


@pytest.mark.parametrize(
    "key",
    "sglang_version engines sessions expectations refusals request_failures requests max_managed_versions pause_calls "
    "control_calls reclaim kv phases journal_events ok".split(),
)
def test_each_required_key_is_required(key: str):
    report = sample()
    del report[key]
    with pytest.raises(jsonschema.ValidationError, match=key):
        jsonschema.validate(report, SCHEMA)


def test_the_page_says_what_the_report_says():
    report = sample()
    page = Page(render(report))
    said = page.said()
    assert "All 24 expectations held" in said
    assert "Not a run" in said
    for expectation in report["expectations"]:
        assert expectation["name"] in said
    for refusal in report["refusals"]:
        assert refusal["code"] in said
    for version in report["versions"]:
        assert version["digest"] in said
    assert {f"s-{state}" for state in STATES} <= page.classes()
    assert "3.4 s" in said


def test_a_real_report_carries_no_banner():
    report = sample()
    del report["sample"]
    assert "Not a run" not in render(report)


def test_the_page_needs_nothing_else():
    html = render(sample())
    assert not re.search(r"https?://|//[a-z]|url\(|@import", html)
    tags = {tag for tag, _ in Page(html).tags}
    assert tags.isdisjoint({"script", "link", "img", "iframe", "object"})


def test_everything_on_the_timeline_tells_its_times():
    report = sample()
    html = render(report)
    turns = sum(len(s["turns"]) for s in report["session_spans"])
    spans = sum(len(v["spans"]) for v in report["versions"])
    least = turns + spans + len(report["operations"]) + len(report["session_spans"]) + len(report["refusals"])
    assert html.count("<title>") >= least


def test_turns_stand_in_for_generate_operations_that_are_not_listed():
    report = sample()
    turns = [t for s in report["session_spans"] for t in s["turns"]]
    report["operations"] = [o for o in report["operations"] if o["op"] != "generate"]
    html = timeline(report)
    assert html.count("<title>generate ") == len(turns)
    assert "engine E0" in html
    assert "engine E1" in html


def test_a_short_publication_has_a_picture_of_its_own():
    report = sample()
    pictures = dict(close_ups(report))
    assert [title[0] for title in pictures] == ["A", "C", "D"], "B took more than a tenth of the run"
    picture = pictures["D: 5.7 s from reserve to its end"]
    assert "load D on E1" in picture
    assert "S8 is bound to C" in picture
    assert "S_old" not in picture, "it had ended"
    assert 'class="commit' not in picture, "D was never committed"
    Page(picture)


@pytest.mark.parametrize(
    "outcome, failed", [("OK", False), ("", False), ("FAILED", True), ("CleanRefusal", True), ("UNKNOWN", True)]
)
def test_an_order_that_got_no_yes_is_marked(outcome: str, failed: bool):
    report = {"operations": [{"engine": "E0", "op": "load", "version": "A", "start": 1, "end": 2, "outcome": outcome}]}
    assert ("failed" in timeline(report)) is failed


def test_a_failed_expectation_is_the_headline():
    report = sample()
    report["ok"] = report["expectations"][3]["ok"] = False
    page = Page(render(report))
    assert "1 of 24 expectations failed" in page.said()
    assert "failed" in page.classes()


def test_a_run_that_broke_down_says_so():
    report = sample()
    report["ok"] = False
    assert "The run did not end well" in render(report)


@pytest.mark.parametrize("key", sorted(sample()))
def test_any_key_may_be_missing(key: str):
    report = sample()
    del report[key]
    assert len(Page(render(report)).said()) > 100


def test_an_empty_report_is_a_page():
    assert "The run did not end well" in Page(render({})).said()


@pytest.mark.parametrize("junk", [None, 7, "x", [], {}, [None], [{}], {"a": None}])
def test_junk_under_any_key_is_a_page(junk: object):
    for key in sample():
        Page(render({**sample(), key: junk}))


def test_records_may_be_bare():
    report = {name: [{}] for name, value in sample().items() if isinstance(value, list)}
    report["operations"] = [{"start": 1, "end": 2}]
    report["versions"] = [{"spans": [{"start": 1.0, "end": 1.0}]}]
    report["session_spans"] = [{"start": 0, "end": 0, "turns": [{"start": 0, "end": 0}]}]
    Page(render(report))


def poisoned(value: Any, poison: str) -> Any:
    if isinstance(value, str):
        return poison + value
    if isinstance(value, list):
        return [poisoned(item, poison) for item in value]
    if isinstance(value, dict):
        return {k: poisoned(v, poison) for k, v in value.items()}
    return value


def with_poisoned_names(report: dict[str, Any], poison: str) -> dict[str, Any]:
    """Names that the report itself makes: of sessions, engines, routes and of the environment."""
    calls = {poison + e: {poison + r: n for r, n in routes.items()} for e, routes in report["control_calls"].items()}
    names = {key: {poison + k: v for k, v in report[key].items()} for key in ("sessions", "environment")}
    return {**report, **names, "control_calls": calls}


@pytest.mark.parametrize("poison", ["<script>x</script>", '"><img src=q onerror=x>', "</style><b>", "\x00\x1b\ud800&"])
def test_nothing_of_the_report_becomes_markup(poison: str):
    clean = Page(render(sample()))
    html = render(with_poisoned_names(poisoned(sample(), poison), poison))
    html.encode("utf-8")
    page = Page(html)
    assert {tag for tag, _ in page.tags} <= {tag for tag, _ in clean.tags}
    assert all("onerror" not in attrs for _, attrs in page.tags)


def test_values_inside_records_are_escaped():
    report = copy.deepcopy(sample())
    for key in ("expectations", "refusals", "versions", "engines", "session_spans", "operations", "kv", "phases"):
        for record in report[key]:
            for name, value in record.items():
                if isinstance(value, str):
                    record[name] = f"<i>{value}</i>"
    page = Page(render(report))
    assert "i" not in {tag for tag, attrs in page.tags if "key" not in (attrs.get("class") or "")}
    assert "<i>reserve</i>" in page.said()


def test_numbers_that_are_none_do_not_break_the_drawing():
    report = sample()
    report["operations"][0]["start"] = float("nan")
    report["token_gaps"]["samples"][0] = [None, "x"]
    report["token_gaps"]["samples"].append([50.0, 0])
    Page(render(report))


def test_both_files_are_written_whole(tmp_path: Path):
    json_file, html_file = write(sample(), tmp_path / "new" / "out")
    assert json.loads(json_file.read_text()) == sample()
    assert html_file.read_text().startswith("<!doctype html>")
    assert sorted(p.name for p in json_file.parent.iterdir()) == ["report.html", "report.json"]


def test_a_number_that_json_lacks_is_refused_and_nothing_is_left(tmp_path: Path):
    with pytest.raises(ValueError, match="JSON"):
        write({**sample(), "duration_s": float("inf")}, tmp_path)
    assert list(tmp_path.iterdir()) == []

"""The benchmarks run and write what they promise; nothing here judges a speed."""

import json
from math import isfinite
from pathlib import Path

import pytest

from tests.benchmarks.__main__ import TOPICS, main
from tests.benchmarks.figures import Figure, Goal, write_json

PROMISED = {
    "step.bind_first.us",
    "step.bind_first.flatness",
    "step.close.us",
    "step.close.flatness",
    "step.may_dispatch.us",
    "step.may_dispatch.flatness",
    "step.commit.us",
    "step.commit.flatness",
    "step.vs_transitions",
    "step.vs_python_statemachine",
    "step.vs_automat",
    "sessions.closed_1e6.bytes",
    "sessions.closed_1e6_gaps.bytes",
    "sessions.live.bytes",
    "explore.states_per_s",
    "journal.append.ratio",
    "journal.recovery.events_per_s",
    "journal.recovery.snapshot_s",
    "actor.bind.throughput_ratio",
    "actor.bind.p99_ratio",
    "actor.bind_batch.per_s",
    "actor.sessions_1e5.rss_growth_mib",
    "transfer.10MB.ratio",
    "transfer.100MB.ratio",
    "transfer.1GB.ratio",
    "transfer.1GB.with_digest_ratio",
    "digest.ratio",
    "transfer.peak_memory_ratio",
    "transfer.arm_ms",
    "kv.evict_one.1e5.us",
    "kv.evict_one.flatness",
    "kv.insert.ratio",
    "kv.match.ratio",
    "kv.register.ratio",
    "kv.close.ratio",
    "kv.hit_rate.sessions_on",
    "kv.hit_rate.all_leaked",
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    path = tmp_path_factory.mktemp("bench") / "deep" / "results.json"
    main(["--tiny", "--out", str(path)])
    return json.loads(path.read_text())


def test_every_promised_figure_is_there_once(rows: list[dict]):
    names = [row["name"] for row in rows]
    assert len(names) == len(set(names))
    assert set(names) >= PROMISED


def test_every_row_has_the_six_fields(rows: list[dict]):
    for row in rows:
        assert set(row) == {"name", "value", "unit", "peer", "peer_value", "ratio"}
        assert isfinite(row["value"])
        assert row["unit"]
        if row["peer"] is None:
            assert (row["peer_value"], row["ratio"]) == (None, None), row["name"]
        else:
            assert row["ratio"] == pytest.approx(row["value"] / row["peer_value"]), row["name"]


def test_every_goal_is_for_a_figure(rows: list[dict]):
    goals = {name for topic in TOPICS.values() for name in topic.GOALS}
    assert goals <= {row["name"] for row in rows}


def test_a_goal_judges_the_value_or_the_ratio():
    figure = Figure("f", 10, "µs", "peer", 20)
    assert Goal(10).met_by(figure)
    assert not Goal(9.9).met_by(figure)
    assert Goal(0.5, of_ratio=True).met_by(figure)
    assert not Goal(0.4, of_ratio=True).met_by(figure)
    assert not Goal(1, of_ratio=True).met_by(Figure("alone", 1, "µs")), "no peer, no ratio"
    assert Goal(at_least=10).met_by(figure)
    assert not Goal(at_least=10.1).met_by(figure)
    assert not Goal(at_least=0.6, of_ratio=True).met_by(figure)


def test_a_part_keeps_the_other_figures(tmp_path: Path):
    path = tmp_path / "results.json"
    write_json(path, [Figure("a", 1, "µs"), Figure("b", 2, "µs")], keep=False)
    write_json(path, [Figure("b", 3, "µs")], keep=True)
    assert {row["name"]: row["value"] for row in json.loads(path.read_text())} == {"a": 1, "b": 3}
    write_json(path, [Figure("c", 4, "µs")], keep=False)
    assert [row["name"] for row in json.loads(path.read_text())] == ["c"]


def test_an_unknown_topic_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["nothing", "--out", str(tmp_path / "r.json")])
    assert "nothing" in capsys.readouterr().err

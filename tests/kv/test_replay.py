"""The trace driver, its bounds, the generator, the loaders and the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lorafsm.errors import InvalidField
from lorafsm.identity import SessionKey
from lorafsm.kv import CacheConfig, SessionCache
from lorafsm.kv.replay import Belady, Close, Infinite, Pool, Request, Trace, replay
from lorafsm_cli.kv_generate import Agentic, agentic
from lorafsm_cli.kv_traces import load
from lorafsm_cli.main import app

SMALL = Agentic(sessions=12, live=4, turns=6, shared=40, added=12, task=16, noise_length=20)
POOL = 350


def ask(number: int | None, *prompt: int, at: int = 0, output: tuple[int, ...] = ()) -> Request:
    return Request(at, None if number is None else SessionKey("e1", "o1", number), prompt, output)


def ours(trace: Trace, pool: int = POOL, **config):
    return replay(trace, Pool(SessionCache(CacheConfig(**config)), pool))


def test_rates_count_prompt_tokens_of_sessions_and_one_shot_requests_apart():
    trace = Trace(64, (ask(1, 1, 2, 3), ask(None, 1, 2, 9), ask(1, 1, 2, 3, 4, output=(5,)), ask(1, 1, 2, 3, 4, 5)))
    report = ours(trace, 100)
    assert report.requests == 4
    assert (report.sessions.prompt_tokens, report.sessions.hit_tokens) == (12 * 64, 8 * 64)
    assert (report.one_shot.prompt_tokens, report.one_shot.hit_tokens) == (3 * 64, 2 * 64)
    assert report.recomputed_tokens == 5 * 64


def test_what_does_not_fit_is_served_and_not_stored():
    report = ours(Trace(1, (ask(1, 1, 2, 3), ask(1, 1, 2, 3))), 2)
    assert report.not_stored == 2
    assert report.sessions.hit_rate == 0


def test_a_protected_session_outlives_noise_and_a_closed_one_does_not():
    def story(*closed: Close) -> float:
        noise = tuple(ask(None, 10 * n, 10 * n + 1, 10 * n + 2) for n in range(1, 9))
        return ours(Trace(1, (ask(1, 1, 2, 3), *closed, *noise, ask(1, 1, 2, 3))), 6).sessions.hit_rate

    assert story() == 0.5
    assert story(Close(0, SessionKey("e1", "o1", 1))) == 0


def test_victims_that_a_session_asks_for_again_are_counted():
    report = ours(Trace(1, (ask(1, 1, 2), ask(2, 3, 4), ask(1, 1, 2))), 2)
    assert (report.victims, report.live_victims, report.referenced_victims) == (2, 1, 2)


def test_no_policy_beats_the_offline_optimum_and_no_pool_the_infinite_one():
    for seed in range(3):
        trace = agentic(Agentic(**{**{f: getattr(SMALL, f) for f in SMALL.__slots__ if f[0] != "_"}, "seed": seed}))
        infinite = replay(trace, Infinite()).sessions
        belady = replay(trace, Belady(trace, POOL))
        both = belady.sessions.hit_tokens + belady.one_shot.hit_tokens
        for config in ({}, {"sessions": False}, {"ttl": 60_000}, {"policy": "lfu"}):
            report = ours(trace, **config)
            assert 0 < report.sessions.hit_tokens + report.one_shot.hit_tokens <= both
            assert report.sessions.hit_tokens <= infinite.hit_tokens


def test_belady_keeps_what_is_needed_soonest():
    trace = Trace(1, (ask(None, 1), ask(None, 2), ask(None, 3), ask(None, 1), ask(None, 2), ask(None, 3)))
    assert replay(trace, Belady(trace, 2)).one_shot.hit_tokens == 2
    assert ours(trace, 2).one_shot.hit_tokens == 0


def test_the_generator_repeats_itself_and_closes_what_it_says():
    assert agentic(SMALL) == agentic(SMALL)
    closed = [e for e in agentic(SMALL).events if isinstance(e, Close)]
    assert len(closed) == SMALL.sessions
    times = [e.at for e in agentic(SMALL).events]
    assert times == sorted(times)
    leaky = agentic(Agentic(sessions=12, live=4, turns=6, shared=40, leak=1.0))
    assert not any(isinstance(e, Close) for e in leaky.events)


# Loaders


def write(path: Path, *records: dict) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_mooncake(tmp_path: Path):
    trace = load(
        write(
            tmp_path / "t.jsonl",
            {"timestamp": 500, "input_length": 1024, "output_length": 8, "hash_ids": [1, 2]},
            {"timestamp": 0, "input_length": 600, "output_length": 8, "hash_ids": [1, 3]},
        )
    )
    assert trace == Trace(512, (Request(0, None, (1, 3), ()), Request(500, None, (1, 2), ())))


def test_bailian_follows_parents_to_the_session(tmp_path: Path):
    line = {"input_length": 16, "output_length": 1, "type": "text"}
    path = write(
        tmp_path / "t.jsonl",
        {"chat_id": 7, "parent_chat_id": -1, "timestamp": 0.5, "turn": 1, "hash_ids": [1], **line},
        {"chat_id": 9, "parent_chat_id": -1, "timestamp": 1.0, "turn": 1, "hash_ids": [5], **line},
        {"chat_id": 8, "parent_chat_id": 7, "timestamp": 2.0, "turn": 2, "hash_ids": [1, 2], **line},
    )
    trace = load(path, close=True)
    assert trace.block == 16
    assert [(type(e).__name__, e.at, e.session.sequence) for e in trace.events] == [
        ("Request", 500, 0),
        ("Request", 1000, 1),
        ("Close", 1000, 1),
        ("Request", 2000, 0),
        ("Close", 2000, 0),
    ]


def test_agent_sessions_from_a_folder(tmp_path: Path):
    for name, start in (("a", 0.0), ("b", 0.25)):
        turn = {"in": 64, "out": 5, "think_time": 1.0}
        session = {
            "id": name,
            "block_size": 64,
            "requests": [{"t": start, "hash_ids": [1], **turn}, {"t": start + 1, "hash_ids": [1, 2], **turn}],
        }
        (tmp_path / f"{name}.json").write_text(json.dumps(session, indent=1))
    trace = load(tmp_path)
    assert trace.block == 64
    assert [(r.at, r.session.sequence, r.prompt) for r in trace.requests] == [
        (0, 0, (1,)),
        (250, 1, (1,)),
        (1000, 0, (1, 2)),
        (1250, 1, (1, 2)),
    ]


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", "trace"),
        ("nonsense", "trace"),
        ("[1]", "trace"),
        ('{"timestamp": -1, "hash_ids": []}', "timestamp"),
        ('{"timestamp": 1, "hash_ids": ["x"]}', "hash_ids"),
        ('{"chat_id": 1, "timestamp": 1, "hash_ids": []}', "chat_id"),
        ('{"block_size": 0, "requests": []}', "block_size"),
        ('{"block_size": 4, "requests": [1]}', "requests"),
        ('{"block_size": 4, "requests": [{"hash_ids": []}]}', "t"),
    ],
)
def test_bad_traces_are_refused_by_field(tmp_path: Path, text: str, field: str):
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    with pytest.raises(InvalidField) as caught:
        load(path)
    assert caught.value.field == field


# The command


def test_the_command_says_it_in_json(tmp_path: Path):
    shape = "agentic:sessions=6,live=3,turns=4,shared=20,added=8,task=8,noise_length=9,leak=0.5"
    done = CliRunner().invoke(app, ["kv", "replay", shape, "--pool", "200", "--policy", "lfu", "--json"])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert 0 < said["session_hit_rate"] <= said["belady_hit_rate"] <= said["infinite_hit_rate"] < 1
    assert said["distance_to_belady"] == pytest.approx(said["belady_hit_rate"] - said["session_hit_rate"])
    assert said["requests"] > 0
    assert len(said["hit_rates"]) == 10


def test_the_command_draws(tmp_path: Path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (extra cli)")
    shape = "agentic:sessions=4,live=2,turns=3,shared=20"
    file = tmp_path / "plot.svg"
    done = CliRunner().invoke(app, ["kv", "replay", shape, "--pool", "900", "--plot", str(file)])
    assert done.exit_code == 0, done.output
    assert "<svg" in file.read_text()


def test_the_command_names_what_is_wrong():
    done = CliRunner().invoke(app, ["kv", "replay", "nowhere.json", "--pool", "9"])
    assert done.exit_code == 2
    assert "nowhere.json: no such file" in done.stderr

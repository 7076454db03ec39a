"""Net 2: what the core does on long random walks is accepted by TraceLoraRegistry.tla, and one altered field in any
event is rejected at that event."""

import copy
import random
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from attrs import evolve

from lorafsm.events import EVENTS, EngineLost, Event, Heartbeat, Prepared
from lorafsm.records import new_registry
from lorafsm.registry import step
from lorafsm_cli.one_line import CliError
from lorafsm_journal import Journal
from lorafsm_tla.as_tla import Names
from lorafsm_tla.jar import tla2tools
from lorafsm_tla.trace import Trace, check_journal, configuration, judged, small_numbers, trace_of
from tests.adapters.journal_stories import CONFIG, EPOCH, life
from tests.spec import tla_boxes
from tests.spec.tla_boxes import Box, read_box, start, story

WALKS, LENGTH, SEED = 12, 60, 7
BOXES = ("long_from_nothing", "repair", "withdraw", "publication", "lag", "leases", "sessions")


def tlc_is_missing() -> str:
    """What TLC lacks here; empty: nothing."""
    if shutil.which("java") is None:
        return "java is missing: apt-get install default-jre-headless"
    try:
        tla2tools()
    except CliError as error:
        return str(error)
    return ""


needs_tlc = pytest.mark.skipif(bool(tlc_is_missing()), reason=tlc_is_missing())


def walk(box: Box, rng: random.Random) -> list[Event]:
    """What happened before the box, and then steps at random; one in eight changes nothing."""
    maker, r, events = tla_boxes._Maker(box), start(box), story(box)
    for _ in range(LENGTH):
        choices = [(event, step(r, event).registry) for event in maker.events(r)]
        changing: dict[str, list] = {}
        for event, after in choices:
            if after is not r and after != r:
                changing.setdefault(event.name, []).append((event, after))
        if changing and rng.random() > 1 / 8:
            event, after = rng.choice(changing[rng.choice(sorted(changing))])
        elif choices:
            event, after = rng.choice(choices)
        else:
            break
        events.append(event)
        r = after
    return events


@cache
def walks(name: str) -> tuple[Box, tuple[tuple[Event, ...], ...]]:
    box = read_box(name)
    rng = random.Random(SEED)
    return box, tuple(tuple(walk(box, rng)) for _ in range(WALKS))


def traces(name: str) -> tuple[list[Trace], str]:
    box, stories = walks(name)
    names = with_spares(box.names)
    cfg = configuration(box.config, [event for events in stories for event in events], names)
    return [trace_of(box.config, tla_boxes.EPOCH, events, names) for events in stories], cfg


@needs_tlc
@pytest.mark.parametrize("name", BOXES)
def test_what_the_core_does_is_accepted(name: str):
    rows, cfg = traces(name)
    assert [verdict.accepted for verdict in judged(rows, cfg)] == [True] * WALKS


def test_walks_take_every_event():
    taken = {type(event) for name in BOXES for events in walks(name)[1] for event in events}
    assert taken == set(EVENTS)


SPARE = {"key": 9, "sequence": 9, "engine": "e9", "owner": "o9", "token": "t9", "handover": "t9", "reclaim_id": "r9"}
"""Ids that occur in no walk and are known to the model."""


def with_spares(names: Names) -> Names:
    return evolve(
        names,
        versions=(*names.versions, 9),
        sequences=(*names.sequences, 9),
        engines=(*names.engines, "e9"),
        owners=(*names.owners, "o9"),
        tokens=(*names.tokens, "t9"),
        reclaim_ids=(*names.reclaim_ids, "r9"),
    )


def other(field: str, value: object) -> object:
    """Another value of the same kind."""
    if field in SPARE:
        return SPARE[field]
    if isinstance(value, bool):
        return not value
    if isinstance(value, dict):
        return value | {"digest": other("digest", value["digest"])}
    if isinstance(value, int):
        return value + 1
    if isinstance(value, list):
        return [{"version": 1, "digest": "b", "number": 0}] if not value else []
    return "b" if field == "digest" else f"{value}-other"


def corruptions(rows: list[Trace]) -> Iterator[tuple[str, Trace, int]]:
    """(what was altered, the altered trace, where): one for each argument of each action and each variable."""
    seen: set[tuple[str, str]] = set()
    for trace in rows:
        for at, row in enumerate(trace):
            if not row["changes"]:
                continue
            places = [("args", field) for field in row["args"] if field != "none"]
            places += [("after", field) for field in row["after"]]
            for part, field in places:
                if (row["action"], field) not in seen:
                    seen.add((row["action"], field))
                    altered = copy.deepcopy(trace[: at + 1])
                    if part == "after":
                        del altered[at]["after"][field]
                    else:
                        altered[at]["args"][field] = other(field, row["args"][field])
                    yield f"{row['action']}.{part}.{field}", altered, at


@needs_tlc
@pytest.mark.parametrize("name", ["long_from_nothing", "withdraw"])
def test_one_altered_field_is_rejected_at_its_event(name: str):
    rows, cfg = traces(name)
    altered = list(corruptions(rows))
    assert len(altered) >= 40
    verdicts = list(judged([trace for _, trace, _ in altered], cfg))
    wrong = [what for (what, _, at), v in zip(altered, verdicts, strict=True) if v.accepted or v.position != at]
    assert wrong == []


@needs_tlc
def test_a_step_that_is_said_to_be_none_is_rejected():
    rows, cfg = traces("long_from_nothing")
    at = next(index for index, row in enumerate(rows[0]) if row["changes"])
    rows[0][at] |= {"changes": False, "after": {}}
    rejected, *rest = judged(rows, cfg)
    assert (rejected.accepted, rejected.position) == (False, at)
    assert all(verdict.accepted for verdict in rest)


def write(path: Path, events: list[Event]) -> None:
    registry = new_registry(EPOCH, CONFIG)
    with Journal.open(path, CONFIG, EPOCH) as journal:
        for event in events:
            done = step(registry, event)
            journal.append(event, done.outcome)
            registry = done.registry


@needs_tlc
def test_a_journal_is_accepted(tmp_path: Path):
    refused = [type(life()[0])(owner="o1", now=7), *life()[-3:]]
    write(tmp_path / "journal", [*life(), *refused])
    assert "28 events are a behaviour" in check_journal(tmp_path / "journal")


def test_large_numbers_become_small_and_keep_their_order():

    big = [
        Heartbeat(owner="o1", now=1_700_000_000_000),
        Prepared(number=1, engine="e0", incarnation=10**15, seq=10**12, now=1_700_000_000_250),
        EngineLost(engine="e0", incarnation=10**15 + 1),
    ]
    heartbeat, prepared, lost = small_numbers(big)
    assert (heartbeat.now, prepared.now, lost.now) == (1, 251, 0)
    assert (prepared.incarnation, lost.incarnation, prepared.seq) == (1, 2, 1)

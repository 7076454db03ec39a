"""Every kind of event against every state of a lifecycle.

A table is a text: one line per answer, `CODE: events` or `CODE -> STATE: events`, with every event of the protocol
in exactly one line.  `Subject` says what the record is called in its world; `event_about` makes the event of each
kind that is about that record, with the right token, number, incarnation and a fresh seq.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from attrs import field, frozen

from lorafsm.events import EVENTS
from lorafsm.manifest import store_plan
from tests.core.story import OWNER, World, digest_of

KINDS = tuple(event.name for event in EVENTS)
_LINE = re.compile(r"(?P<code>[A-Z_]+)(?: -> (?P<state>[A-Z_]+))?: (?P<kinds>[a-z_ ]+)\Z")


@frozen
class Subject:
    """A world, and the names in it of the record in question and of those around it."""

    w: World
    version: str = "B"
    number: int = 0  # of the attempt; 0: the version's
    repair: int = 99
    engine: str = "E0"
    incarnation: int = 0  # 0: the engine's
    session: str = "s"
    owner: str = OWNER
    reclaim: str = ""  # "": the version's, or one that nobody knows
    bucket: int = 0
    changes: Mapping[str, Mapping[str, Any]] = field(factory=dict)  # fields of some kinds of event, by their name


def read_table(text: str) -> dict[str, tuple[str, str | None]]:
    """The answer to each kind of event: its code, and the next state if the state changes."""
    answers: dict[str, tuple[str, str | None]] = {}
    for line in filter(None, map(str.strip, text.replace("\\\n", "").splitlines())):
        match = _LINE.match(line)
        assert match is not None, f"not a line of a table: {line!r}"
        for kind in match["kinds"].split():
            assert kind in KINDS, f"{kind} is no event"
            assert kind not in answers, f"{kind} stands twice"
            answers[kind] = match["code"], match["state"]
    assert set(answers) == set(KINDS), f"without an answer: {sorted(set(KINDS) - set(answers))}"
    return answers


def cells(tables: Mapping[str, str]) -> list[tuple[str, str, str, str | None]]:
    """Every (name of the state, kind of event, code, next state or None)."""
    return [
        (state, kind, code, after) for state, text in tables.items() for kind, (code, after) in read_table(text).items()
    ]


def event_about(about: Subject, kind: str) -> Any:
    """The event of this kind that is about the subject, in order wherever the subject's state allows it."""
    w = about.w
    key, digest = w.key(about.version), digest_of(about.version)
    version = w.r.versions.get(key)
    number = about.number or (version.number if version is not None else 1)
    attempt = w.r.attempts.get(number)
    token = w.tokens.get(about.version, "nobody")
    incarnation = about.incarnation or w.incarnations.get(about.engine, 1)
    w.seq += 1
    values: dict[str, Any] = {
        "now": w.now,
        "key": key,
        "digest": digest,
        "plan": store_plan(),
        "token": token,
        "handover": attempt.token if attempt is not None else "",
        "number": number,
        "engine": about.engine,
        "incarnation": incarnation,
        "seq": w.seq,
        "bucket": about.bucket,
        "base_fingerprint": w.r.config.base_fingerprint,
        "probe_ok": True,
        "reason": "because",
        "evidence": "exit status 1",
        "expected_revision": w.revision,
        "operation_id": "op",
        "owner": about.owner,
        "session": w.session_key(about.session, about.owner),
        "reclaim_id": about.reclaim or (version.reclaim_id if version is not None else "") or "a-reclaim",
        "observed_absent": True,
    }
    if kind in ("reserve", "takeover"):
        values["token"] = "fresh-token"
    if kind in ("repair_ready", "repair_failed"):
        values["number"] = about.repair
    if kind == "engine_up":  # a new process, which holds nothing
        values["incarnation"] = incarnation + 1
    if kind == "commit":
        values["expected_revision"] = w.revisions.get(about.version, 0)
    values |= about.changes.get(kind, {})
    event = next(event for event in EVENTS if event.name == kind)
    names = {f.name for f in event.__attrs_attrs__}
    return event(**{name: value for name, value in values.items() if name in names})


def assert_cell(about: Subject, state_of: Callable[[], Any], kind: str, code: str, after: str | None) -> None:
    """Apply the event of this kind and assert the answer and the state."""
    before = state_of()
    registry = about.w.r
    assert about.w.do(event_about(about, kind)) == code, about.w.said
    assert state_of() == (before if after is None else after)
    if after is not None:
        assert about.w.r is not registry


Situation: TypeAlias = tuple[Subject, Callable[[], Any]]
"""A subject, and the question in which state it is."""


def as_text(make: Callable[[], Situation]) -> str:
    """What the core answers, written as a table: to compare with the protocol by eye when a state is added."""
    lines: dict[str, list[str]] = {}
    for kind in KINDS:
        about, state_of = make()
        before = state_of()
        code = about.w.do(event_about(about, kind))
        after = state_of()
        lines.setdefault(code if after == before else f"{code} -> {after}", []).append(kind)
    return "\n".join(f"{answer}: {' '.join(kinds)}" for answer, kinds in lines.items())

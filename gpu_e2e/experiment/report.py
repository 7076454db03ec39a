"""The experiment's report: `report.json` (SCHEMA) and one self-contained, printable `report.html`.

A section that did not run says "not run" and keeps the whole from being a pass: `ok` needs every condition.
A figure that the machine of the run cannot show is measured and "not judged", and says why.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from gpu_e2e.experiment import report_curves as curves
from gpu_e2e.experiment.figures import GOALS, Sections, figures, kept, not_judged
from gpu_e2e.report.figures import shown
from gpu_e2e.report.timeline import timeline

CLAUSES = {"faults": "RFC 7.1", "numeric": "RFC 7.2", "kv": "RFC 7.2", "online": "RFC 7.3"}
"""The sections that an acceptance needs; `comparison` shows what other ways do, and is none of them."""

_SHOWN_OF_ROW = 3
_STATE = {True: "pass", False: "fail", None: "not run"}
_NOT_JUDGED = "not judged"
GOOD = frozenset({"pass", _NOT_JUDGED})
"""States of conditions that a run may end with."""
_CONDITION = {
    "type": "object",
    "properties": {
        "clause": {"type": "string"},
        "section": {"type": "string"},
        "name": {"type": "string"},
        "expected": {},
        "seen": {},
        "state": {"enum": [*_STATE.values(), _NOT_JUDGED]},
    },
    "required": ["clause", "section", "name", "expected", "seen", "state"],
}
SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "lorafsm: acceptance of RFC 7.1 to 7.3",
    "type": "object",
    "properties": {
        "ok": {
            "type": "boolean",
            "description": "Every condition passed or could not be judged; none did not run.",
        },
        "figures": {
            "type": "object",
            "properties": {name: {"type": ["number", "null"]} for name in GOALS},
            "required": list(GOALS),
            "additionalProperties": False,
        },
        "conditions": {"type": "array", "items": _CONDITION, "minItems": 1},
        "sections": {"type": "object", "additionalProperties": {"type": "object"}},
    },
    "required": ["ok", "figures", "conditions", "sections"],
}

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ verdict }} · lorafsm acceptance</title>
<style>{{ style }}
@media print { details { display: block } table { break-inside: auto } tr { break-inside: avoid } }</style></head>
<body><header class="{{ 'good' if report.ok else 'bad' }}">
<p class="kicker">lorafsm · acceptance of RFC 7.1 to 7.3</p><h1>{{ verdict }}</h1></header><main>
<section><h2>Figures</h2><div class="wide"><table class="numbers">
<thead><tr><th>figure</th><th>measured</th><th>goal</th><th>state</th></tr></thead><tbody>
{% for name, what, value, goal, state in figures %}<tr class="{{ 'held' if state in good else 'failed' }}">
<th scope="row">{{ name }}<br><small>{{ what }}</small></th>
<td>{{ value | brief }}</td><td>{{ goal }}</td><td>{{ state }}</td></tr>
{% endfor %}</tbody></table></div></section>
{% macro conditions_of(rows) %}<div class="wide"><table class="expectations">
<thead><tr><th>condition</th><th>expected</th><th>seen</th><th>state</th></tr></thead><tbody>
{% for c in rows %}<tr class="{{ 'held' if c.state in good else 'failed' }}">
<th scope="row">{{ c.name }}</th><td>{{ c.expected | brief }}</td>
<td>{{ c.seen | brief }}</td><td>{{ c.state }}</td></tr>
{% endfor %}</tbody></table></div>{% endmacro %}
{% macro table_of(title, columns, rows) %}<section><h2>{{ title }}</h2><div class="wide"><table class="numbers">
<thead><tr>{% for c in columns %}<th>{{ c }}</th>{% endfor %}</tr></thead><tbody>
{% for row in rows %}<tr>{% for c in columns %}<td>{{ row.get(c) | brief }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div></section>{% endmacro %}
{% if failed %}<section><h2>Not held, or not run</h2>{{ conditions_of(failed) }}</section>{% endif %}
{% if timeline %}<section><h2>What happened</h2><div class="wide">{{ timeline }}</div></section>{% endif %}
{% for title, picture in pictures %}{% if picture %}<section><h2>{{ title }}</h2>
<div class="wide">{{ picture }}</div></section>{% endif %}{% endfor %}
{% for title, columns, rows in tables %}{{ table_of(title, columns, rows) }}{% endfor %}
<section><h2>Every condition</h2>
{% for clause, rows in clauses %}<h3>{{ clause }}</h3>{{ conditions_of(rows) }}{% endfor %}</section>
{% for title, columns, rows in every_row %}{{ table_of(title, columns, rows) }}{% endfor %}
</main></body></html>
"""


def assemble(sections: Sections) -> dict[str, Any]:
    """The report of what ran: each section's own conditions, and one a goal; a missing section is "not run"."""
    conditions: list[dict[str, Any]] = []
    for section, clause in CLAUSES.items():
        rows = sections.get(section, {}).get("conditions") or [
            {"name": f"section {section}", "expected": "run", "seen": None, "ok": None}
        ]
        conditions += [_condition(clause, section, row) for row in rows]
    measured = figures(sections)
    for name, value in measured.items():
        row = {"name": name, "expected": str(GOALS[name]), "seen": value, "ok": kept(name, value, sections)}
        condition = _condition(GOALS[name].clause, GOALS[name].section, row)
        if value is not None and (why := not_judged(name, sections)):
            condition |= {"expected": f"{GOALS[name]} {why}", "state": _NOT_JUDGED}
        conditions.append(condition)
    return {
        "ok": all(condition["state"] in GOOD for condition in conditions),
        "figures": measured,
        "conditions": conditions,
        "sections": dict(sections),
    }


def write(sections: Sections, out: Path) -> dict[str, Any]:
    """Write both files into `out`, each whole or not at all; returns the report.  ValueError for NaN or infinity."""
    report = assemble(sections)
    text = json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    out.mkdir(parents=True, exist_ok=True)
    for name, content in {"report.json": text, "report.html": render(report)}.items():
        unfinished = out / f".{name}.part"
        unfinished.write_text(content, encoding="utf-8")
        unfinished.replace(out / name)
    return report


def render(report: Mapping[str, Any]) -> str:
    """The page; every text from the run is escaped."""
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    environment.filters["brief"] = _brief
    style = files("gpu_e2e.report").joinpath("style.css").read_text(encoding="utf-8")
    online = report["sections"].get("online", {})
    states = {condition["name"]: condition["state"] for condition in report["conditions"]}
    return environment.from_string(_PAGE).render(
        report=report,
        good=GOOD,
        style=Markup(style),  # noqa: S704 - our own file
        verdict=verdict(report),
        figures=[(name, g.what, report["figures"][name], str(g), states[name]) for name, g in GOALS.items()],
        failed=[condition for condition in report["conditions"] if condition["state"] not in GOOD],
        clauses=[
            (clause, [condition for condition in report["conditions"] if condition["clause"] == clause])
            for clause in sorted({condition["clause"] for condition in report["conditions"]})
        ],
        timeline=Markup(timeline(_acts(online))),  # noqa: S704 - built and escaped as a tree
        pictures=[
            # matplotlib escapes what it writes.
            ("With and without a publication", Markup(curves.distributions(online.get("measures", {})))),  # noqa: S704
            ("Managed versions over time", Markup(curves.occupancy(online.get("occupancy", ())))),  # noqa: S704
        ],
        tables=[(title, list(rows[0]), rows) for title, rows in _tables(report["sections"]) if rows],
        every_row=[(title, list(rows[0]), rows) for title, rows in _every_row(report["sections"]) if rows],
    )


def _brief(value: object) -> str:
    if not isinstance(value, float) or value.is_integer():
        return shown(value)
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:.1f}"


def _tables(sections: Sections) -> list[tuple[str, list[Mapping[str, Any]]]]:
    online = sections.get("online", {})
    still = [{"engine": name, "longest, ms": ms} for name, ms in online.get("no_progress_ms", {}).items()]
    return [
        ("Requests and tokens", list(curves.percentile_rows(online.get("measures", {})))),
        ("Longest time without progress", list(still)),
        ("Time per phase, ms", online.get("phases", [])),
        ("Memory and journal over the row of publications", online.get("memory", [])),
        ("Other ways of publishing", _ways(sections)),
        ("Where it ran", [{"what": k, "value": v} for k, v in sections.get("environment", {}).items()]),
    ]


def _every_row(sections: Sections) -> list[tuple[str, list[Mapping[str, Any]]]]:
    others = ((name, section) for name, section in sections.items() if name != "comparison")
    return [(f"{name}: every row", section.get("rows", [])) for name, section in others]


def _acts(online: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the timeline can show: everything up to the third publication of the row; more would hide the acts."""
    ends = [end for kind, _, end in online.get("windows", ()) if kind == "publishing"]
    if len(ends) <= _SHOWN_OF_ROW:
        return online
    last = ends[_SHOWN_OF_ROW - 1]

    def cut(spans: Any) -> list[dict[str, Any]]:
        return [{**span, "end": min(span["end"], last)} for span in spans if span["start"] < last]

    versions = [{**version, "spans": cut(version["spans"])} for version in online["versions"]]
    sessions = [{**s, "turns": cut(s["turns"])} for s in cut(online["session_spans"])]
    shown = {"versions": [v for v in versions if v["spans"]], "session_spans": sessions}
    return {**online, **shown, "operations": cut(online["operations"])}


def _ways(sections: Sections) -> list[Mapping[str, Any]]:
    """The comparison, and beside it what the online part measured of the same; nothing where there is none."""
    rows = list(sections.get("comparison", {}).get("rows", ()))
    online = sections.get("online", {})
    if not rows or not online:
        return rows
    gaps = online.get("gaps") or {}
    published = [row["publication_ms"] for row in online.get("rows", ())]
    ours = {
        "way": "lorafsm",
        "sessions": online.get("sessions"),
        "answers": online.get("requests"),
        "failed_requests": online.get("failed_requests"),
        "aborted_tokens": online.get("aborted_tokens"),
        "wrong_version": online.get("wrong_version"),
        "largest_gap_ms": (gaps.get("publishing") or {}).get("max"),
        "publication_ms": max(published, default=None),
    }
    return [*rows, ours]


def verdict(report: Mapping[str, Any]) -> str:
    """One line: how many conditions passed, failed, did not run, were not judged."""
    states = [condition["state"] for condition in report["conditions"]]
    return ", ".join(f"{states.count(state)} {state}" for state in (*_STATE.values(), _NOT_JUDGED) if state in states)


def _condition(clause: str, section: str, row: Mapping[str, Any]) -> dict[str, Any]:
    said = {"name": row["name"], "expected": row["expected"], "seen": row["seen"]}
    return {"clause": clause, "section": section, **said, "state": _STATE[row["ok"]]}

"""Numbers and names as the page shows them, and the colour class of each version."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

_COLOURS = 6
_NO_VERSION = (None, "", "base")


def seconds(value: object, digits: int = 1) -> str:
    """A time span in s, below 1 s in ms; an en dash for what is not a number."""
    if not is_number(value):
        return "–"
    assert isinstance(value, (int, float))
    if value == 0:
        return "0 s"
    return f"{value * 1000:.0f} ms" if abs(value) < 1 else f"{value:.{digits}f} s"


def number(value: object, unit: str = "") -> str:
    """A count or a measure with three significant digits; an en dash for what is not a number."""
    if not is_number(value):
        return "–"
    assert isinstance(value, (int, float))
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{text}{unit and ' '}{unit}"


def shown(value: object) -> str:
    """Any JSON value as one reads it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "–"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def is_number(value: object) -> bool:
    """A finite number; true and false are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def items(report: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """The records of a list in the report; empty when it has none."""
    value = report.get(name)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def part(report: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object in the report; empty when it has none."""
    value = report.get(name)
    return value if isinstance(value, Mapping) else {}


def spans(records: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those records that have a start and an end."""
    return [r for r in records if is_number(r.get("start")) and is_number(r.get("end"))]


def colours(report: Mapping[str, Any]) -> dict[str, str]:
    """Version name to CSS class, in the order of the versions; `base` is grey."""
    names = [v.get("name") for v in items(report, "versions")]
    names += list(part(report, "sessions").values())
    names += [o.get("version") for o in (*items(report, "operations"), *items(report, "kv"))]
    known = dict.fromkeys(str(n) for n in names if n not in _NO_VERSION)
    return {name: f"v{index % _COLOURS}" for index, name in enumerate(known)}


def publications(report: Mapping[str, Any]) -> list[tuple[str, float, float]]:
    """(version, start, end): from reserve to commit, or until all of it was cleaned (LOADING, then ABORTED)."""
    found: list[tuple[str, float, float]] = []
    for version in items(report, "versions"):
        name = str(version.get("name", "?"))
        for span in spans(items(version, "spans")):
            if span.get("state") == "ABORTED" and found and found[-1][0] == name:
                found[-1] = (name, found[-1][1], span["end"])
            elif span.get("state") == "LOADING":
                found.append((name, span["start"], span["end"]))
    return found

"""One text for one value, whatever the order in which maps and sets give their items."""

from __future__ import annotations

from enum import Enum
from typing import Any

from attrs import fields, has
from immutables import Map


def canonical(value: Any) -> str:
    """A text that is equal exactly for equal records, maps, sets, sequences and scalars."""
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if has(type(value)):
        inside = ",".join(f"{f.name}={canonical(getattr(value, f.name))}" for f in fields(type(value)))
        return f"{type(value).__name__}({inside})"
    if isinstance(value, Map | dict):
        return "{" + ",".join(sorted(f"{canonical(k)}:{canonical(v)}" for k, v in value.items())) + "}"
    if isinstance(value, frozenset | set):
        return "{" + ",".join(sorted(map(canonical, value))) + "}"
    if isinstance(value, tuple | list):
        return "(" + ",".join(map(canonical, value)) + ")"
    assert value is None or type(value) in (bool, int, str), f"no canonical form for {type(value)}"
    return repr(value)

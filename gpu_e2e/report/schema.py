"""The JSON schema of report.json.  Times are seconds from the start of the run; gaps are milliseconds.

Keys that are not named here are allowed: a profile may say more.
"""

from __future__ import annotations

from typing import Any

_Schema = dict[str, Any]

TEXT: _Schema = {"type": "string"}
COUNT: _Schema = {"type": "integer", "minimum": 0}
SECONDS: _Schema = {"type": "number", "minimum": 0}
NUMBER: _Schema = {"type": "number"}


def _record(required: dict[str, _Schema], optional: dict[str, _Schema] | None = None) -> _Schema:
    return {"type": "object", "properties": {**required, **(optional or {})}, "required": list(required)}


def _list(item: _Schema) -> _Schema:
    return {"type": "array", "items": item}


def _by_name(value: _Schema) -> _Schema:
    return {"type": "object", "additionalProperties": value}


def _or_null(schema: _Schema) -> _Schema:
    return {"anyOf": [schema, {"type": "null"}]}


_SPAN = _record({"state": TEXT, "start": SECONDS, "end": SECONDS})
_GAPS = _record({"p50": NUMBER, "p95": NUMBER, "p99": NUMBER, "max": NUMBER, "count": COUNT})
_TURN = _record(
    {"start": SECONDS, "end": SECONDS, "engine": TEXT}, {"cached_tokens": _or_null(COUNT), "output_tokens": COUNT}
)

_REQUIRED: dict[str, _Schema] = {
    "ok": {"type": "boolean", "description": "Every expectation held and the run ended well."},
    "sglang_version": TEXT,
    "engines": _list(_record({"name": TEXT, "incarnation": COUNT, "port": COUNT, "log": TEXT, "ready_s": SECONDS})),
    "sessions": {**_by_name(TEXT), "description": "The version that each session was bound to."},
    "expectations": _list(_record({"name": TEXT, "expected": {}, "seen": {}, "ok": {"type": "boolean"}})),
    "refusals": _list(_record({"event": TEXT, "code": TEXT}, {"reason": TEXT, "t": SECONDS})),
    "requests": COUNT,
    "request_failures": COUNT,
    "max_managed_versions": {**COUNT, "description": "Most managed adapters seen on one engine at a time."},
    "pause_calls": {**COUNT, "description": "Calls of pause, flush and abort_all in the engines' access logs."},
    "control_calls": {**_by_name(_by_name(COUNT)), "description": "Engine, route, number of calls."},
    "reclaim": _record({"drain_s": SECONDS, "unloads": _by_name(COUNT), "in_flight_at_claim": COUNT}),
    "kv": _list(
        _record(
            {"version": _or_null(TEXT), "turn": COUNT, "cached_tokens": _or_null(COUNT)},
            {"session": TEXT, "prompt_tokens": COUNT},
        )
    ),
    "phases": _list(
        _record({"version": _or_null(TEXT), "phase": TEXT, "engine": _or_null(TEXT), "seconds": SECONDS}),
    ),
    "journal_events": COUNT,
}

_OPTIONAL: dict[str, _Schema] = {
    "versions": _list(_record({"name": TEXT, "key": TEXT, "lora_name": TEXT, "digest": TEXT, "spans": _list(_SPAN)})),
    "session_spans": _list(
        _record({"name": TEXT, "version": TEXT, "start": SECONDS, "end": SECONDS}, {"turns": _list(_TURN)})
    ),
    "operations": _list(
        _record(
            {"engine": TEXT, "op": TEXT, "version": _or_null(TEXT), "start": SECONDS, "end": SECONDS}, {"outcome": TEXT}
        )
    ),
    "token_gaps": _record(
        {"publishing": _GAPS, "quiet": _GAPS},
        {"samples": _list({"type": "array", "items": NUMBER, "minItems": 2, "maxItems": 2})},
    ),
    "separation": _record(
        {"tolerance": NUMBER, "pairs": _list(_record({"a": TEXT, "b": TEXT, "position": COUNT, "delta": NUMBER}))}
    ),
    "environment": _by_name({}),
    "duration_s": SECONDS,
    "started_at": TEXT,
    "transport": {"enum": ["torch", "store"], "description": "How the bytes of versions came to the engines."},
    "registry": {"enum": ["ray", "local"], "description": "An actor of Ray, or in the process of the run."},
    "sample": {"type": "boolean", "description": "Made up, to develop the page against; not a run."},
}

SCHEMA: _Schema = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "lorafsm: report of an experiment",
    **_record(_REQUIRED, _OPTIONAL),
}

"""Count what an engine was asked to do, from the access lines in its own log.

uvicorn writes one line a request with method, path and status, never the body.  So the log proves how
often a route was called and not with what: an ``/abort_request`` may have been for one request or for all.
`EnginePort.abort` repeats the rid in the query string; aborts without one came from somebody else.

A line is written when the response starts: a request that is still open, or whose engine died first, has
none.  The engine's warm-up at start is one ``/generate`` of its own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import attrs

_LINE = re.compile(
    r'INFO:\s+(?P<client>\S+) - "(?P<method>[A-Z]+) (?P<target>\S+) HTTP/[0-9.]+" (?P<status>[0-9]{3})\b'
)

CONTROL_ROUTES = (
    "pause_generation",
    "continue_generation",
    "flush_cache",
    "abort_request",
    "load_lora_adapter",
    "load_lora_adapter_from_tensors",
    "unload_lora_adapter",
    "update_weights_from_disk",
    "update_weights_from_tensor",
    "update_weights_from_distributed",
    "release_memory_occupation",
    "generate",
)
"""Routes that `control_calls` always reports, with 0 for those that were never called."""

UNNAMED_ABORTS = "abort_request_without_rid"
"""Key for aborts whose query names no rid; 0 shows that nobody but `EnginePort` aborted."""


class AccessLogError(RuntimeError):
    """The log proves nothing: it holds no access line at all."""

    code = "ACCESS_LOG_EMPTY"


@attrs.frozen
class AccessLine:
    """One finished request as the engine's HTTP server saw it."""

    client: str
    method: str
    route: str
    status: int
    query: str


def access_lines(path: Path | str, *, since: int = 0) -> Iterator[AccessLine]:
    """Requests in the log, in order; ``since`` skips that many bytes (see `log_size`)."""
    with Path(path).open("rb") as log:
        log.seek(since)
        for raw in log:
            match = _LINE.search(raw.decode("utf-8", errors="replace"))
            if match:
                target = urlsplit(match["target"])
                route = target.path.strip("/")
                yield AccessLine(match["client"], match["method"], route, int(match["status"]), target.query)


def control_calls(path: Path | str, *, since: int = 0) -> dict[str, int]:
    """How often each route of `CONTROL_ROUTES` was called, with any status, plus `UNNAMED_ABORTS`.

    Raises `AccessLogError` when the whole log has no access line, since zero counts would then be empty
    words.  With ``since`` only later bytes are counted.
    """
    if next(access_lines(path), None) is None:
        raise AccessLogError(f"{path} has no access line: start the engine with --log-level-http info")
    lines = list(access_lines(path, since=since))
    counts = Counter(line.route for line in lines)
    unnamed = sum(line.route == "abort_request" and not parse_qs(line.query).get("rid") for line in lines)
    return {route: counts[route] for route in CONTROL_ROUTES} | {UNNAMED_ABORTS: unnamed}


def log_size(path: Path | str) -> int:
    """Size in bytes now: the mark from which a later `control_calls` counts."""
    return Path(path).stat().st_size

"""What an engine's answer proves: one of three values, never an exception.

`OK` carries data.  `Refused` is a clean no: the engine answered and did not do it.  `Unknown` is
everything else; the engine may have done it, may be doing it, or may do it later.  Only a query or a
dead incarnation turns an unknown into a fact (RFC 3.4: an unknown result keeps state and capacity).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeAlias, TypeVar

import attrs
import httpx

T = TypeVar("T")


class UnknownKind(enum.Enum):
    """Why nothing is known."""

    NOT_CONNECTED = "not_connected"
    """No connection was made, so the engine never saw the call."""
    TIMEOUT = "timeout"
    """The caller stopped waiting; a control call goes on in its own task."""
    CONNECTION_LOST = "connection_lost"
    """The connection broke after the call was sent."""
    SERVER_ERROR = "server_error"
    """A status that says neither done nor refused (5xx, 408, 3xx)."""
    UNPARSABLE = "unparsable"
    """A success status whose body is not what this version of SGLang sends."""


@attrs.frozen
class OK(Generic[T]):
    """The engine did it; ``data`` is what it said."""

    data: T


@attrs.frozen
class Refused:
    """The engine answered and did not do it: a 4xx, or success false; ``status`` is the HTTP status."""

    status: int
    message: str


@attrs.frozen
class Unknown:
    """No proof either way; ``reason`` is for people, ``kind`` for code."""

    kind: UnknownKind
    reason: str


Reply: TypeAlias = OK[T] | Refused | Unknown

# A time-out that the engine reports is not a refusal: the work may have been started.
_UNDECIDED_4XX = frozenset({408, 425})


def classify(response: httpx.Response, read: Callable[[Any], T]) -> Reply[T]:
    """Judge a complete response; ``read`` turns its JSON into data and raises on a wrong shape."""
    status = response.status_code
    if 400 <= status < 500 and status not in _UNDECIDED_4XX:
        return Refused(status, message_of(response.text, _json_or_none(response)))
    if not 200 <= status < 300:
        return Unknown(UnknownKind.SERVER_ERROR, f"HTTP {status}: {response.text[:500]}")
    body = _json_or_none(response) if response.content else None
    if isinstance(body, Mapping) and body.get("success") is False:
        return Refused(status, message_of(response.text, body))
    return read_data(body, read)


def read_data(body: Any, read: Callable[[Any], T]) -> Reply[T]:
    """`OK` with what ``read`` makes of ``body``, or `Unknown` when the shape is wrong."""
    try:
        return OK(read(body))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        shown = repr(body)[:300]
        return Unknown(UnknownKind.UNPARSABLE, f"{type(error).__name__}: {error} in {shown}")


def lost(error: httpx.HTTPError | httpx.StreamError) -> Unknown:
    """Judge a failed exchange.  A pool time-out cannot happen: the port sets no connection limit."""
    reason = f"{type(error).__name__}: {error}"
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return Unknown(UnknownKind.NOT_CONNECTED, reason)
    if isinstance(error, httpx.TimeoutException):
        return Unknown(UnknownKind.TIMEOUT, reason)
    return Unknown(UnknownKind.CONNECTION_LOST, reason)


def message_of(text: str, body: Any) -> str:
    """The engine's own words, wherever this route puts them."""
    if isinstance(body, Mapping):
        error = body.get("error", body)
        if isinstance(error, str):
            return error
        if isinstance(error, Mapping):
            for field in ("error_message", "message", "detail"):
                if error.get(field):
                    return str(error[field])
    return text[:500]


def _json_or_none(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return None

"""Which requests the guard lets through, decided without waiting for anything.

A request names exactly one version or none; whatever else would let it touch another version's weights or KV is
refused with a code, before SGLang's own code sees it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

from attrs import define, field

from lorafsm.identity import is_managed


class GuardCode(StrEnum):
    """Why the guard refuses a request; refusals of the agent carry its own codes."""

    GUARD_INACTIVE = "GUARD_INACTIVE"  # the configuration is not supported; nothing managed is served
    UNMANAGED_REFUSED = "UNMANAGED_REFUSED"  # adapters without the reserved prefix were not opted in
    MANAGED_NAME = "MANAGED_NAME"  # the ordinary routes do not touch managed names
    BASE_IN_USE = "BASE_IN_USE"  # managed versions rest on the base weights
    SEVERAL_SAMPLES = "SEVERAL_SAMPLES"  # n > 1 would lose count of the references
    EXTRA_KEY = "EXTRA_KEY"  # would share another adapter's KV cache
    SESSION_VERSION = "SESSION_VERSION"  # the engine session belongs to another version
    RID_PREFIX = "RID_PREFIX"  # SGLang aborts by prefix: an abort would hit a neighbour


class RequestRefused(ValueError):
    """SGLang turns it into a 4xx whose message begins with the code."""

    def __init__(self, code: str, reason: str, status_code: int = 400) -> None:
        super().__init__(f"{code}: {reason}")
        self.code = code
        self.status_code = status_code


def names_in(lora_path: Any) -> Iterator[str | None]:
    """The adapter names of a request; None is the base model."""
    if lora_path is None or isinstance(lora_path, str):
        yield lora_path or None
    else:
        for name in lora_path:
            yield name or None


def is_managed_request(lora_path: Any) -> bool:
    """Whether any part of the request asks for a managed version."""
    if isinstance(lora_path, str):
        return is_managed(lora_path)
    return any(isinstance(name, str) and is_managed(name) for name in lora_path or ())


@define
class Screen:
    """Checks of one request before SGLang normalises it; strips what no client may set."""

    unmanaged: bool
    spent_ids: set[str]  # SGLang's ids of managed adapters, those that are gone included

    def check(self, request: Any) -> None:
        """RequestRefused, or the request may go on to its acquire."""
        if getattr(request, "lora_id", None) is not None:
            request.lora_id = None  # a client's id would release somebody else's reference
        extra_key = getattr(request, "extra_key", None)
        if not is_managed_request(request.lora_path):
            if not self.unmanaged and any(names_in(request.lora_path)):
                raise RequestRefused(GuardCode.UNMANAGED_REFUSED, "only managed adapters are served here")
            if extra_key and any(i in key for i in self.spent_ids for key in _texts(extra_key)):
                raise RequestRefused(GuardCode.EXTRA_KEY, "names a managed adapter's part of the KV cache")
            return
        several = not isinstance(request.lora_path, str)
        if several and any(name is not None and not is_managed(name) for name in names_in(request.lora_path)):
            raise RequestRefused(GuardCode.UNMANAGED_REFUSED, "one batch holds managed and unmanaged adapters")
        if extra_key and any(_texts(extra_key)):
            raise RequestRefused(GuardCode.EXTRA_KEY, "a managed version has a KV cache of its own; leave it out")
        parameters = getattr(request, "sampling_params", None) or {}
        for each in parameters if isinstance(parameters, list) else [parameters]:
            if (each.get("n") or 1) != 1 or (each.get("beam_width") or 1) != 1:
                raise RequestRefused(GuardCode.SEVERAL_SAMPLES, "send n requests with n = 1")


def _texts(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [text for text in value if isinstance(text, str)]


@define
class Sessions:
    """Which version each of SGLang's own sessions belongs to: its first request decides (KV is found by session)."""

    of: dict[str, str | None] = field(factory=dict)  # session id -> lora_name, None: base

    def check(self, request: Any, name: str | None) -> None:
        """RequestRefused where the session began with another version."""
        session = session_of(request)
        if session is not None and self.of.setdefault(session, name) != name:
            raise RequestRefused(GuardCode.SESSION_VERSION, "open a session of its own for each version")

    def close(self, session: str) -> None:
        """The session is over; its id may begin again."""
        self.of.pop(session, None)


def session_of(request: Any) -> str | None:
    """The id of the SGLang session whose KV this request continues."""
    parameters = getattr(request, "session_params", None)
    session = parameters.get("id") if isinstance(parameters, dict) else None
    return session or None


@define
class Rids:
    """Request ids in flight, kept sorted; none is a prefix of another, because SGLang aborts by prefix."""

    _sorted: list[str] = field(factory=list)

    def add(self, rid: str) -> None:
        """RequestRefused where an abort of this rid would hit another, or the other way round."""
        rids, at = self._sorted, bisect_left(self._sorted, rid)
        # In a set without prefixes only the neighbours can be one.
        if (at < len(rids) and rids[at].startswith(rid)) or (at > 0 and rid.startswith(rids[at - 1])):
            raise RequestRefused(GuardCode.RID_PREFIX, "one rid in flight begins with another; use ids of one length")
        rids.insert(at, rid)

    def discard(self, rid: str) -> None:
        """The request ended."""
        at = bisect_left(self._sorted, rid)
        if self._sorted[at : at + 1] == [rid]:
            del self._sorted[at]

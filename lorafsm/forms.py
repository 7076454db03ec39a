"""What each field of an event must look like.

A field's name says its form, the same in every event (`FORMS`); `fault_in(event)` finds the first field that
lacks its form, which `step` answers with BAD_INPUT.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attrs import fields

from lorafsm.events import EVENTS, Event
from lorafsm.identity import (
    fault_in_count,
    fault_in_digest,
    fault_in_flag,
    fault_in_identifier,
    fault_in_session_key,
    fault_in_text,
    fault_in_version_key,
)
from lorafsm.manifest import Plan
from lorafsm.records import Resident


def _fault_in_plan(value: object) -> str | None:
    if type(value) is not Plan:
        return "must be a Plan(buckets, digest)"
    return fault_in_count(value.buckets) or fault_in_digest(value.digest)


def _fault_in_residents(value: object) -> str | None:
    if type(value) is not frozenset or not all(type(item) is Resident for item in value):
        return "must be a frozenset of Resident(key, digest, number)"
    for item in value:
        fault = fault_in_version_key(item.key) or fault_in_digest(item.digest) or fault_in_count(item.number)
        if fault:
            return f"holds a malformed resident: {fault}"
    return None


def _fault_in_foreign(value: object) -> str | None:
    if type(value) is not frozenset or any(fault_in_text(item) for item in value):
        return "must be a frozenset of names of at most 512 printable characters"
    return None


def _fault_in_handover(value: object) -> str | None:
    return None if type(value) is str and not value else fault_in_identifier(value)


FORMS: Mapping[str, Callable[[object], str | None]] = {
    "now": fault_in_count,
    "key": fault_in_version_key,
    "digest": fault_in_digest,
    "plan": _fault_in_plan,
    "token": fault_in_identifier,
    "handover": _fault_in_handover,
    "tensors": fault_in_count,
    "nbytes": fault_in_count,
    "number": fault_in_count,
    "engine": fault_in_identifier,
    "incarnation": fault_in_count,
    "seq": fault_in_count,
    "bucket": fault_in_count,
    "base_fingerprint": fault_in_text,
    "probe_ok": fault_in_flag,
    "reason": fault_in_text,
    "expected_revision": fault_in_count,
    "operation_id": fault_in_identifier,
    "owner": fault_in_identifier,
    "session": fault_in_session_key,
    "label": fault_in_text,
    "reclaim_id": fault_in_identifier,
    "observed_absent": fault_in_flag,
    "residents": _fault_in_residents,
    "foreign": _fault_in_foreign,
    "evidence": fault_in_text,
}
"""What each field must look like, by its name."""

_CHECKS = {event: tuple((f.name, FORMS[f.name]) for f in fields(event)) for event in EVENTS}


def fault_in(event: Event) -> tuple[str, str] | None:
    """The first malformed field of an event and what it must be, or None."""
    for name, fault_of in _CHECKS[type(event)]:
        if fault := fault_of(getattr(event, name)):
            return name, fault
    return None

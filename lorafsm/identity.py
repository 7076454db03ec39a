"""Who is who: version keys, session keys, immutable LoRA names, and the form that each must have.

version_key = (deployment_epoch, version_id); lora_name = relax_policy_lora@<epoch>-<version_id>-<digest_prefix>
(RFC 3.1).  The digest prefix in a name is for the reader's eye; contents are compared by the full digest.

`fault_in_*` functions answer what is wrong with a value, or None; `step` turns the answer into a refusal, the
constructors and parsers of this module into `InvalidField`.
"""

from __future__ import annotations

import re

from attrs import field, frozen

from lorafsm.errors import InvalidField

MANAGED_PREFIX = "relax_policy_lora@"
DIGEST_PREFIX_LENGTH = 12
LARGEST_INT = 2**63 - 1

_EPOCH = re.compile(r"[A-Za-z0-9_]{1,32}\Z")
_IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@-]{0,127}\Z")
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_NAME = re.compile(
    rf"{re.escape(MANAGED_PREFIX)}([A-Za-z0-9_]{{1,32}})-(0|[1-9][0-9]{{0,18}})-([0-9a-f]{{{DIGEST_PREFIX_LENGTH}}})\Z"
)


@frozen(order=True, cache_hash=True)
class VersionKey:
    """Identity of an immutable LoRA version within one deployment (RFC 3.1)."""

    epoch: str
    version_id: int

    def __str__(self) -> str:
        return f"{self.epoch}-{self.version_id}"


@frozen(order=True)
class SessionKey:
    """One lifecycle of a session: the owner's process and a sequence number that it never uses twice (RFC 4.1).

    A label that is opened again is a new sequence, hence a new session.
    """

    epoch: str
    owner: str
    sequence: int

    def __str__(self) -> str:
        return f"{self.epoch}/{self.owner}/{self.sequence}"


def fault_in_epoch(value: object) -> str | None:
    """What keeps `value` from being a deployment epoch: 1 to 32 letters, digits or underscores."""
    if type(value) is str and _EPOCH.match(value):
        return None
    return "must be 1 to 32 characters of A-Z a-z 0-9 _"


def fault_in_count(value: object) -> str | None:
    """What keeps `value` from being a version id, number, sequence, revision, seq or time: 0 to 2^63 - 1."""
    if type(value) is int and 0 <= value <= LARGEST_INT:
        return None
    return "must be an integer from 0 to 2^63 - 1"


def fault_in_digest(value: object) -> str | None:
    """What keeps `value` from being a SHA-256 digest: 64 lower-case hex digits."""
    if type(value) is str and _DIGEST.match(value):
        return None
    return "must be 64 lower-case hexadecimal digits (SHA-256)"


def fault_in_identifier(value: object) -> str | None:
    """What keeps `value` from being an id of an engine, owner, reclaim or operation, or a token."""
    if type(value) is str and _IDENTIFIER.match(value):
        return None
    return "must be 1 to 128 printable characters of A-Z a-z 0-9 _ . : @ -, the first a letter or digit"


def fault_in_text(value: object) -> str | None:
    """What keeps `value` from being a label or a reason: at most 512 characters, no control characters."""
    if type(value) is str and len(value) <= 512 and (value.isprintable() or not value):
        return None
    return "must be at most 512 printable characters"


def fault_in_flag(value: object) -> str | None:
    """What keeps `value` from being a yes or no."""
    return None if type(value) is bool else "must be true or false"


def fault_in_version_key(value: object) -> str | None:
    """What keeps `value` from being a version key."""
    if type(value) is not VersionKey:
        return "must be a VersionKey(epoch, version_id)"
    return fault_in_epoch(value.epoch) or fault_in_count(value.version_id)


def fault_in_session_key(value: object) -> str | None:
    """What keeps `value` from being a session key."""
    if type(value) is not SessionKey:
        return "must be a SessionKey(epoch, owner, sequence)"
    return fault_in_epoch(value.epoch) or fault_in_identifier(value.owner) or fault_in_count(value.sequence)


def fault_in_lora_name(value: object) -> str | None:
    """What keeps `value` from being a managed LoRA name; no path can hide in one."""
    match = _NAME.match(value) if type(value) is str else None
    if match is not None and int(match[2]) <= LARGEST_INT:
        return None
    return f"must be {MANAGED_PREFIX}<epoch>-<version_id>-<{DIGEST_PREFIX_LENGTH} lower-case hex digits>"


def _require(name: str, fault: str | None) -> None:
    if fault is not None:
        raise InvalidField(name, fault)


def version_key(epoch: str, version_id: int) -> VersionKey:
    """A checked version key; raises InvalidField naming `epoch` or `version_id`."""
    _require("epoch", fault_in_epoch(epoch))
    _require("version_id", fault_in_count(version_id))
    return VersionKey(epoch, version_id)


def lora_name(key: VersionKey, digest: str) -> str:
    """The immutable name under which engines know this version, also the request's `lora_path` (RFC 3.1)."""
    _require("epoch", fault_in_epoch(key.epoch))
    _require("version_id", fault_in_count(key.version_id))
    _require("digest", fault_in_digest(digest))
    return f"{MANAGED_PREFIX}{key.epoch}-{key.version_id}-{digest[:DIGEST_PREFIX_LENGTH]}"


@frozen
class ParsedName:
    """What a managed LoRA name says about itself; it proves nothing about contents."""

    key: VersionKey
    digest_prefix: str = field()


def parse_lora_name(name: str) -> ParsedName:
    """Read a managed name back; raises InvalidField naming `lora_name`."""
    _require("lora_name", fault_in_lora_name(name))
    match = _NAME.match(name)
    assert match is not None
    return ParsedName(version_key(match[1], int(match[2])), match[3])


def is_managed(name: str) -> bool:
    """Whether `name` carries the reserved prefix, well formed or not."""
    return name.startswith(MANAGED_PREFIX)

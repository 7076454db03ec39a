"""What the policies order of an engine.  Each order names its number or id, the epoch and the addressee's incarnation.

An order may be given any number of times: its operation key (`kind` and number or id) makes it one operation on
the engine, whose stored result a repeat returns (RFC 3.4; protocol section 2).
"""

from __future__ import annotations

from typing import TypeAlias

from attrs import frozen

from lorafsm.identity import VersionKey
from lorafsm.manifest import Plan


@frozen(kw_only=True)
class _Order:
    epoch: str
    engine: str
    incarnation: int


@frozen(kw_only=True)
class Begin(_Order):
    """Fix identity, manifest digest and plan for this attempt and check local resources (RFC 3.2)."""

    number: int
    key: VersionKey
    digest: str
    lora_name: str
    plan: Plan


@frozen(kw_only=True)
class End(_Order):
    """Verify the complete content, load it fresh, probe the exact version, answer READY (RFC 3.2)."""

    number: int
    key: VersionKey
    digest: str
    lora_name: str


@frozen(kw_only=True)
class AskStatus(_Order):
    """Say where this attempt stands on this engine: the way out of UNKNOWN (rule 16)."""

    number: int


@frozen(kw_only=True)
class Cleanup(_Order):
    """Fence the number and remove what it loaded, and nothing else (RFC 3.4, rule 4)."""

    number: int
    key: VersionKey
    digest: str
    lora_name: str


@frozen(kw_only=True)
class Load(_Order):
    """Repair: load this version from the artifact store and prove it (rule 15)."""

    number: int
    key: VersionKey
    digest: str
    lora_name: str


@frozen(kw_only=True)
class Unload(_Order):
    """Close the key for ever, wait for its own requests, unload once per reclaim_id (RFC 5.1, rule 13)."""

    reclaim_id: str
    key: VersionKey
    digest: str
    lora_name: str


@frozen(kw_only=True)
class UnloadStray(_Order):
    """Remove a managed adapter that should not be there; `number` 0 when nobody knows who loaded it (rule 15)."""

    operation_key: str
    lora_name: str
    number: int


@frozen(kw_only=True)
class TakeInventory(_Order):
    """List all managed adapters."""


@frozen(kw_only=True)
class SendBucket:
    """Of the transport, not of one engine: arm bucket `bucket` everywhere, get it authorised, broadcast it once."""

    number: int
    bucket: int
    engines: tuple[str, ...]


Order: TypeAlias = Begin | End | AskStatus | Cleanup | Load | Unload | UnloadStray | TakeInventory | SendBucket

"""What an engine's agent receives: orders of the policies, requests, and results of its own actions.

The orders are those of `lorafsm.orders`, and two more that the transport gives for a `SendBucket`.  An order names
its addressee (engine and incarnation), the epoch and its number or id; an agent refuses any other (protocol
section 2).  An order is idempotent: whoever got `Pending`, or no answer, gives it again.  Constructors check
nothing; `agent_step` answers malformed input with a refusal that names the field.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeAlias, get_args

from attrs import fields, frozen

from lorafsm.forms import FORMS as EVENT_FORMS
from lorafsm.identity import LARGEST_INT, VersionKey, fault_in_epoch, fault_in_flag, fault_in_identifier, fault_in_text
from lorafsm.orders import AskStatus, Begin, Cleanup, End, Load, TakeInventory, Unload, UnloadStray

# Orders of the transport (RFC 3.2)


@frozen(kw_only=True)
class ArmBucket:
    """Hold the buffer and post the receive of this bucket, on its own thread, with a deadline (rule 6)."""

    epoch: str
    engine: str
    incarnation: int
    number: int
    bucket: int


@frozen(kw_only=True)
class ReceiveBucket:
    """Say when this armed bucket is complete in the attempt's own stash; starts nothing (RFC 3.2)."""

    epoch: str
    engine: str
    incarnation: int
    number: int
    bucket: int


# Requests (RFC 4.2, 5.1).  They come with the traffic, whatever the incarnation that the sender believed in.


@frozen(kw_only=True)
class Acquire:
    """A request asks for exactly this version; it is admitted or refused, never served by anything else."""

    rid: str
    lora_name: str


@frozen(kw_only=True)
class Release:
    """A request reached any terminal: finish, refusal before scheduling, error, abort, disconnect, echo."""

    rid: str


@frozen(kw_only=True)
class Settle:
    """Is this request running?  If not, it is sealed: its late original will be refused (rule 10)."""

    rid: str
    key: VersionKey


# Results of the agent's own actions


@frozen(kw_only=True)
class BucketFinished:
    """The posted receive ended: complete at this device, failed, past its deadline, or aborted."""

    number: int
    bucket: int
    ok: bool
    detail: str = ""


@frozen(kw_only=True)
class LoadFinished:
    """The load ended.  Not ok means: the manifest differed or the engine refused, and the name is observed absent."""

    number: int
    ok: bool
    detail: str = ""


@frozen(kw_only=True)
class ProbeFinished:
    """The exact-version probe ended."""

    number: int
    ok: bool
    detail: str = ""


@frozen(kw_only=True)
class Unregistered:
    """The engine admits no request under this name any more."""

    lora_name: str


@frozen(kw_only=True)
class Counted:
    """The engine's own count of requests on the unregistered adapter; None: it could not be read."""

    lora_name: str
    count: int | None


@frozen(kw_only=True)
class UnloadFinished:
    """The physical unload ended; `absent` was observed, not concluded from the call's return."""

    lora_name: str
    absent: bool


@frozen(kw_only=True)
class Listed:
    """All adapter names that the engine holds in memory, observed while the agent's seq was `seq`."""

    names: frozenset[str]
    seq: int


EngineOrder: TypeAlias = (
    Begin | ArmBucket | ReceiveBucket | End | AskStatus | Cleanup | Load | Unload | UnloadStray | TakeInventory
)
Request: TypeAlias = Acquire | Release | Settle
Result: TypeAlias = BucketFinished | LoadFinished | ProbeFinished | Unregistered | Counted | UnloadFinished | Listed
Input: TypeAlias = EngineOrder | Request | Result

ORDERS: tuple[type[EngineOrder], ...] = get_args(EngineOrder)
REQUESTS: tuple[type[Request], ...] = get_args(Request)
RESULTS: tuple[type[Result], ...] = get_args(Result)
INPUTS: tuple[type[Input], ...] = (*ORDERS, *REQUESTS, *RESULTS)


def name_of(item: type[Input]) -> str:
    """The name that `lifecycle`'s tables have for a kind of input: begin, arm_bucket, load_finished..."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", item.__name__).lower()


def _fault_in_observed_count(value: object) -> str | None:
    if value is None or (type(value) is int and abs(value) <= LARGEST_INT):
        return None
    return "must be an integer, negative ones included, or None"


FORMS: Mapping[str, Callable[[object], str | None]] = {
    **EVENT_FORMS,
    "epoch": fault_in_epoch,
    "operation_key": fault_in_text,
    "lora_name": fault_in_text,
    "rid": fault_in_identifier,
    "ok": fault_in_flag,
    "absent": fault_in_flag,
    "detail": fault_in_text,
    "count": _fault_in_observed_count,
    "names": EVENT_FORMS["foreign"],
}
"""What each field must look like, by its name."""

_CHECKS = {each: tuple((f.name, FORMS[f.name]) for f in fields(each)) for each in INPUTS}


def fault_in(item: Input) -> tuple[str, str] | None:
    """The first malformed field and what it must be, or None."""
    for name, fault_of in _CHECKS[type(item)]:
        if fault := fault_of(getattr(item, name)):
            return name, fault
    return None

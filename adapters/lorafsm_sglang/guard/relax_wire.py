"""The wire of Relax's first implementation, `protocol_version` 2: POST /update_lora_from_distributed.

    {"protocol_version": 2, "op": "begin", "version_id": 5, "digest": "…64 hex…", "attempt_id": 12,
     "num_buckets": 3, "plan_digest": "…"}

`op` is begin, bucket, end, status, cleanup or unload.  The receipt is {success, lora_name, version_id, digest,
attempt_id, engine_incarnation, state}.  2xx with success is OK, 4xx a clean refusal, 503 an unknown or pending
result: the same call again joins it.  `lora_name` may be left out; if it is there it must be the version's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lorafsm.engine import answers as an
from lorafsm.engine.answers import Answer
from lorafsm.engine.orders import ArmBucket, EngineOrder, ReceiveBucket
from lorafsm.errors import InvalidField
from lorafsm.identity import VersionKey, fault_in_count, fault_in_digest, fault_in_identifier, lora_name
from lorafsm.manifest import Plan, store_plan
from lorafsm.orders import AskStatus, Begin, Cleanup, End, Unload
from lorafsm.outcomes import Code

PROTOCOL_VERSION = 2
ROUTE = "/update_lora_from_distributed"

_NEEDS: Mapping[str, tuple[str, ...]] = {
    "begin": ("version_id", "digest", "attempt_id", "num_buckets"),
    "bucket": ("version_id", "digest", "attempt_id", "bucket"),
    "end": ("version_id", "digest", "attempt_id"),
    "status": ("version_id", "digest", "attempt_id"),
    "cleanup": ("version_id", "digest", "attempt_id"),
    "unload": ("version_id", "digest"),
}
_FORMS = {
    "version_id": fault_in_count,
    "attempt_id": fault_in_count,
    "num_buckets": fault_in_count,
    "bucket": fault_in_count,
    "engine_incarnation": fault_in_count,
    "digest": fault_in_digest,
    "plan_digest": fault_in_digest,
    "reclaim_id": fault_in_identifier,
}
_KNOWN = {"protocol_version", "op", "lora_name", *_FORMS}

_DONE: Mapping[type, str] = {
    an.Prepared: "PREPARED",
    an.Armed: "ARMED",
    an.BucketDone: "BUCKET_DONE",
    an.Ready: "READY_LOCAL",
    an.Cleaned: "CLEANED",
    an.Unloaded: "UNLOADED",
    an.Unseen: "UNSEEN",
}
_OPEN: Mapping[type, str] = {an.Pending: "PENDING", an.Unknown: "UNKNOWN"}


def read_call(data: Mapping[str, Any], engine: str, epoch: str, incarnation: int) -> tuple[EngineOrder, ...]:
    """The orders that a call gives, one after the other, each only if the one before was accepted.

    Raises InvalidField naming the field.  A call without `engine_incarnation` is for the engine that it reached.
    """
    if data.get("protocol_version") != PROTOCOL_VERSION:
        raise InvalidField("protocol_version", f"must be {PROTOCOL_VERSION}")
    op = str(data.get("op"))
    if op not in _NEEDS:
        raise InvalidField("op", f"must be one of {', '.join(_NEEDS)}")
    if foreign := sorted(data.keys() - _KNOWN):
        raise InvalidField(foreign[0], "is no field of this protocol")
    for name in (*_NEEDS[op], *(name for name in _FORMS if name in data)):
        if fault := _FORMS[name](data.get(name)):
            raise InvalidField(name, fault)
    key, digest = VersionKey(epoch, data["version_id"]), data["digest"]
    name = lora_name(key, digest)
    if data.get("lora_name", name) != name:
        raise InvalidField("lora_name", f"must be {name}")
    to = {"epoch": epoch, "engine": engine, "incarnation": data.get("engine_incarnation", incarnation)}
    what = {"key": key, "digest": digest, "lora_name": name}
    number = data.get("attempt_id", 0)
    match op:
        case "begin":
            return (Begin(**to, **what, number=number, plan=_plan(data)),)
        case "bucket":
            bucket = {"number": number, "bucket": data["bucket"]}
            return ArmBucket(**to, **bucket), ReceiveBucket(**to, **bucket)
        case "end":
            return (End(**to, **what, number=number),)
        case "status":
            return (AskStatus(**to, number=number),)
        case "cleanup":
            return (Cleanup(**to, **what, number=number),)
        case _:
            return (Unload(**to, **what, reclaim_id=data.get("reclaim_id", f"unload-{key}")),)


def write_receipt(answer: Answer, data: Mapping[str, Any], epoch: str) -> tuple[int, dict[str, Any]]:
    """HTTP status and receipt of the last order's answer."""
    receipt = {
        "success": type(answer) in _DONE,
        "lora_name": lora_name(VersionKey(epoch, data["version_id"]), data["digest"]),
        "version_id": data["version_id"],
        "digest": data["digest"],
        "attempt_id": data.get("attempt_id"),
        "engine_incarnation": answer.incarnation,
    }
    if (done := _DONE.get(type(answer))) is not None:
        return 200, {**receipt, "state": done}
    if (still := _OPEN.get(type(answer))) is not None:
        return 503, {**receipt, "state": still}
    if isinstance(answer, an.Refused):
        status = 400 if answer.code is Code.BAD_INPUT else 409
        return status, {**receipt, "state": "REFUSED", "code": str(answer.code), "message": answer.reason}
    reason = answer.reason if isinstance(answer, an.Failed) else type(answer).__name__
    return 409, {**receipt, "state": "FAILED", "code": "FAILED", "message": reason}


def _plan(data: Mapping[str, Any]) -> Plan:
    if data["num_buckets"] == 0:
        return store_plan()
    if "plan_digest" not in data:
        raise InvalidField("plan_digest", "is needed where buckets are sent")
    return Plan(data["num_buckets"], data["plan_digest"])

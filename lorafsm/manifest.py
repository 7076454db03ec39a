"""The canonical manifest of a LoRA version and its digest (RFC 3.1).

The digest is SHA-256 over a typed, length-framed, domain-separated encoding: every item is written as its
length in 8 bytes (big endian) and then its bytes, and lists are preceded by their length, so no two manifests
share an encoding.  It covers each tensor (name, dtype, shape, SHA-256 of its bytes, in order of the names) and
the serving config as canonical JSON.  The bucket plan of a transfer is not part of it: a retry with another
bucket size is the same version.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from attrs import frozen

from lorafsm.errors import InvalidField
from lorafsm.identity import fault_in_digest

_DOMAIN = b"lorafsm/manifest/v1"
_PLAN_DOMAIN = b"lorafsm/plan/v1"
_TENSOR_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,256}\Z")
_ITEM_BYTES: Mapping[str, int] = {"bfloat16": 2, "float16": 2, "float32": 4}


@frozen(order=True)
class TensorEntry:
    """One tensor: its name, dtype (bfloat16, float16 or float32), shape, and the SHA-256 of its contiguous bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    sha256: str

    @property
    def nbytes(self) -> int:
        """Size of the tensor in bytes."""
        return math.prod(self.shape) * _ITEM_BYTES[self.dtype]


@frozen
class Manifest:
    """Tensors in the order of their names, and the serving config as canonical JSON text."""

    tensors: tuple[TensorEntry, ...]
    config_json: str

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(t.nbytes for t in self.tensors)

    def digest(self) -> str:
        """The version's full digest: 64 lower-case hex digits."""
        h = hashlib.sha256()
        _frame(h, _DOMAIN)
        _frame(h, self.config_json.encode())
        _frame(h, len(self.tensors).to_bytes(8, "big"))
        for t in self.tensors:
            _frame(h, t.name.encode())
            _frame(h, t.dtype.encode())
            _frame(h, len(t.shape).to_bytes(8, "big"))
            for side in t.shape:
                _frame(h, side.to_bytes(8, "big"))
            _frame(h, bytes.fromhex(t.sha256))
        return h.hexdigest()


def make_manifest(tensors: Iterable[TensorEntry], config: Mapping[str, Any]) -> Manifest:
    """Check and order the entries; raises InvalidField for an empty, duplicate or malformed one."""
    ordered = tuple(sorted(tensors, key=lambda t: t.name))
    if not ordered:
        raise InvalidField("tensors", "an adapter without tensors is not a version; export it again")
    for before, entry in zip((None, *ordered), ordered, strict=False):
        _check_entry(entry)
        if before is not None and before.name == entry.name:
            raise InvalidField("tensors", f"the name {entry.name} occurs twice; names must be unique")
    return Manifest(ordered, canonical_json(config))


def _check_entry(entry: TensorEntry) -> None:
    where = f"tensors[{entry.name!r:.80}]"
    if type(entry.name) is not str or not _TENSOR_NAME.match(entry.name):
        raise InvalidField(where, "a tensor's name is 1 to 256 characters of A-Z a-z 0-9 _ . -")
    if entry.dtype not in _ITEM_BYTES:
        raise InvalidField(f"{where}.dtype", f"must be one of {', '.join(_ITEM_BYTES)}, not {entry.dtype!r:.40}")
    if not entry.shape or not all(type(side) is int and 0 < side < 2**40 for side in entry.shape):
        raise InvalidField(f"{where}.shape", "must be a tuple of positive integers")
    if fault := fault_in_digest(entry.sha256):
        raise InvalidField(f"{where}.sha256", fault)


def canonical_json(config: Mapping[str, Any]) -> str:
    """One text for one meaning: sorted keys, no spaces, UTF-8; refuses NaN, infinities and foreign types.

    Accepts dict with string keys, list, tuple, str, int, bool, None and finite float; anything else raises
    InvalidField naming the path (there is no fallback to str).
    """
    _check_json(config, "config")
    return json.dumps(config, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _check_json(value: Any, where: str) -> None:
    if value is None or type(value) in (str, bool, int):
        return
    if type(value) is float:
        if not math.isfinite(value):
            raise InvalidField(where, "NaN and infinities have no canonical form; remove them")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if type(key) is not str:
                raise InvalidField(where, f"keys must be strings, not {type(key).__name__}")
            _check_json(item, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check_json(item, f"{where}[{index}]")
    else:
        raise InvalidField(where, f"{type(value).__name__} has no canonical JSON form; convert it first")


@frozen
class Plan:
    """How one attempt's bytes travel: the number of ordered buckets and the digest of the full bucket plan.

    `buckets` is 0 when engines read the artifact store themselves.  Frozen per attempt, outside the version's
    digest (protocol rule 1).
    """

    buckets: int
    digest: str


def store_plan() -> Plan:
    """The plan of a publication whose engines load from the artifact store: no bucket is sent."""
    h = hashlib.sha256()
    _frame(h, _PLAN_DOMAIN)
    _frame(h, b"store")
    return Plan(0, h.hexdigest())


def _frame(h: Any, data: bytes) -> None:
    h.update(len(data).to_bytes(8, "big"))
    h.update(data)

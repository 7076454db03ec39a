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
from itertools import pairwise
from typing import Any

from attrs import frozen

from lorafsm.errors import InvalidField
from lorafsm.identity import LARGEST_INT, fault_in_digest

_DOMAIN = b"lorafsm/manifest/v1"
_PLAN_DOMAIN = b"lorafsm/plan/v1"
_DEEPEST = 32
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
    entries = tuple(tensors)
    if not entries:
        raise InvalidField("tensors", "an adapter without tensors is not a version; export it again")
    for entry in entries:
        _check_entry(entry)
    ordered = tuple(sorted(entries, key=lambda t: t.name))
    for before, entry in pairwise(ordered):
        if before.name == entry.name:
            raise InvalidField("tensors", f"the name {entry.name} occurs twice; names must be unique")
    return Manifest(ordered, canonical_json(config))


def _check_entry(entry: TensorEntry) -> None:
    if type(entry) is not TensorEntry:
        raise InvalidField("tensors", f"holds a {type(entry).__name__}; each must be a TensorEntry")
    where = f"tensors[{entry.name!r:.80}]"
    if type(entry.name) is not str or not _TENSOR_NAME.match(entry.name):
        raise InvalidField(where, "a tensor's name is 1 to 256 characters of A-Z a-z 0-9 _ . -")
    if type(entry.dtype) is not str or entry.dtype not in _ITEM_BYTES:
        raise InvalidField(f"{where}.dtype", f"must be one of {', '.join(_ITEM_BYTES)}, not {entry.dtype!r:.40}")
    if type(entry.shape) is not tuple or not entry.shape:
        raise InvalidField(f"{where}.shape", "must be a tuple of positive integers")
    if not all(type(side) is int and 0 < side < 2**40 for side in entry.shape):
        raise InvalidField(f"{where}.shape", "must be a tuple of positive integers")
    if fault := fault_in_digest(entry.sha256):
        raise InvalidField(f"{where}.sha256", fault)


def canonical_json(config: Mapping[str, Any]) -> str:
    """One text for one meaning: sorted keys, no spaces, UTF-8; refuses NaN, infinities and foreign types.

    Accepts a mapping with string keys, and in it mapping, list, tuple, str, bool, None, 64-bit int and finite
    float; anything else raises InvalidField naming the path (there is no fallback to str).
    """
    if not isinstance(config, Mapping):
        raise InvalidField("config", f"must be a mapping, not {type(config).__name__}")
    plain = _plain_json(config, "config", 0)
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _plain_json(value: Any, where: str, depth: int) -> Any:
    if depth > _DEEPEST:
        raise InvalidField(where, f"is nested deeper than {_DEEPEST} levels, or contains itself")
    if value is None or type(value) is bool:
        return value
    if type(value) is int:
        if abs(value) > LARGEST_INT:
            raise InvalidField(where, "integers must fit into 64 bits, so that every reader reads the same one")
        return value
    if type(value) is str:
        return _utf8(value, where)
    if type(value) is float:
        if not math.isfinite(value):
            raise InvalidField(where, "NaN and infinities have no canonical form; remove them")
        return value
    if isinstance(value, Mapping):
        return {_key(key, where): _plain_json(item, f"{where}.{key}", depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_json(item, f"{where}[{index}]", depth + 1) for index, item in enumerate(value)]
    raise InvalidField(where, f"{type(value).__name__} has no canonical JSON form here; convert it first")


def _key(key: object, where: str) -> str:
    if type(key) is not str:
        raise InvalidField(where, f"keys must be strings, not {type(key).__name__}")
    return _utf8(key, where)


def _utf8(text: str, where: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidField(where, "holds a lone surrogate, which UTF-8 cannot carry") from None
    return text


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

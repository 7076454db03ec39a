"""How an adapter's bytes travel: slices of one byte sequence, in an order that every process knows (RFC 3.2).

The sequence is the data section of the safetensors file that `safetensors` itself writes, larger dtypes first and
then by name.  A receiver that puts each bucket into its place has the very file that the artifact store holds.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate

from attrs import field, frozen

from lorafsm.errors import InvalidField
from lorafsm.manifest import Manifest, Plan, TensorEntry

DEFAULT_CAP = 64 << 20
LARGEST_CAP = 1 << 30

_DOMAIN = b"lorafsm/bucket-plan/v1"
_WRITTEN = {"float32": 0, "bfloat16": 1, "float16": 2}  # safetensors' own order of dtypes


@frozen
class Piece:
    """A part of a bucket that belongs to one tensor: bytes `start` to `end` of the sequence."""

    tensor: TensorEntry
    first: int  # where the tensor itself begins
    start: int
    end: int


@frozen
class Bucket:
    """Bytes `start` to `start + size` of the sequence."""

    index: int
    start: int
    size: int

    @property
    def end(self) -> int:
        """Where the next bucket starts."""
        return self.start + self.size


@frozen
class BucketPlan:
    """The ordered buckets of one attempt: frozen with it, outside the version's digest (protocol rule 1)."""

    cap: int  # bytes, the largest bucket
    nbytes: int
    buckets: tuple[Bucket, ...]
    tensors: tuple[TensorEntry, ...] = field(repr=False)  # in the order of the sequence

    @cached_property
    def plan(self) -> Plan:
        """What the registry and the agents know of it: the number of buckets, and a digest of all of it."""
        h = hashlib.sha256()
        _frame(h, _DOMAIN)
        for number in (self.cap, self.nbytes, len(self.tensors)):
            _frame(h, number.to_bytes(8, "big"))
        for tensor in self.tensors:
            _frame(h, tensor.name.encode())
            _frame(h, tensor.nbytes.to_bytes(8, "big"))
        return Plan(len(self.buckets), h.hexdigest())

    def pieces(self, bucket: int) -> Iterator[Piece]:
        """What lies in a bucket, in order: each tensor of which it holds something, once."""
        start, end = self.buckets[bucket].start, self.buckets[bucket].end
        for index in range(bisect_right(self._starts, start) - 1, len(self.tensors)):
            first = self._starts[index]
            if first >= end:
                return
            tensor = self.tensors[index]
            yield Piece(tensor, first, max(first, start), min(first + tensor.nbytes, end))

    @cached_property
    def _starts(self) -> tuple[int, ...]:
        return tuple(accumulate((t.nbytes for t in self.tensors[:-1]), initial=0))


def bucket_plan(manifest: Manifest, cap: int = DEFAULT_CAP) -> BucketPlan:
    """The plan for these tensors with buckets of at most `cap` bytes: arithmetic only, nothing is allocated.

    Raises InvalidField naming `cap`.
    """
    if type(cap) is not int or not 0 < cap <= LARGEST_CAP:
        raise InvalidField("cap", f"must be 1 to {LARGEST_CAP} bytes")
    tensors = wire_order(manifest.tensors)
    total = manifest.nbytes
    starts = range(0, total, cap)
    buckets = tuple(Bucket(i, start, min(cap, total - start)) for i, start in enumerate(starts))
    return BucketPlan(cap, total, buckets, tensors)


def wire_order(tensors: Sequence[TensorEntry]) -> tuple[TensorEntry, ...]:
    """The tensors as they follow each other in the sequence."""
    return tuple(sorted(tensors, key=lambda t: (_WRITTEN[t.dtype], t.name)))


def _frame(h: hashlib._Hash, data: bytes) -> None:
    h.update(len(data).to_bytes(8, "big"))
    h.update(data)

"""What a source tells every engine with `begin`, before any byte: contents, buckets, members and where they meet.

One document for all engines of an attempt.  It travels as JSON beside the core's order, which carries only the two
digests; a receiver computes both from the document, so that nothing in it can differ from what was begun.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from attrs import frozen

from lorafsm.errors import InvalidField
from lorafsm.identity import fault_in_count, fault_in_epoch, fault_in_identifier
from lorafsm.manifest import Manifest, TensorEntry, make_manifest
from lorafsm_torch.manifest_file import config_of
from lorafsm_torch.plan import BucketPlan, bucket_plan

BACKENDS = ("gloo", "nccl")

_FORMAT = "lorafsm/transfer/v1"
_MOST_ENGINES = 1024
_HOST = re.compile(r"[A-Za-z0-9_.:\-]{1,253}\Z")


@frozen(kw_only=True)
class Meeting:
    """Where the members of one attempt find each other; `group` is never used for another attempt (I8)."""

    host: str
    port: int
    group: str
    backend: str = "gloo"


@frozen(kw_only=True)
class Announcement:
    """One attempt's transfer.  The source is rank 0, the engines follow in this order."""

    epoch: str
    number: int
    manifest: Manifest
    cap: int
    engines: tuple[tuple[str, int], ...]  # name and incarnation
    meeting: Meeting

    @cached_property
    def plan(self) -> BucketPlan:
        """The buckets, as every member computes them."""
        return bucket_plan(self.manifest, self.cap)

    @property
    def size(self) -> int:
        """Members of the group: the source and every engine."""
        return 1 + len(self.engines)

    def rank_of(self, engine: str) -> int | None:
        """The engine's rank in the group, or None."""
        return next((rank for rank, (name, _) in enumerate(self.engines, 1) if name == engine), None)

    def render(self) -> dict[str, Any]:
        """The document, of plain JSON values."""
        return {
            "format": _FORMAT,
            "epoch": self.epoch,
            "number": self.number,
            "config": config_of(self.manifest),
            "tensors": [[t.name, t.dtype, list(t.shape), t.sha256] for t in self.manifest.tensors],
            "cap": self.cap,
            "engines": [list(member) for member in self.engines],
            "size": self.size,
            "meeting": {
                "host": self.meeting.host,
                "port": self.meeting.port,
                "group": self.meeting.group,
                "backend": self.meeting.backend,
            },
        }

    @classmethod
    def parse(cls, document: object) -> Announcement:
        """Read a document from outside; raises InvalidField naming what is wrong in it."""
        d = _fields(document, "transfer", "format epoch number config tensors cap engines size meeting")
        if d["format"] != _FORMAT:
            raise InvalidField("transfer.format", f"must be {_FORMAT}; the source speaks another version")
        _require("transfer.epoch", fault_in_epoch(d["epoch"]))
        _require("transfer.number", fault_in_count(d["number"]))
        manifest = make_manifest(_tensors(d["tensors"]), d["config"])
        bucket_plan(manifest, d["cap"])  # names `cap`
        engines = _engines(d["engines"])
        if d["size"] != 1 + len(engines):
            raise InvalidField("transfer.size", f"must be {1 + len(engines)}: the source and every engine")
        return cls(
            epoch=d["epoch"],
            number=d["number"],
            manifest=manifest,
            cap=d["cap"],
            engines=engines,
            meeting=_meeting(d["meeting"]),
        )


def _fields(value: object, where: str, names: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or set(value) != set(names.split()):
        raise InvalidField(where, f"must be an object with exactly the fields {names}")
    return value


def _tensors(value: object) -> list[TensorEntry]:
    if not isinstance(value, list):
        raise InvalidField("transfer.tensors", "must be a list of [name, dtype, shape, sha256]")
    entries = []
    for item in value:
        if not isinstance(item, list) or len(item) != 4 or not isinstance(item[2], list):
            raise InvalidField("transfer.tensors", f"holds {item!r:.80}; each must be [name, dtype, shape, sha256]")
        entries.append(TensorEntry(item[0], item[1], tuple(item[2]), item[3]))
    return entries


def _engines(value: object) -> tuple[tuple[str, int], ...]:
    if not isinstance(value, list) or not 0 < len(value) <= _MOST_ENGINES:
        raise InvalidField("transfer.engines", f"must be a list of 1 to {_MOST_ENGINES} [engine, incarnation]")
    members = []
    for item in value:
        if not isinstance(item, list) or len(item) != 2:
            raise InvalidField("transfer.engines", f"holds {item!r:.80}; each must be [engine, incarnation]")
        _require("transfer.engines", fault_in_identifier(item[0]) or fault_in_count(item[1]))
        members.append((item[0], item[1]))
    if len({name for name, _ in members}) != len(members):
        raise InvalidField("transfer.engines", "names an engine twice")
    return tuple(members)


def _meeting(value: object) -> Meeting:
    m = _fields(value, "transfer.meeting", "host port group backend")
    if type(m["host"]) is not str or not _HOST.match(m["host"]):
        raise InvalidField("transfer.meeting.host", "must be a host name or an address")
    if type(m["port"]) is not int or not 0 < m["port"] < 65536:
        raise InvalidField("transfer.meeting.port", "must be 1 to 65535")
    _require("transfer.meeting.group", fault_in_identifier(m["group"]))
    if m["backend"] not in BACKENDS:
        raise InvalidField("transfer.meeting.backend", f"must be one of {', '.join(BACKENDS)}")
    return Meeting(**m)


def _require(name: str, fault: str | None) -> None:
    if fault is not None:
        raise InvalidField(name, fault)

"""The frozen snapshot of an adapter: CPU clones that share no storage with live parameters (RFC 3.1).

Digest and transfer both use the snapshot, so that what was named is what is sent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from attrs import field, frozen

from lorafsm.errors import InvalidField
from lorafsm.manifest import Manifest, TensorEntry, make_manifest
from lorafsm_torch.errors import ArtifactCode, ArtifactError
from lorafsm_torch.plan import wire_order
from lorafsm_torch.tensor_bytes import DTYPES, sha256_of_all

_UNKNOWN_YET = "0" * 64


@frozen
class Snapshot:
    """One version's contents: manifest, its digest (64 hex digits), tensors by name, and tensors that are all NaN.

    `tensors` is a read-only mapping in the order of the names; each tensor is contiguous, on the CPU, needs no
    gradient, and has a storage of its own.  `nan_only` names the tensors of which every element is NaN: they are
    counted, not refused, as a trainer that diverged is for the publisher to judge.  `sequence` is all tensors'
    bytes as one tensor, in the order in which they travel (`plan.wire_order`): the same memory, no copy; None in
    a snapshot that was not made by `freeze_snapshot`.
    """

    manifest: Manifest
    digest: str
    tensors: Mapping[str, torch.Tensor] = field(eq=False, repr=False)
    nan_only: tuple[str, ...] = ()
    sequence: torch.Tensor | None = field(default=None, eq=False, repr=False)

    @property
    def config(self) -> dict[str, Any]:
        """The serving config as it is in the digest; a fresh copy on every call."""
        config: dict[str, Any] = json.loads(self.manifest.config_json)
        return config

    def verify(self) -> None:
        """Compute everything again; raises ArtifactError (SNAPSHOT_CHANGED) naming the first tensor that differs."""
        if self.manifest.digest() != self.digest:
            raise _changed("manifest", "the digest is not the manifest's")
        names = [entry.name for entry in self.manifest.tensors]
        if odd := set(names) ^ set(self.tensors):
            raise _changed(min(odd), "the tensors are not those of the manifest")
        for entry in self.manifest.tensors:
            tensor = self.tensors[entry.name]
            if (DTYPES.get(tensor.dtype), tuple(tensor.shape)) != (entry.dtype, entry.shape):
                raise _changed(entry.name, f"the tensor is now {tensor.dtype} of shape {tuple(tensor.shape)}")
            if tensor.device.type != "cpu" or not tensor.is_contiguous():
                raise _changed(entry.name, "the tensor is no longer contiguous on the CPU")
        seen = sha256_of_all(self.tensors)
        for entry in self.manifest.tensors:
            if seen[entry.name] != entry.sha256:
                raise _changed(entry.name, "the tensor's bytes changed")


def freeze_snapshot(config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Snapshot:
    """Clone `tensors` to the CPU and name the result by its digest.

    `config` is the serving config (for SGLang the PEFT adapter config); it is part of the digest.  Tensors may be
    views, non-contiguous, on any device, and share storage; dtypes are bfloat16, float16 and float32.  The copy
    from a device waits for the current stream; work on other streams that still writes a parameter, and an
    optimizer step in another thread, must have ended before the call.

    Raises InvalidField naming the config's path or the tensor, before anything is copied.
    """
    names = _checked_names(config, tensors)
    draft = [TensorEntry(name, _dtype(name, t), tuple(t.shape), _UNKNOWN_YET) for name, t in names.items()]
    _manifest(draft, config)  # refuses a bad name, shape or config before any memory is taken
    sequence, clones = _cloned(draft, names)
    digests = sha256_of_all(clones)
    manifest = _manifest([TensorEntry(e.name, e.dtype, e.shape, digests[e.name]) for e in draft], config)
    nan_only = tuple(name for name, tensor in clones.items() if _is_nan_only(tensor))
    return Snapshot(manifest, manifest.digest(), MappingProxyType(clones), nan_only, sequence)


def _checked_names(config: object, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    if not isinstance(config, Mapping):
        raise InvalidField("config", f"must be a mapping with string keys, not {type(config).__name__}")
    if not isinstance(tensors, Mapping):
        raise InvalidField("tensors", f"must map names to tensors, not {type(tensors).__name__}")
    for name in tensors:
        if not isinstance(name, str):
            raise InvalidField(f"tensors[{name!r:.80}]", "a tensor's name must be a string")
    return {name: tensors[name] for name in sorted(tensors)}


def _dtype(name: str, tensor: object) -> str:
    where = f"tensors[{name!r:.80}]"
    # A subclass (DTensor, a flat or fake parameter) need not hold the bytes that its shape promises.
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        kind = type(tensor).__name__
        raise InvalidField(where, f"must be a plain torch.Tensor, not {kind}; gather or convert it first")
    assert isinstance(tensor, torch.Tensor)
    if tensor.is_meta or tensor.layout is not torch.strided:
        raise InvalidField(where, "must be dense and hold data; a meta or sparse tensor cannot be published")
    if tensor.dtype not in DTYPES:
        raise InvalidField(f"{where}.dtype", f"must be one of {', '.join(DTYPES.values())}, not {tensor.dtype}")
    return DTYPES[tensor.dtype]


def _cloned(
    entries: list[TensorEntry], live: Mapping[str, torch.Tensor]
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """One piece of memory, pinned where there is a GPU, and in it a clone of each tensor in a storage of its own."""
    nbytes = sum(entry.nbytes for entry in entries)
    sequence = torch.empty(nbytes, dtype=torch.uint8, pin_memory=torch.cuda.is_available())
    memory = sequence.numpy()
    clones, start = {}, 0
    for entry in wire_order(entries):
        tensor = live[entry.name].detach()
        # A storage of exactly this size; larger dtypes come first, so each start is a multiple of its item's size.
        clone = torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel(), offset=start).view(entry.shape)
        clones[entry.name] = clone.copy_(tensor)
        start += entry.nbytes
    return sequence, {name: clones[name] for name in live}


def _is_nan_only(tensor: torch.Tensor) -> bool:
    flat = tensor.view(-1)
    return bool(flat[0].isnan()) and bool(flat.isnan().all())


def _manifest(entries: list[TensorEntry], config: Mapping[str, Any]) -> Manifest:
    try:
        manifest = make_manifest(entries, config)
        manifest.config_json.encode()
    except RecursionError as error:
        raise InvalidField("config", "is nested too deeply, or contains itself; make it flat") from error
    except (TypeError, UnicodeEncodeError) as error:
        raise InvalidField("config", f"has no canonical JSON form ({error}); use plain dicts and valid text") from error
    return manifest


def _changed(name: str, what: str) -> ArtifactError:
    return ArtifactError(
        ArtifactCode.SNAPSHOT_CHANGED, f"{what} since the freeze; freeze again, and never write to a snapshot", name
    )

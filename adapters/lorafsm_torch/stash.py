"""Where a receiver puts what it receives: one safetensors file per number, in shared memory, mapped while it grows.

Its data section is the sequence of `plan`, so buckets go to their places and the file is whole when the last has
come; the engine maps the same pages.  Nothing is put together, and nothing is copied.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import shutil
from pathlib import Path

import torch

from lorafsm.manifest import Manifest
from lorafsm_torch.errors import TransferCode, TransferError
from lorafsm_torch.folder import TENSORS_FILE
from lorafsm_torch.peft import CONFIG_FILE
from lorafsm_torch.plan import BucketPlan

_DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
_LEFT_FREE = 256 << 20  # bytes of the host's memory that a stash never takes


class StashFile:
    """The memory of one number.  Made whole before anything is received: later there may be none."""

    def __init__(self, folder: Path, plan: BucketPlan, manifest: Manifest) -> None:
        self.folder, self._plan = folder, plan
        header = header_of(plan)
        size = len(header) + plan.nbytes
        _require_memory(size)
        folder.mkdir(mode=0o700)
        try:
            self._map = _mapped(folder / TENSORS_FILE, header, size)
            (folder / CONFIG_FILE).write_text(f"{manifest.config_json}\n", encoding="utf-8")
        except OSError as error:
            self.remove()
            raise _no_room(f"{error.strerror} for {size} bytes in {folder.parent}") from error
        # Pages live as long as somebody holds a view of them, a receive that did not end included.
        self._bytes = torch.frombuffer(self._map, dtype=torch.uint8, offset=len(header))
        self._view = memoryview(self._bytes.numpy())

    def tensor(self, bucket: int) -> torch.Tensor:
        """The place of a bucket, as bytes."""
        place = self._plan.buckets[bucket]
        return self._bytes[place.start : place.end]

    def pieces(self, bucket: int) -> list[tuple[str, memoryview]]:
        """A bucket's bytes by the names of their tensors."""
        return [(piece.tensor.name, self._view[piece.start : piece.end]) for piece in self._plan.pieces(bucket)]

    def remove(self) -> None:
        """Take the file away; the memory is free once nobody maps it."""
        shutil.rmtree(self.folder, ignore_errors=True)


def header_of(plan: BucketPlan) -> bytes:
    """The header as `safetensors` writes it for these tensors with metadata {"format": "pt"}."""
    document: dict[str, object] = {"__metadata__": {"format": "pt"}}
    start = 0
    for tensor in plan.tensors:
        end = start + tensor.nbytes
        document[tensor.name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
        start = end
    text = json.dumps(document, separators=(",", ":")).encode()
    text = text.ljust(math.ceil(len(text) / 8) * 8)
    return len(text).to_bytes(8, "little") + text


def _mapped(path: Path, header: bytes, size: int) -> mmap.mmap:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(file, 0, size)  # now or never: a page that is missing later would kill the engine
        memory = mmap.mmap(file, size, mmap.MAP_SHARED | mmap.MAP_POPULATE)
    finally:
        os.close(file)
    memory[: len(header)] = header
    return memory


def _require_memory(size: int) -> None:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable" and int(value.split()[0]) << 10 < size + _LEFT_FREE:
            raise _no_room(f"{size} bytes are more than this host has free")


def _no_room(what: str) -> TransferError:
    return TransferError(TransferCode.NO_RESOURCES, f"{what}; free memory on the engine's host", "stash")

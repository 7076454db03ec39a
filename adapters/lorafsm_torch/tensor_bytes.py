"""SHA-256 of tensors' bytes, in parallel, without a copy."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import torch

DTYPES: Mapping[torch.dtype, str] = {
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
    torch.float32: "float32",
}

_SMALL = 1 << 20  # below this many bytes in all, threads cost more than they save


def sha256_of(tensor: torch.Tensor) -> str:
    """SHA-256 (64 hex digits) of a contiguous CPU tensor's bytes, as they lie in memory; nothing is copied.

    Memory order is little endian on every platform that torch supports, as in a safetensors file.
    """
    # NumPy has no bfloat16, hence the view as bytes.
    flat = tensor.detach().view(-1).view(torch.uint8)
    return hashlib.sha256(flat.numpy()).hexdigest()


def sha256_of_all(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """`sha256_of` for each tensor by name; threads work in parallel, as hashlib releases the GIL."""
    workers = min(len(tensors), os.cpu_count() or 1, 16)
    if workers < 2 or sum(t.nbytes for t in tensors.values()) < _SMALL:
        return {name: sha256_of(tensor) for name, tensor in tensors.items()}
    with ThreadPoolExecutor(workers, thread_name_prefix="lorafsm-sha256") as pool:
        return dict(zip(tensors, pool.map(sha256_of, tensors.values()), strict=True))

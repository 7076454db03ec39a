"""SHA-256 of tensors' bytes, in parallel, without a copy; whole tensors, or piece by piece as they arrive."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import TypeVar

import torch

DTYPES: Mapping[torch.dtype, str] = {
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
    torch.float32: "float32",
}

T = TypeVar("T")
_SHARE = 1 << 20  # bytes; for less than this a thread is not worth its start
_MOST_THREADS = 16


def sha256_of(tensor: torch.Tensor) -> str:
    """SHA-256 (64 hex digits) of a contiguous CPU tensor's bytes, as they lie in memory; nothing is copied.

    Memory order is little endian on every platform that torch supports, as in a safetensors file.
    """
    # NumPy has no bfloat16, hence the view as bytes.
    flat = tensor.detach().view(-1).view(torch.uint8)
    return hashlib.sha256(flat.numpy()).hexdigest()


def sha256_of_all(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """`sha256_of` for each tensor by name; threads work in parallel, as hashlib releases the GIL."""
    workers = min(sum(tensor.nbytes for tensor in tensors.values()) // _SHARE, len(tensors), threads())
    if workers < 2:
        return {name: sha256_of(tensor) for name, tensor in tensors.items()}
    seen: dict[str, str] = {}
    largest_first = sorted(tensors, key=lambda name: -tensors[name].nbytes)  # so that the threads end together
    with ThreadPoolExecutor(workers, thread_name_prefix="lorafsm-sha256") as pool:
        _spread(pool, workers, largest_first, lambda name: seen.update({name: sha256_of(tensors[name])}))
    return {name: seen[name] for name in tensors}


def threads() -> int:
    """How many threads hash at a time: the cores that this process may use."""
    return min(len(os.sched_getaffinity(0)), _MOST_THREADS)


def _spread(pool: Executor, workers: int, items: Iterable[T], work: Callable[[T], object]) -> None:
    """Do `work` with each item, by so many threads, each of which takes the next item as it comes to an end.

    A future for each item would wake the caller as often, which costs a tenth of the time that hashing takes.
    """
    left = iter(list(items))  # threads may share a list's iterator: it gives each item once

    def drain(_: int) -> None:
        for item in left:
            work(item)

    for _ in pool.map(drain, range(workers)):
        pass


class Hashing:
    """SHA-256 of many byte sequences of which pieces come one after another, hashed while the next are on the wire."""

    def __init__(self) -> None:
        self._digests: dict[str, hashlib._Hash] = {}
        self._turns = ThreadPoolExecutor(1, thread_name_prefix="lorafsm-hash-turn")
        self._pool = ThreadPoolExecutor(threads(), thread_name_prefix="lorafsm-hash")
        self._last: Future[None] | None = None

    def add(self, pieces: Iterable[tuple[str, memoryview]]) -> None:
        """Go on with each named sequence; returns at once.  The bytes must stay as they are until `result`."""
        self._last = self._turns.submit(self._take, list(pieces))

    def result(self, timeout: float) -> dict[str, str]:
        """Digests (64 hex digits) of everything that was added; TimeoutError if hashing does not end in time."""
        if self._last is not None:
            self._last.result(timeout)  # turns are taken in order, and a failed one fails those after it
        return {name: h.hexdigest() for name, h in self._digests.items()}

    def close(self) -> None:
        """Stop; what is being hashed is finished by its thread, nothing new is begun."""
        for pool in (self._turns, self._pool):
            pool.shutdown(wait=False, cancel_futures=True)

    def _take(self, pieces: list[tuple[str, memoryview]]) -> None:
        # Within a turn each sequence occurs once, so its pieces never overtake each other.
        for name, _ in pieces:
            self._digests.setdefault(name, hashlib.sha256())
        _spread(self._pool, threads(), pieces, lambda piece: self._digests[piece[0]].update(piece[1]))

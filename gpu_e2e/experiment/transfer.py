"""How long the bytes alone take: the same buckets over gloo to as many receivers, with no protocol around them."""

from __future__ import annotations

import statistics
import threading
import time
from datetime import timedelta
from typing import Any

_REPEATS = 5
_LIMIT = timedelta(seconds=30)


def raw_s(nbytes: int, cap: int, receivers: int) -> float:
    """Median seconds of a broadcast of `nbytes` in buckets of `cap` bytes, until the last receiver has it all."""
    import torch.distributed as dist

    store, took = dist.HashStore(), list[float]()
    threads = [
        threading.Thread(target=_take_part, args=(store, rank, receivers + 1, nbytes, cap, took))
        for rank in range(receivers + 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statistics.median(took)


def _take_part(store: Any, rank: int, size: int, nbytes: int, cap: int, took: list[float]) -> None:
    import torch
    import torch.distributed as dist

    group = dist.ProcessGroupGloo(store, rank, size, _LIMIT)
    buckets = [torch.zeros(min(cap, nbytes - start), dtype=torch.uint8) for start in range(0, nbytes, cap)]
    for _ in range(_REPEATS):
        group.barrier().wait()
        start = time.monotonic()
        for bucket in buckets:
            group.broadcast(bucket, 0).wait()
        group.barrier().wait()
        if rank == 0:
            took.append(time.monotonic() - start)

"""Two tensor-parallel ranks as real processes that train a few steps and gather their adapter."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from lorafsm_torch.sharded import ShardedAdapterSync, ShardedConfig, ShardedModel
from tests.adapters.ranks.world import Connection, RankProcess


def trained_by_processes(folder: Path, x: torch.Tensor, steps: int) -> list[dict[str, Any]]:
    """Each rank's output and adapter after so many optimizer steps on `x`."""
    torch.save(x, folder / "x")
    ranks = [RankProcess(rank, train, rank, steps, folder) for rank in range(2)]
    try:
        return [torch.load(rank.hear(), weights_only=True) for rank in ranks]
    finally:
        for rank in ranks:
            rank.end()


def descend(model: ShardedModel, x: torch.Tensor, group: dist.ProcessGroup) -> None:
    """One step of gradient descent.  `torch.optim` imports a compiler, which takes seconds in each process."""
    model(x, group).square().mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
            parameter.grad = None


def train(connection: Connection, rank: int, steps: int, folder: Path) -> None:
    """One rank."""
    torch.set_num_threads(1)
    config = ShardedConfig()
    model = ShardedModel(config, rank)
    store = dist.FileStore(str(folder / "store"), 2)
    sync = ShardedAdapterSync(config, lambda _: dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=30)))
    x = torch.load(folder / "x", weights_only=True)
    for _ in range(steps):
        descend(model, x, sync.group)
    full = sync.gather_full_adapter(sync.export_local_adapter(dict(model.named_parameters())), all_gather=False)
    torch.save({"output": model(x, sync.group).detach(), "adapter": full}, folder / f"rank-{rank}")
    connection.send(folder / f"rank-{rank}")
    connection.poll(None)  # until it is ended: a group must outlive its peer's last collective

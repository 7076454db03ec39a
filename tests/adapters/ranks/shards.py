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


def train(connection: Connection, rank: int, steps: int, folder: Path) -> None:
    """One rank."""
    torch.set_num_threads(1)
    config = ShardedConfig()
    model = ShardedModel(config, rank)
    store = dist.FileStore(str(folder / "store"), 2)
    sync = ShardedAdapterSync(config, lambda _: dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=30)))
    x = torch.load(folder / "x", weights_only=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(x, sync.group).square().mean().backward()
        optimizer.step()
    full = sync.gather_full_adapter(sync.export_local_adapter(dict(model.named_parameters())), all_gather=False)
    torch.save({"output": model(x, sync.group).detach(), "adapter": full}, folder / f"rank-{rank}")
    connection.send(folder / f"rank-{rank}")
    connection.poll(None)  # until it is ended: a group must outlive its peer's last collective

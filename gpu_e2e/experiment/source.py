"""The training side of the online experiment: LoRA layers sharded over ranks, trained, gathered, frozen (RFC 3.1, 7.3).

Each rank is a process.  Between two versions it takes a few steps of gradient descent towards another random target, so
that versions differ clearly; then all ranks gather, and rank 0 leaves what it got.  Everything is trained before the
engines serve: what is measured later shares its cores with no trainer.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from lorafsm_torch import Snapshot, check_lora, freeze_snapshot

_STEPS = 3  # of gradient descent, for each version
_RATE = 0.03  # how far a step moves a parameter, beside factors of about 0.1
_TOKENS = 8  # of the batch that is trained on
_GROUP_S = 60.0  # a rank that is not there ends its peers' collectives


class SourceFailed(RuntimeError):
    """A training rank ended with an error, or not in time."""


def train(
    labels: Sequence[str], config: Mapping[str, Any], ranks: int, rank: int, dtype: str, folder: Path, deadline_s: float
) -> dict[str, Snapshot]:
    """A frozen snapshot for each label, in this order, from `ranks` tensor-parallel processes.

    `config` is the base model's ``config.json``, `rank` the LoRA's.  Files go into `folder`.  SourceFailed when a
    process ends with an error or is not done after `deadline_s` seconds.
    """
    from safetensors.torch import load_file

    folder.mkdir(parents=True, exist_ok=True)
    sizes = {
        "hidden": config["hidden_size"],
        "intermediate": config["intermediate_size"],
        "layers": config["num_hidden_layers"],
        "heads": config["num_attention_heads"],
        "kv_heads": config["num_key_value_heads"],
        "head_dim": config["head_dim"],
        "rank": rank,
        "alpha": 2 * rank,
        "tp": ranks,
    }
    spawn = multiprocessing.get_context("spawn")  # a forked copy of this process would share its sockets and threads
    processes = [spawn.Process(target=_rank, args=(r, tuple(labels), sizes, dtype, folder)) for r in range(ranks)]
    for process in processes:
        process.start()
    until = time.monotonic() + deadline_s
    try:
        for process in processes:
            process.join(max(0.0, until - time.monotonic()))
        if bad := [r for r, process in enumerate(processes) if process.exitcode != 0]:
            raise SourceFailed(f"training ranks {bad} did not end well: {[p.exitcode for p in processes]}")
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()
    peft = _peft(sizes)
    snapshots = {}
    for label in labels:
        tensors = load_file(folder / f"{label}.safetensors")
        check_lora(peft, {name: tuple(tensor.shape) for name, tensor in tensors.items()})
        snapshots[label] = freeze_snapshot(peft, tensors)
    return snapshots


def _peft(sizes: Mapping[str, Any]) -> dict[str, Any]:
    from lorafsm_torch.sharded import ShardedAdapterSync, ShardedConfig

    return ShardedAdapterSync(ShardedConfig(**sizes), _no_group).config_dict()


def _no_group(_: int) -> Any:
    raise SourceFailed("this process is no training rank")


def _rank(rank: int, labels: Sequence[str], sizes: Mapping[str, Any], dtype: str, folder: Path) -> None:
    """One rank's process: train, gather, and on rank 0 leave each version's file."""
    import torch
    import torch.distributed as dist
    from safetensors.torch import save_file

    from lorafsm_torch.sharded import ShardedAdapterSync, ShardedConfig, ShardedModel

    torch.set_num_threads(1)
    config = ShardedConfig(**sizes)
    model = ShardedModel(config, rank)
    store = dist.FileStore(str(folder / "group"), config.tp)
    sync = ShardedAdapterSync(
        config, lambda _: dist.ProcessGroupGloo(store, rank, config.tp, timedelta(seconds=_GROUP_S))
    )
    draw = torch.Generator().manual_seed(1)
    for label in labels:
        batch = torch.randn(1, _TOKENS, config.hidden, generator=draw)
        target = torch.randn(1, _TOKENS, config.hidden, generator=draw)
        for _ in range(_STEPS):
            _descend(model, batch, target, sync.group)
        full = sync.gather_full_adapter(sync.export_local_adapter(dict(model.named_parameters())), all_gather=False)
        if rank == 0 and full is not None:
            kept = {name: tensor.detach().to(getattr(torch, dtype)).clone() for name, tensor in full.items()}
            save_file(kept, folder / f"{label}.safetensors")
    sync.group.barrier().wait()  # a group must outlive its peer's last collective


def _descend(model: Any, batch: Any, target: Any, group: Any) -> None:
    """One step; steps are as long whatever the gradient, as with Adam."""
    import torch

    (model(batch, group) - target).square().mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= _RATE * parameter.grad / (parameter.grad.square().mean().sqrt() + 1e-12)
            parameter.grad = None

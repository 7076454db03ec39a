"""One training rank as a process: a sharded model, its export, and `Publication.step`, driven by lines of JSON.

python -m tests.adapters.ranks.rank_process RANK SIZE PORT FOLDER
"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from lorafsm_torch.rank_zero import RegistryPublisher
from lorafsm_torch.ranks import Deadlines, Publication
from lorafsm_torch.sharded import ShardedAdapterSync, ShardedConfig, ShardedModel
from tests.adapters.ranks.engines import Deployment
from tests.adapters.ranks.shards import descend

CONFIG = ShardedConfig(hidden=24, intermediate=36, layers=1, heads=6, kv_heads=3, head_dim=4, rank=4, alpha=8, tp=3)
DEADLINES = Deadlines(export_s=10.0, publish_s=15.0, agree_s=3.0)
COLLECTIVE_S = 6.0  # time-out of the training side's group: well below `export_s`
LIMIT_S = DEADLINES.export_s + DEADLINES.publish_s + 4 * DEADLINES.agree_s


class Rank:
    """One rank; `fault` is what goes wrong in this step."""

    def __init__(self, connection: Connection, rank: int, size: int, port: int, folder: Path) -> None:
        self.connection = connection
        self.rank = rank
        self.store = dist.TCPStore("127.0.0.1", port, size, rank == 0, timedelta(seconds=20), wait_for_workers=False)
        self.model = ShardedModel(CONFIG, rank)
        self.sync = ShardedAdapterSync(CONFIG, self.make_group)
        self.deployment = Deployment.at(folder) if rank == 0 else None
        publisher: RegistryPublisher | None = self.deployment.publisher if self.deployment else None
        self.publication = Publication(self.store, rank, size, publisher, DEADLINES, self.sync.release, self.sync.renew)
        self.fault = ""

    def make_group(self, generation: int) -> dist.ProcessGroup:
        """A gloo group of its own for each generation."""
        store = dist.PrefixStore(f"tp/{generation}", self.store.clone())
        return dist.ProcessGroupGloo(store, self.rank, CONFIG.tp, timedelta(seconds=COLLECTIVE_S))

    def train(self) -> None:
        """One step of training, so that the next version has other content."""
        descend(self.model, torch.linspace(-1, 1, 5 * CONFIG.hidden).view(1, 5, CONFIG.hidden), self.sync.group)

    def export(self) -> Any:
        """The collective export that Relax's backend does."""
        if self.fault == "raise before the collective":
            raise ZeroDivisionError("the export has a bug")
        if self.fault == "stop in the export":
            self.wait("export")
        parameters = dict(self.model.named_parameters())
        if self.fault == "a parameter is missing":
            parameters.popitem()
        local = self.sync.export_local_adapter(parameters)
        if self.fault == "raise after the collective":
            raise ZeroDivisionError("the export has a bug")
        full = self.sync.gather_full_adapter(local, all_gather=False)
        return None if full is None else (self.sync.config_dict(), full)

    def wait(self, where: str) -> None:
        """Say where this rank is and go on at the next message; a kill or a stop comes meanwhile."""
        self.connection.send({"reached": where})
        self.connection.recv()

    def arm(self, fault: str) -> None:
        """Put this step's fault where it happens."""
        self.fault = fault
        if self.deployment is None:
            return
        client = self.deployment.client
        client.unreachable = {"reserve", "ask"} if fault == "registry unreachable" else set()
        client.lost_replies["commit"] = int(fault == "lose the commit's reply")
        self.deployment.in_drive = self.in_drive

    def in_drive(self) -> None:
        """Called by the driver between reserve and commit."""
        fault, self.fault = self.fault, ""
        if fault == "raise in the driver":
            raise ZeroDivisionError("the driver has a bug")
        if fault == "stop in the driver":
            self.wait("driver")

    def step(self, version: int, fault: str) -> dict[str, Any]:
        self.arm(fault)
        start = time.monotonic()
        result = self.publication.step(version, self.export)
        seconds = time.monotonic() - start
        self.arm("")
        return {"flag": int(result), "reason": result.reason, "skipped": result.skipped, "seconds": seconds}

    def agree(self, flag: int) -> int:
        """What Relax does with the flag: one shared all_reduce of its maximum."""
        shared = torch.tensor([flag], dtype=torch.int32)
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX
        self.sync.group.allreduce([shared], options).wait()
        return int(shared.item())


def main(connection: Connection, rank: int, size: int, port: int, folder: Path) -> None:
    """The process, until it is ended."""
    torch.set_num_threads(1)
    one = Rank(connection, rank, size, port, folder)
    connection.send({"port": one.store.port})
    while True:
        asked = connection.recv()
        match asked["do"]:
            case "train":
                one.train()
                connection.send({"trained": True})
            case "step":
                connection.send(one.step(asked["version"], asked["fault"]))
            case "agree":
                connection.send({"flag": one.agree(asked["flag"])})
            case "reclaim":
                assert one.deployment is not None
                asyncio.run(one.deployment.reclaim())
                connection.send({"reclaimed": True})
            case "default":
                assert one.deployment is not None
                connection.send({"default": str(one.deployment.host.registry.default)})

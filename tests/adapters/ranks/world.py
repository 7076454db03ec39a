"""Training ranks as real processes, driven message by message, ended by pid.

They are forked from a server that has imported torch once: a rank is there in milliseconds.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

SIZE = 3
ANSWER_S = 60.0

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["tests.adapters.ranks.rank_process"])


class RankProcess:
    """One process that runs `main(connection, *args)`."""

    def __init__(self, rank: int, main: Callable[..., None], *args: Any) -> None:
        self.rank = rank
        self._here, there = _server.Pipe()
        self.process = _server.Process(target=main, args=(there, *args), name=f"rank-{rank}", daemon=True)
        self.process.start()
        there.close()  # so that its death is heard

    def tell(self, **what: Any) -> None:
        """Give it one order."""
        self._here.send(what)

    def hear(self) -> Any:
        """Its next answer; AssertionError where none comes in time, or it died."""
        assert self._here.poll(ANSWER_S), f"rank {self.rank} says nothing"
        try:
            return self._here.recv()
        except EOFError:
            raise AssertionError(f"rank {self.rank} ended; its traceback is on stderr") from None

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, by its pid."""
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def end(self) -> None:
        """However it stands."""
        self.process.kill()
        self.process.join(30)
        self._here.close()


class World:
    """All ranks of one training job."""

    def __init__(self, folder: Path) -> None:
        from tests.adapters.ranks.rank_process import main

        self.ranks = [RankProcess(0, main, 0, SIZE, 0, folder)]
        try:
            port = self.ranks[0].hear()["port"]
            self.ranks += [RankProcess(rank, main, rank, SIZE, port, folder) for rank in range(1, SIZE)]
            for rank in self.ranks[1:]:
                rank.hear()
        except BaseException:
            self.end()
            raise

    def start(self, version: int, faults: dict[int, str] | None = None) -> None:
        """Let every rank call `step`."""
        for rank in self.ranks:
            rank.tell(do="step", version=version, fault=(faults or {}).get(rank.rank, ""))

    def step(self, version: int, faults: dict[int, str] | None = None) -> list[dict[str, Any]]:
        """What `step` answered on each rank."""
        self.start(version, faults)
        return [rank.hear() for rank in self.ranks]

    def train(self) -> None:
        """One optimizer step on all."""
        for rank in self.ranks:
            rank.tell(do="train")
        for rank in self.ranks:
            rank.hear()

    def reclaim(self) -> None:
        """Free the slots of versions that nobody holds."""
        self.ranks[0].tell(do="reclaim")
        self.ranks[0].hear()

    def default(self) -> str:
        """The registry's default."""
        self.ranks[0].tell(do="default")
        return str(self.ranks[0].hear()["default"])

    def end(self) -> None:
        """By pid."""
        for rank in self.ranks:
            rank.end()


__all__ = ["Connection", "RankProcess", "World"]

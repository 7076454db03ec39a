"""A source in a process of its own, which says where it is and waits there until it is told to go on."""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path

from attrs import frozen

from lorafsm.engine.answers import Answer
from lorafsm_torch.errors import TransferError
from lorafsm_torch.rounds import send_bucket
from lorafsm_torch.sender import Lobby
from tests.adapters.transport.stories import EngineProcess, Fleet, large, new_attempt


@frozen
class _Halting:
    """A port that halts before it asks for the acknowledgement."""

    port: EngineProcess
    halt: Connection

    @property
    def engine(self) -> str:
        return self.port.engine

    def arm(self, number: int, bucket: int) -> Answer:
        return self.port.arm(number, bucket)

    def receive(self, number: int, bucket: int, wait_s: float) -> Answer:
        _halt(self.halt, "sent", number)
        return self.port.receive(number, bucket, wait_s)


def main(engines: list[tuple[str, int, Path, int]], number: int, parent: Connection) -> None:
    """Publish the large adapter as this number; halt when begun, armed, and before each acknowledgement."""
    fleet = Fleet({name: EngineProcess(name, *rest) for name, *rest in engines}, Lobby(), number - 1)
    attempt = new_attempt(fleet, large(7), cap=32 << 20)
    try:
        with attempt.sender:
            attempt.begin_all()
            _halt(parent, "begun", number)
            ports = [_Halting(port, parent) for port in attempt.ports]
            send_bucket(attempt.sender, ports, 0, lambda: _halt(parent, "armed", number), deadlines=attempt.deadlines)
        parent.send(("ended", "without an error"))
    except TransferError as error:
        parent.send(("ended", str(error.code)))


def _halt(parent: Connection, where: str, number: int) -> None:
    parent.send((where, number))
    parent.recv()

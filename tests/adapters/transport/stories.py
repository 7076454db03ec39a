"""What the tests of the transport have in common: adapters, a fleet of real engine processes, whole attempts."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from attrs import asdict, define, field

from lorafsm.engine import answers as ans
from lorafsm.engine import orders as inp
from lorafsm.identity import VersionKey, lora_name
from lorafsm_torch import Snapshot, freeze_snapshot
from lorafsm_torch.announcement import Announcement
from lorafsm_torch.deadlines import Deadlines
from lorafsm_torch.rounds import Round, send_bucket
from lorafsm_torch.sender import Lobby, Sender

ROOT = Path(__file__).parents[3]
EPOCH = "t"
SHARED = Path("/dev/shm")
QUICK = Deadlines(join=5, arm=2, broadcast=3, receive=6, settle=3)
CONFIG = {
    "base_model_name_or_path": None,
    "bias": "none",
    "lora_alpha": 8,
    "peft_type": "LORA",
    "r": 4,
    "target_modules": ["q_proj", "v_proj"],
    "task_type": "CAUSAL_LM",
}


def large(seed: int) -> Snapshot:
    """48 MiB, more than the sockets' buffers hold: a receiver that is paused keeps the source waiting."""
    return adapter(seed, hidden=1 << 20, layers=1)


def adapter(seed: int, hidden: int = 256, layers: int = 2) -> Snapshot:
    """A small LoRA of two dtypes; several tensors share a bucket, and some span two."""
    random = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(layers):
        for module, dtype in (("q_proj", torch.bfloat16), ("v_proj", torch.float32)):
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            tensors[f"{name}.lora_A.weight"] = torch.randn(4, hidden, generator=random).to(dtype)
            tensors[f"{name}.lora_B.weight"] = torch.randn(hidden, 4, generator=random).to(dtype)
    return freeze_snapshot(CONFIG, tensors)


@define
class EngineProcess:
    """One engine process and the source's way to it."""

    engine: str
    incarnation: int
    root: Path
    port: int
    process: Any = None  # None in a process that did not start it
    life: Any = None  # it ends when this is closed
    _calls: list[Any] = field(factory=list)  # connections that are free
    _lock: threading.Lock = field(factory=threading.Lock)

    def ask(self, order: str, fields: Any = None, transfer: Any = None, wait_s: float = 0.0) -> dict[str, Any]:
        """One request; ConnectionError when the process is dead, TimeoutError when it is silent."""
        with self._lock:
            stream = self._calls.pop() if self._calls else None
        if stream is None:
            connection = socket.create_connection(("127.0.0.1", self.port), timeout=2)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream = connection.makefile("rwb")
            connection.settimeout(20)
            connection.close()  # the stream keeps it open
        request = {"order": order, "fields": fields, "transfer": transfer, "wait_s": wait_s}
        stream.write(json.dumps(request).encode() + b"\n")
        stream.flush()
        line = stream.readline()
        if not line:
            raise ConnectionError(f"{self.engine} is gone")
        with self._lock:
            self._calls.append(stream)
        reply: dict[str, Any] = json.loads(line)
        return reply

    def give(self, order: inp.EngineOrder, transfer: Any = None, wait_s: float = 0.0) -> ans.Answer:
        """One order to the engine's agent."""
        from tests.adapters.transport.engine_process import read_answer

        fields = asdict(order)
        return read_answer(self.ask(inp.name_of(type(order)), fields, transfer, wait_s))

    def _addressed(self, number: int, bucket: int) -> dict[str, Any]:
        return {
            "epoch": EPOCH,
            "engine": self.engine,
            "incarnation": self.incarnation,
            "number": number,
            "bucket": bucket,
        }

    def arm(self, number: int, bucket: int) -> ans.Answer:
        return self.give(inp.ArmBucket(**self._addressed(number, bucket)))

    def receive(self, number: int, bucket: int, wait_s: float) -> ans.Answer:
        return self.give(inp.ReceiveBucket(**self._addressed(number, bucket)), wait_s=wait_s)

    def pause(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def stash(self, number: int) -> Path:
        return self.root / str(number) / "adapter_model.safetensors"


FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.adapters.transport.engine_process"])
"""Processes of the tests come from one that has loaded torch."""


def start_engine(
    engine: str, incarnation: int, deadline: float = QUICK.receive, hash_on_arrival: bool = True
) -> EngineProcess:
    """A new engine process, ready to be asked."""
    from tests.adapters.transport.engine_process import main

    root = SHARED / f"lorafsm-test-{os.getpid()}-{engine}-{incarnation}"
    ours, theirs = FORKS.Pipe()
    how = (engine, incarnation, root, deadline, hash_on_arrival, theirs)
    process = FORKS.Process(target=main, args=how, daemon=True)
    process.start()
    theirs.close()
    return EngineProcess(engine, incarnation, root, ours.recv(), process, ours)


@define
class Fleet:
    """The engines, the numbers, and the source's lobby: what outlives every attempt."""

    engines: dict[str, EngineProcess]
    lobby: Lobby
    number: int = 0

    def restart(self, engine: str) -> None:
        """A dead engine's successor; the others go on."""
        old = self.engines[engine]
        old.kill()
        shutil.rmtree(old.root, ignore_errors=True)
        self.engines[engine] = start_engine(engine, old.incarnation + 1)

    def close(self) -> None:
        for engine in self.engines.values():
            engine.kill()
            shutil.rmtree(engine.root, ignore_errors=True)


@define
class Attempt:
    """One attempt from the source's side, a step at a time."""

    fleet: Fleet
    snapshot: Snapshot
    number: int
    announcement: Announcement
    sender: Sender
    deadlines: Deadlines

    @property
    def ports(self) -> list[EngineProcess]:
        return list(self.fleet.engines.values())

    @property
    def key(self) -> VersionKey:
        return VersionKey(EPOCH, self.number)

    def content(self, engine: EngineProcess) -> dict[str, Any]:
        """What every order of the attempt says."""
        return {
            "epoch": EPOCH,
            "engine": engine.engine,
            "incarnation": engine.incarnation,
            "number": self.number,
            "key": self.key,
            "digest": self.snapshot.digest,
            "lora_name": lora_name(self.key, self.snapshot.digest),
        }

    def begin(self, engine: EngineProcess, **other: Any) -> ans.Answer:
        document = {**self.announcement.render(), **other}
        order = inp.Begin(**self.content(engine), plan=self.announcement.plan.plan)
        return engine.give(order, document)

    def begin_all(self) -> None:
        for engine in self.ports:
            assert isinstance(answer := self.begin(engine), ans.Prepared), answer
        self.sender.join()

    def send(self, bucket: int, authorize: Callable[[], object] = lambda: None) -> Round:
        return send_bucket(self.sender, self.ports, bucket, authorize, deadlines=self.deadlines)

    def end(self, engine: EngineProcess) -> ans.Answer:
        return engine.give(inp.End(**self.content(engine)), wait_s=20)

    def clean(self, engine: EngineProcess) -> ans.Answer:
        return engine.give(inp.Cleanup(**self.content(engine)), wait_s=20)


def new_attempt(
    fleet: Fleet, snapshot: Snapshot, *, cap: int = 3000, deadlines: Deadlines = QUICK, check: bool = False
) -> Attempt:
    """Announce the next number; nobody has heard of it yet."""
    fleet.number += 1
    announcement = Announcement(
        epoch=EPOCH,
        number=fleet.number,
        manifest=snapshot.manifest,
        cap=cap,
        engines=tuple((e.engine, e.incarnation) for e in fleet.engines.values()),
        meeting=fleet.lobby.meeting(EPOCH, fleet.number),
    )
    sender = Sender(snapshot, announcement, deadlines=deadlines, check_while_sending=check)
    return Attempt(fleet, snapshot, fleet.number, announcement, sender, deadlines)


def send_all(attempt: Attempt) -> None:
    """Begin everywhere, and send every bucket."""
    with attempt.sender:
        attempt.begin_all()
        for bucket in attempt.announcement.plan.buckets:
            attempt.send(bucket.index)


def publish(fleet: Fleet, snapshot: Snapshot, **how: Any) -> Attempt:
    """A whole attempt that must succeed, and its adapters removed afterwards."""
    attempt = new_attempt(fleet, snapshot, **how)
    send_all(attempt)
    for engine in attempt.ports:
        answer = attempt.end(engine)
        assert isinstance(answer, ans.Ready), answer
        assert answer.digest == snapshot.digest
        look = engine.ask("look")
        assert look["loaded"][str(attempt.number)] == snapshot.digest, "the engine read other bytes"
        asked = [tuple(item) for item in look["posted"] if item[0] == attempt.number]
        assert asked == [(attempt.number, b.index) for b in attempt.announcement.plan.buckets], "one collective each"
        assert not engine.stash(attempt.number).exists(), "memory is free once the engine has loaded"
        assert isinstance(attempt.clean(engine), ans.Cleaned)
    return attempt


def until(condition: Callable[[], bool], what: str, within_s: float = 10.0) -> None:
    """Wait for a condition."""
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {within_s} s"
        time.sleep(0.005)


def two_engines() -> Iterator[Fleet]:
    """E0 and E1, and an end of them."""
    fleet = Fleet({}, Lobby())
    try:
        for name in ("E0", "E1"):
            fleet.engines[name] = start_engine(name, 1)
        yield fleet
    finally:
        fleet.close()

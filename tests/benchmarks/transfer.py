"""A snapshot to two engine processes beside a bare `torch.distributed.broadcast` of the same bytes, in turns.

The wire is what lies between the first arming and the last acknowledgement.  Every engine runs the core's agent and is
asked over a socket; the bare one has nothing but the broadcast, whose end each receiver says.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from attrs import frozen

from tests.benchmarks.figures import Figure, Goal
from tests.benchmarks.sizes import FULL, Sizes

GOALS = {
    "transfer.10MB.ratio": Goal(at_least=0.5),
    "transfer.100MB.ratio": Goal(at_least=0.8),
    "transfer.1GB.ratio": Goal(at_least=0.8),
    "transfer.1GB.with_digest_ratio": Goal(at_least=0.35),
    "digest.ratio": Goal(at_least=0.9),
    "transfer.peak_memory_ratio": Goal(1.0),
}

_BYTES = {"10MB": 10_000_000, "100MB": 100_000_000, "1GB": 1_000_000_000}
_TURNS = {"10MB": 15, "100MB": 7, "1GB": 3}
_TENSOR = 4_000_000  # bytes of one
_CAP = 64 << 20
_DEADLINE_S = 300.0
_DIGEST_TURNS = 9


def figures(sizes: Sizes) -> Iterator[Figure]:
    """Times are medians; a ratio is bytes per second here over bytes per second of the bare broadcast."""
    full = sizes == FULL
    nbytes = {name: count if full else count // 1000 for name, count in _BYTES.items()}
    turns = _TURNS if full else dict.fromkeys(_TURNS, 2)
    yield from _digest(100 * _TENSOR if full else _TENSOR)
    arming: list[float] = []
    with _bare() as bare, _fleet(hash_on_arrival=False) as fleet:
        for name, count in nbytes.items():
            snapshot = _snapshot(count)
            taken = [(bare.seconds(snapshot), _sent(fleet, snapshot)) for _ in range(turns[name])]
            arming += [ms for _, sent in taken for ms in sent.arm_ms]
            yield _ratio(f"transfer.{name}.ratio", [(b, sent.wire_s) for b, sent in taken])
            yield Figure(f"transfer.{name}.wire_s", median(sent.wire_s for _, sent in taken), "s")
    yield Figure("transfer.arm_ms", median(arming), "ms")
    with _bare() as bare, _fleet(hash_on_arrival=True) as fleet:
        snapshot = _snapshot(nbytes["1GB"])
        taken = [(bare.seconds(snapshot), _sent(fleet, snapshot, prove=True)) for _ in range(turns["1GB"])]
        yield _ratio("transfer.1GB.with_digest_ratio", [(b, sent.proved_s) for b, sent in taken])
        del snapshot
        yield _peak(fleet, nbytes["1GB"])


def _ratio(name: str, taken: list[tuple[float, float]]) -> Figure:
    bare, ours = median(b for b, _ in taken), median(o for _, o in taken)
    return Figure(name, bare / ours, "×")


def _tensors(nbytes: int) -> dict[str, Any]:
    import torch

    size = min(_TENSOR, nbytes) // 2
    count = nbytes // (2 * size)
    return {f"w{i:05}": torch.full((size,), i % 256, dtype=torch.bfloat16) for i in range(count)}


def _snapshot(nbytes: int) -> Any:
    from lorafsm_torch import freeze_snapshot

    return freeze_snapshot({}, _tensors(nbytes))


# -- digests ------------------------------------------------------------------------------------------


def _digest(nbytes: int) -> Iterator[Figure]:
    """All tensors' digests beside bare hashlib on as many threads as there are cores, each with its share of the same
    bytes: in turns, so that whatever else runs slows both.  Also what those threads gain over one."""
    from concurrent.futures import ThreadPoolExecutor

    from lorafsm_torch.tensor_bytes import sha256_of_all

    snapshot = _snapshot(nbytes)
    data = snapshot.sequence.numpy()
    cores = len(os.sched_getaffinity(0))
    shares = [data[len(data) * n // cores : len(data) * (n + 1) // cores] for n in range(cores)]

    def together() -> None:
        with ThreadPoolExecutor(cores) as pool:
            list(pool.map(hashlib.sha256, shares))

    calls = (lambda: sha256_of_all(snapshot.tensors), together, lambda: hashlib.sha256(data))
    taken = [[_seconds(call) for call in calls] for _ in range(_DIGEST_TURNS)]
    ours = median(o for o, _, _ in taken)
    yield Figure("digest.ratio", median(t / o for o, t, _ in taken), "×")
    yield Figure(
        "digest.gb_per_s",
        nbytes / ours / 1e9,
        "GB/s",
        "hashlib, one thread",
        nbytes / median(a for *_, a in taken) / 1e9,
    )


def _seconds(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


# -- ours ---------------------------------------------------------------------------------------------


@frozen
class _Sent:
    wire_s: float
    proved_s: float  # until every process has hashed everything
    arm_ms: list[float]


@contextmanager
def _fleet(hash_on_arrival: bool) -> Iterator[Any]:
    from lorafsm_torch.sender import Lobby
    from tests.adapters.transport.stories import Fleet, start_engine

    fleet = Fleet({}, Lobby())
    try:
        for name in ("E0", "E1"):
            fleet.engines[name] = start_engine(name, 1, _DEADLINE_S, hash_on_arrival)
        yield fleet
    finally:
        fleet.close()


def _sent(fleet: Any, snapshot: Any, *, prove: bool = False) -> _Sent:
    """One attempt; given up at the end, so that the next one is the same version again."""
    from concurrent.futures import ThreadPoolExecutor

    from lorafsm_torch.deadlines import Deadlines
    from tests.adapters.transport.stories import new_attempt

    waits = Deadlines(broadcast=_DEADLINE_S, receive=_DEADLINE_S, settle=_DEADLINE_S)
    attempt = new_attempt(fleet, snapshot, cap=_CAP, deadlines=waits, check=prove)
    with attempt.sender, ThreadPoolExecutor(2) as pool:
        attempt.begin_all()
        start = time.perf_counter()
        rounds = [attempt.send(bucket.index) for bucket in attempt.announcement.plan.buckets]
        wire_s = time.perf_counter() - start
        if prove:
            asked = {"number": attempt.number, "digest": snapshot.digest}
            list(pool.map(lambda engine: engine.ask("prove", asked), attempt.ports))
        proved_s = time.perf_counter() - start
    for engine in attempt.ports:
        attempt.clean(engine)
    return _Sent(wire_s, proved_s, [1000 * done.arm_s for done in rounds])


def _peak(fleet: Any, nbytes: int) -> Figure:
    """The most memory that a process took beyond what it had before, over a snapshot and two buckets."""
    from tests.adapters.transport.engine_process import memory

    before = {engine.engine: engine.ask("forget peak")["VmRSS"] for engine in fleet.engines.values()}
    tensors = _tensors(nbytes)
    Path("/proc/self/clear_refs").write_text("5")
    here = memory()["VmRSS"]
    from lorafsm_torch import freeze_snapshot

    snapshot = freeze_snapshot({}, tensors)
    allowed = snapshot.manifest.nbytes + 2 * min(_CAP, nbytes)
    _sent(fleet, snapshot, prove=True)
    grown = [memory()["VmHWM"] - here]
    grown += [e.ask("look")["memory"]["VmHWM"] - before[e.engine] for e in fleet.engines.values()]
    return Figure("transfer.peak_memory_ratio", max(grown) / allowed, "×")


# -- the bare broadcast -------------------------------------------------------------------------------


class _Bare:
    """Rank 0 of a group of three, and its receivers' processes."""

    def __init__(self) -> None:
        import torch.distributed as dist

        from tests.adapters.transport.stories import FORKS

        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        self._dist = dist
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._pipes, self._processes = [], []
        for rank in (1, 2):
            ours, theirs = FORKS.Pipe()
            process = FORKS.Process(target=_bare_receiver, args=(store.port, rank, theirs), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)
        dist.init_process_group("gloo", store=dist.PrefixStore("bare", store), rank=0, world_size=3)

    def seconds(self, snapshot: Any) -> float:
        """One broadcast of all the snapshot's bytes, until both receivers say that they have them."""
        data = snapshot.sequence
        for pipe in self._pipes:
            pipe.send(data.numel())
        for pipe in self._pipes:
            pipe.recv()  # its memory is there
        start = time.perf_counter()
        self._dist.broadcast(data, 0)
        for pipe in self._pipes:
            pipe.recv()
        took = time.perf_counter() - start
        for pipe in self._pipes:
            pipe.send("free")
        return took

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        self._dist.destroy_process_group()
        for process in self._processes:
            process.join()


@contextmanager
def _bare() -> Iterator[_Bare]:
    bare = _Bare()
    try:
        yield bare
    finally:
        bare.close()


def _bare_receiver(port: int, rank: int, parent: Any) -> None:
    import torch
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    dist.init_process_group("gloo", store=dist.PrefixStore("bare", store), rank=rank, world_size=3)
    while True:
        try:
            nbytes = parent.recv()
        except EOFError:
            return
        data = torch.zeros(nbytes, dtype=torch.uint8)
        parent.send("ready")
        dist.broadcast(data, 0)
        parent.send("done")
        parent.recv()
        del data

"""What the guard costs: one real engine with it and one without, asked in turns; and its CPU time in SGLang's process.

Starts engines, so it is the topic `engines`, which the tiny sizes leave out.
"""

from __future__ import annotations

import asyncio
import secrets
import statistics
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from lorafsm import events as ev
from lorafsm.identity import VersionKey, lora_name
from lorafsm.manifest import store_plan
from lorafsm.orders import Begin, End
from lorafsm_sglang import OK, EnginePort, EngineProcess, Sampling, wait_all_ready
from lorafsm_sglang.cpu_profile import cpu_environment, cpu_flags
from lorafsm_sglang.guard import GuardedEngine, guard_environment, write_token
from lorafsm_sglang.tiny_model import VOCAB_SIZE, lora_fixture, write_lora, write_model
from lorafsm_torch import ArtifactStore, freeze_snapshot
from tests.adapters.guard_processes import run
from tests.benchmarks.figures import Figure, Goal
from tests.benchmarks.sizes import Sizes

GOALS = {"guard.throughput_ratio": Goal(at_least=0.95), "guard.cpu_us": Goal(100)}
AT_ONCE, TOKENS, WARM_UP, PAIRS = 8, 48, 2, 24
PROMPT = list(range(40, 72))


async def burst(port: EnginePort, name: str) -> tuple[float, list[float]]:
    """Tokens a second of `AT_ONCE` requests, and the seconds of each."""

    async def one() -> float:
        start = time.perf_counter()
        answer = await port.generate(PROMPT, name, Sampling(TOKENS, ignore_eos=True), uuid.uuid4().hex)
        assert isinstance(answer, OK), answer
        return time.perf_counter() - start

    start = time.perf_counter()
    each = await asyncio.gather(*(one() for _ in range(AT_ONCE)))
    return AT_ONCE * TOKENS / (time.perf_counter() - start), each


async def measure(ports: dict[str, EnginePort], names: dict[str, str]) -> list[Figure]:
    """The guarded engine beside the other, which goes first in every other pair."""
    rates, seconds = ({kind: list[float]() for kind in ports} for _ in range(2))
    for pair in range(WARM_UP + PAIRS):
        for kind in sorted(ports, reverse=pair % 2 == 1):
            rate, each = await burst(ports[kind], names[kind])
            if pair >= WARM_UP:
                rates[kind].append(rate)
                seconds[kind] += each
    ratio = statistics.median(g / p for g, p in zip(rates["guarded"], rates["plain"], strict=True))
    at = {kind: statistics.quantiles(values, n=100) for kind, values in seconds.items()}
    middle = {kind: statistics.median(values) for kind, values in rates.items()}
    return [
        Figure("guard.tokens_per_s", middle["guarded"], "tokens/s", "no guard", middle["plain"]),
        Figure("guard.throughput_ratio", ratio, "×"),
        Figure("guard.latency_p50.ms", at["guarded"][49] * 1000, "ms", "no guard", at["plain"][49] * 1000),
        Figure("guard.latency_p99.ms", at["guarded"][98] * 1000, "ms", "no guard", at["plain"][98] * 1000),
        Figure("guard.latency_p99_ratio", at["guarded"][98] / at["plain"][98], "×"),
    ]


async def compare(plain: EngineProcess, guarded: EngineProcess, folder: Path, token: str) -> list[Figure]:
    """The same adapter on both, loaded by SGLang's own route on one and by orders on the other."""
    snapshot = freeze_snapshot(*reversed(lora_fixture("A")))
    key = VersionKey("c1", 1)
    name = lora_name(key, snapshot.digest)
    ArtifactStore(folder / "store").put(key, snapshot)
    asking = GuardedEngine("E0", 0, guarded.url, token, lambda: 0)
    incarnation = (await asking.attest()).incarnation
    await asking.aclose()
    engine = GuardedEngine("E0", incarnation, guarded.url, token, lambda: 0)
    what = {"epoch": "c1", "engine": "E0", "incarnation": incarnation, "number": 1}
    what |= {"key": key, "digest": snapshot.digest, "lora_name": name}
    await engine.carry_out(Begin(**what, plan=store_plan()))
    assert isinstance(await engine.carry_out(End(**what)), ev.Ready)
    await engine.aclose()
    async with EnginePort(plain.url, vocab_size=VOCAB_SIZE) as p, EnginePort(guarded.url, vocab_size=VOCAB_SIZE) as g:
        assert isinstance(await p.load("A", write_lora(folder / "A", "A")), OK)
        return await measure({"plain": p, "guarded": g}, {"plain": "A", "guarded": name})


def figures(sizes: Sizes) -> Iterator[Figure]:
    """Ratios of medians over `PAIRS` interleaved pairs of bursts, and CPU time of the guard's own code a request."""
    with tempfile.TemporaryDirectory(prefix="lorafsm-cost-") as made:
        folder, token = Path(made), secrets.token_hex(16)
        model = write_model(folder / "model")
        seen = run(folder, {"guarded": None}, only="cost")
        yield Figure("guard.cpu_us", seen["guarded"]["cost"]["cpu_us"], "µs")
        flags = cpu_flags(model)
        told = guard_environment(
            cpu_environment(),
            "E0",
            "c1",
            store=folder / "store",
            host=folder / "host",
            token_file=write_token(folder / "token", token),
        )
        plain = EngineProcess("plain", flags, cpu_environment(), folder / "plain.log")
        guarded = EngineProcess("guarded", flags, told, folder / "guarded.log", module="lorafsm_sglang.serve")
        try:
            for each in (plain, guarded):
                each.start()
            wait_all_ready((plain, guarded), 240)
            yield from asyncio.run(compare(plain, guarded, folder, token))
        finally:
            for each in (plain, guarded):
                each.stop()

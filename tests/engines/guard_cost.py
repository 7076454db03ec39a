"""What the guard costs: one engine with it and one without, asked in turns.  `python -m tests.engines.guard_cost`.

Prints `guard.throughput_ratio` (median over the pairs of tokens/s with the guard to tokens/s without),
`guard.latency_p99_ratio` and the number of pairs.  `guard.cpu_us` comes from tests/adapters/test_guard_tokenizer.py.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import statistics
import sys
import tempfile
import time
import uuid
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

AT_ONCE, TOKENS, WARM_UP = 8, 48, 2
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


async def measure(ports: dict[str, EnginePort], names: dict[str, str], pairs: int) -> dict[str, float]:
    """Ratios of the guarded engine to the other, which goes first in every other pair."""
    ratios, seconds = [], {kind: list[float]() for kind in ports}
    for pair in range(WARM_UP + pairs):
        rates = {}
        for kind in sorted(ports, reverse=pair % 2 == 1):
            rates[kind], each = await burst(ports[kind], names[kind])
            if pair >= WARM_UP:
                seconds[kind] += each
        if pair >= WARM_UP:
            ratios.append(rates["guarded"] / rates["plain"])
    p99 = {kind: statistics.quantiles(values, n=100)[98] for kind, values in seconds.items()}
    return {
        "guard.throughput_ratio": round(statistics.median(ratios), 4),
        "guard.latency_p99_ratio": round(p99["guarded"] / p99["plain"], 4),
        "guard.pairs": pairs,
    }


async def compare(plain: EngineProcess, guarded: EngineProcess, folder: Path, token: str, pairs: int) -> None:
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
        print(json.dumps(await measure({"plain": p, "guarded": g}, {"plain": "A", "guarded": name}, pairs)))


def main() -> None:
    """Start both engines, compare, stop them by pid."""
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    with tempfile.TemporaryDirectory(prefix="lorafsm-cost-") as made:
        folder, token = Path(made), secrets.token_hex(16)
        flags = cpu_flags(write_model(folder / "model"))
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
            asyncio.run(compare(plain, guarded, folder, token, pairs))
        finally:
            for each in (plain, guarded):
                each.stop()


if __name__ == "__main__":
    main()

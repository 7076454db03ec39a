"""Requests that end in every way, and what was seen of them: the load of the guard's stress test."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import Counter

from lorafsm_sglang import OK, EnginePort, Sampling
from lorafsm_sglang import Refused as HttpRefused

PROMPT = list(range(100, 116))
TOLERANCE = 0.001  # nats
AT_ONCE = 12
KINDS = ("finish", "finish", "finish", "over context", "bad name", "abort", "gone")

Baseline = tuple[int, float]
"""The greedy token of a version after `PROMPT`, and its log-probability in nats."""


def rid() -> str:
    return uuid.uuid4().hex


async def scored(web: EnginePort, lora_name: str) -> Baseline:
    """What a version says to `PROMPT`."""
    answer = await web.score(PROMPT, lora_name, rid())
    assert isinstance(answer, OK), answer
    return answer.data.output_ids[0], answer.data.output_logprobs[0]


class Traffic:
    """Keeps `AT_ONCE` requests open on the versions that may be asked, and notes how each ended."""

    def __init__(self, web: EnginePort, requests: int, seed: int) -> None:
        self.web, self.random = web, random.Random(seed)
        self.open_to: dict[str, Baseline] = {}  # lora_name -> its baseline
        self.left = requests
        self.ended: Counter[str] = Counter()
        self.wrong: list[str] = []

    async def run(self) -> None:
        await asyncio.gather(*(self._client() for _ in range(AT_ONCE)))

    async def _client(self) -> None:
        while self.left > 0:
            if not self.open_to:
                await asyncio.sleep(0.01)
                continue
            self.left -= 1
            name = self.random.choice(sorted(self.open_to))
            await self._one(self.random.choice(KINDS), name, self.open_to[name])

    async def _one(self, kind: str, name: str, baseline: Baseline) -> None:
        if kind == "finish":
            answer = await self.web.score(PROMPT, name, rid())
            if isinstance(answer, OK):
                token, logprob = answer.data.output_ids[0], answer.data.output_logprobs[0]
                if token != baseline[0] or abs(logprob - baseline[1]) > TOLERANCE:
                    self.wrong.append(f"{name}: {token} {logprob} instead of {baseline}")
                self.ended["finish"] += 1
                return
        elif kind == "over context":
            answer = await self.web.generate([5] * 2100, name, Sampling(max_new_tokens=2), rid())
        elif kind == "bad name":
            answer = await self.web.score(PROMPT, f"{name[:-12]}{'0' * 12}", rid())
        else:
            mine = rid()
            task = asyncio.create_task(self.web.generate(PROMPT, name, Sampling(400, ignore_eos=True), mine))
            await asyncio.sleep(self.random.random() * 0.2)
            if kind == "gone":
                task.cancel()
                await asyncio.wait({task})
                self.ended["gone"] += 1
                return
            await self.web.abort(mine)
            answer = await task
        self.ended[kind if not isinstance(answer, HttpRefused) else answer.message.partition(":")[0][:24]] += 1

    async def until_left(self, goal: int) -> None:
        """Wait until only so many requests are still to be sent."""
        while self.left > goal:  # noqa: ASYNC110 - a condition that nobody signals
            await asyncio.sleep(0.02)

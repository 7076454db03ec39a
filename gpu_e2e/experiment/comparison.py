"""What the protocol buys: the same arrivals on engines without it, published to in two ways that are in use.

* overwrite: pause (which aborts), flush, unload, load another content under the same name, continue;
* retention: a new name each time; on its commit the version before the last one is unloaded.

Nothing stands in for the protocol here: no guard, no registry, no binding.  A session keeps the name that it began
with, as a client does that was told one.  An answer is of the wrong version if its tokens' log-probabilities are not
those of the content that its session began with (transformers, merged).
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeAlias

import httpx
from attrs import define, field, frozen

from gpu_e2e.checks import Expectations
from gpu_e2e.conversation import token_ids
from gpu_e2e.experiment.context import Context
from gpu_e2e.experiment.plan import Plan
from lorafsm.identity import VersionKey, lora_name
from lorafsm_sglang import OK, Arrival, EnginePort, Generation, Logprobs, Reply, Sampling
from lorafsm_torch import ArtifactStore

PUBLICATIONS = 4  # after the first version
LIVES = 3  # publications that a held session outlives: agentic rollouts take longer than one step of training
_BETWEEN_S = 1.0
_TURN_S = 0.3  # a held session's tool takes so long
_SAME = "policy"


@frozen
class Answered:
    """One answer: under which content its session began, prompt, and what came."""

    began: str
    prompt: tuple[int, ...]
    generation: Generation


@define
class Way:
    """One way of publishing and what it did to the load."""

    name: str
    plan: Plan
    ports: Mapping[str, EnginePort]
    folders: Mapping[str, str]  # of the contents, by letter
    serving: tuple[str, str] = ("", "")  # the name that new sessions are given, and the content that it stands for
    answers: list[Answered] = field(factory=list)
    sessions: int = 0
    failed: int = 0
    aborted_tokens: int = 0
    gaps_ms: list[float] = field(factory=list)
    publications_ms: list[float] = field(factory=list)
    unordered_loads: int = 0  # SGLang loads again by itself what was unloaded, when a request names it
    _tasks: set[asyncio.Task[None]] = field(factory=set)

    def join(self, engine: str, *, held: bool) -> None:
        """A session begins with what is served now; a held one goes on until the load ends or it fails."""
        self.sessions += 1
        task = asyncio.create_task(self._session(f"{self.name} {self.sessions}", engine, held))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _session(self, name: str, engine: str, held: bool) -> None:
        lora, began = self.serving
        load = self.plan.load
        history = token_ids(name, load.prompt_tokens)
        for _ in range(load.turns * (LIVES * 2 if held else 1)):
            prompt = tuple(history)
            generation = await self._turn(engine, lora, prompt)
            if generation is None:
                continue  # as an agent layer does: the turn is sent again, here as the next one
            self.answers.append(Answered(began, prompt, generation))
            history += [*generation.output_ids, *token_ids(f"{name} tool {len(history)}", load.tool_tokens)]
            if held:
                await asyncio.sleep(_TURN_S)

    async def _turn(self, engine: str, lora: str, prompt: Sequence[int]) -> Generation | None:
        sampling = Sampling(max_new_tokens=self.plan.load.new_tokens, ignore_eos=True)
        stream = self.ports[engine].stream(prompt, lora, sampling, uuid.uuid4().hex, logprobs=Logprobs())
        last, came = 0.0, 0
        reply: Reply[Generation] | None = None
        async with aclosing(stream):
            async for item in stream:
                if not isinstance(item, Arrival):
                    reply = item
                    continue
                came += len(item.token_ids)
                if last:
                    self.gaps_ms.append((item.at - last) * 1000)
                last = item.at
        if isinstance(reply, OK) and not reply.data.aborted:
            return reply.data
        self.failed += 1
        self.aborted_tokens += came
        return None

    async def end(self) -> None:
        """Wait for the sessions that are there."""
        await asyncio.gather(*self._tasks)


Publish: TypeAlias = Callable[[Way, int, str], Awaitable[None]]
"""(way, number of the publication, content): published when it returns."""


async def run(context: Context, ports: Mapping[str, EnginePort]) -> dict[str, Any]:
    """Both ways, one after the other, on these engines without a guard; `rows` has one row a way.

    `wrong_version` is None where the plan has no witness.
    """
    store = ArtifactStore(context.out / "comparison" / "store")
    folders = {}
    for letter, snapshot in context.snapshots.items():
        key = VersionKey("comparison", list(context.snapshots).index(letter) + 1)
        store.put(key, snapshot)
        folders[letter] = str(store.path(lora_name(key, snapshot.digest)).resolve())
    ways = []
    for name, publish in WAYS.items():
        context.progress(f"comparison: {name}")
        before = _loads(context, ports)
        way = await _played(Way(name, context.plan, ports, folders), publish, list(folders))
        way.unordered_loads = _loads(context, ports) - before - len(ports) * (PUBLICATIONS + 1)
        ways.append(way)
    rows = await asyncio.to_thread(lambda: [_row(context, way) for way in ways])
    expect = Expectations()
    for way in ways:
        expect.at_least(f"{way.name}: answers", 1, len(way.answers))
    return {"ok": expect.ok, "conditions": expect.rows, "rows": rows}


async def _played(way: Way, publish: Publish, letters: Sequence[str]) -> Way:
    loop = asyncio.get_running_loop()
    await publish(way, 0, letters[0])
    engines = itertools.cycle(way.ports)
    arrivals = asyncio.create_task(_arrive(way, engines))
    for number in range(1, PUBLICATIONS + 1):
        for engine in way.ports:
            way.join(engine, held=True)
        await asyncio.sleep(_BETWEEN_S)
        start = loop.time()
        await publish(way, number, letters[number % len(letters)])
        way.publications_ms.append((loop.time() - start) * 1000)
    await asyncio.sleep(_BETWEEN_S)
    arrivals.cancel()
    await asyncio.gather(arrivals, return_exceptions=True)
    await way.end()
    return way


async def _arrive(way: Way, engines: Any) -> None:
    while True:
        way.join(next(engines), held=False)
        await asyncio.sleep(1 / way.plan.load.arrival_per_s)


async def _overwrite(way: Way, number: int, letter: str) -> None:
    """On all engines at once; the content behind the name is another one afterwards."""

    async def one(port: EnginePort) -> None:
        if number:
            await _post(port, "pause_generation", {"mode": "abort"})
            await _post(port, "flush_cache", {})
            _must(await port.unload(_SAME))
        _must(await port.load(_SAME, way.folders[letter], pinned=False))
        if number:
            await _post(port, "continue_generation", {})

    await asyncio.gather(*map(one, way.ports.values()))
    way.serving = (_SAME, letter)


async def _retain(way: Way, number: int, letter: str) -> None:
    """Load under a new name everywhere, serve it, unload the one before the last."""
    names = [f"v{n}" for n in range(number + 1)]
    await asyncio.gather(*(_loaded(port, names[-1], way.folders[letter]) for port in way.ports.values()))
    way.serving = (names[-1], letter)
    if number >= 2:
        await asyncio.gather(*(port.unload(names[-3]) for port in way.ports.values()))


async def _loaded(port: EnginePort, name: str, folder: str) -> None:
    _must(await port.load(name, folder, pinned=False))


WAYS: Mapping[str, Publish] = {"pause, flush, overwrite": _overwrite, "retention window": _retain}


def _must(reply: Reply[Any]) -> None:
    if not isinstance(reply, OK):
        raise RuntimeError(f"the comparison's engine did not do it: {reply}"[:400])


async def _post(port: EnginePort, route: str, body: Mapping[str, Any]) -> None:
    """Routes that stop everybody; `EnginePort` has none of them, and the protocol needs none."""
    async with httpx.AsyncClient(base_url=port.base_url, timeout=60.0, trust_env=False) as client:
        (await client.post(f"/{route}", json=dict(body))).raise_for_status()


def _loads(context: Context, ports: Mapping[str, EnginePort]) -> int:
    """Loads of adapters that these engines' own logs tell of, ordered or not."""
    logs = (context.out / "baselines" / "logs" / f"engine-{name}.log" for name in ports)
    return sum(log.read_text(errors="replace").count("LoRA adapter loading starts") for log in logs)


def _row(context: Context, way: Way) -> dict[str, Any]:
    return {
        "way": way.name,
        "sessions": way.sessions,
        "answers": len(way.answers),
        "failed_requests": way.failed,
        "aborted_tokens": way.aborted_tokens,
        "wrong_version": _wrong(context, way.answers) if context.plan.numeric.witness else None,
        "unordered_loads": way.unordered_loads,
        "largest_gap_ms": round(max(way.gaps_ms, default=0.0), 1),
        "publication_ms": round(max(way.publications_ms, default=0.0), 1),
    }


def _wrong(context: Context, answers: Sequence[Answered]) -> int:
    """Answers with a token that is more than epsilon off the version that their session began with."""
    from gpu_e2e.reference import Reference

    reference, wrong = Reference(context.model), 0
    for letter, snapshot in context.snapshots.items():
        reference.add(letter, snapshot.tensors, snapshot.config)
    for answer in answers:
        said = answer.generation
        expected = reference.score(answer.began, answer.prompt, said.output_ids)
        error = max(abs(a - b) for a, b in zip(expected, said.output_logprobs, strict=True))
        wrong += error > context.plan.numeric.epsilon
    return wrong

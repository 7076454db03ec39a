"""The story that the run tells: A is published, B over it, C is refused, A reclaimed, C published, D fails cleanly.

Each act says what it does and what must be seen; the names are those of RFC 3.4 and 5.2.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attrs import define, field

from gpu_e2e.checks import Expectations
from gpu_e2e.conversation import Answer, Cast, Conversation, token_ids
from gpu_e2e.fleet import Fleet
from gpu_e2e.services import Services
from gpu_e2e.transport import Transport
from lorafsm.events import ArtifactStored, Commit, Reserve
from lorafsm.identity import VersionKey, lora_name
from lorafsm.lifecycle import TargetState, VersionState
from lorafsm.outcomes import Outcome, Refusal, Reserved
from lorafsm_asyncio import Refused
from lorafsm_asyncio.questions import DefaultVersion, ReclaimerOrders
from lorafsm_sglang import OK
from lorafsm_torch import ArtifactStore, Snapshot

LONG = 1800  # tokens of an answer that outlives a publication: several seconds on two cores
LONGEST = 3600  # what the context of the tiny model holds
DRAIN_S = 3.5  # for so long at least should an answer run on after the claim, on a faster machine as well
SHORT = 8
PROMPT_TOKENS = 32


@define
class Facts:
    """What the story leaves for the report."""

    shared_prompt: list[int]
    reclaim: dict[str, Any] = field(factory=dict)


@define
class Story:
    """The players; one method an act."""

    epoch: str
    services: Services
    cast: Cast
    fleet: Fleet
    transport: Transport
    store: ArtifactStore
    snapshots: dict[str, Snapshot]
    expect: Expectations
    facts: Facts
    say: Callable[[str], None]
    people: dict[str, Conversation] = field(factory=dict)
    tokens: dict[str, str] = field(factory=dict)
    seconds_per_token: float = 0.0  # of S_old's long answer

    # -- small words ----------------------------------------------------------------------------------

    def key(self, letter: str) -> VersionKey:
        """The version key: ids count from 1 in the order of the snapshots."""
        return VersionKey(self.epoch, list(self.snapshots).index(letter) + 1)

    def lora_name(self, letter: str) -> str:
        """The immutable name under which engines know the version."""
        return lora_name(self.key(letter), self.snapshots[letter].digest)

    async def state(self, letter: str) -> str:
        """The registry's word on a version."""
        return str((await self.services.version(self.key(letter))).state)

    async def default(self) -> str:
        """The letter of the default."""
        return self.cast.recorder.letter((await self.services.client.ask(DefaultVersion()))[0])

    def engine(self, index: int) -> str:
        """Where the next session is placed."""
        names = list(self.fleet.ports)
        return names[index % len(names)]

    def join(self, name: str, engine: int, prompt: list[int] | None = None) -> Conversation:
        """A new session appears."""
        opening = prompt if prompt is not None else token_ids(name, PROMPT_TOKENS)
        self.people[name] = Conversation(self.cast, name, self.engine(engine), opening)
        return self.people[name]

    async def turns(self, names: list[str], count: int, new_tokens: int = SHORT) -> None:
        """Each of these sessions takes `count` tool turns, all sessions at once."""

        async def go(person: Conversation) -> None:
            for _ in range(count):
                await person.turn(new_tokens)

        await asyncio.gather(*(go(self.people[name]) for name in names))

    async def reserve(self, letter: str) -> Outcome:
        """Ask for a slot; the content is frozen and its digest known (RFC 3.1)."""
        snapshot = self.snapshots[letter]
        self.tokens[letter] = secrets.token_hex(16)
        return await self.services.apply(
            Reserve(
                key=self.key(letter),
                digest=snapshot.digest,
                plan=self.transport.plan(snapshot),
                token=self.tokens[letter],
                tensors=len(snapshot.manifest.tensors),
                nbytes=snapshot.manifest.nbytes,
                now=self.services.clock(),
            )
        )

    async def stored(self, letter: str) -> None:
        """Put the artifact into the store and say so (rule 3)."""
        snapshot = self.snapshots[letter]
        await asyncio.to_thread(self.store.put, self.key(letter), snapshot)
        await self.services.apply(
            ArtifactStored(key=self.key(letter), digest=snapshot.digest, now=self.services.clock())
        )

    async def publish(self, letter: str) -> VersionState:
        """Reserve, store, drive; the window counts as "publishing" in the report."""
        recorder = self.cast.recorder
        start = recorder.now()
        outcome = await self.reserve(letter)
        if not isinstance(outcome, Reserved):
            raise RuntimeError(f"reserve({letter}) was answered {outcome}")
        with self.transport.attempt(outcome, self.tokens[letter], self.snapshots[letter]):
            await self.stored(letter)
            state = await self.services.publish(self.key(letter), self.tokens[letter])
        recorder.publishing.append((start, recorder.now()))
        return state

    # -- acts -----------------------------------------------------------------------------------------

    async def bootstrap(self) -> None:
        """Before A nothing can be bound; A becomes the first default (RFC 6)."""
        early = self.join("S_early", 0)
        refused = await early.bind()
        seen = refused.code if isinstance(refused, Refused) else str(refused)
        self.expect.expect("bind before A is published", "NO_PUBLISHED_VERSION", seen)
        self.expect.expect("A is published", "PUBLISHED", str(await self.publish("A")))
        for i, name in enumerate(("S_a1", "S_a2")):
            self.join(name, i)
        await self.turns(["S_early", "S_a1", "S_a2"], 4)

    async def publish_b_over_a(self) -> None:
        """While S_old generates: S_mid binds with only E0 READY(B), S_new after the commit (RFC 3.4)."""
        old = self.join("S_old", 0, self.facts.shared_prompt)
        await old.turn(SHORT)
        long_answer = asyncio.create_task(old.turn(LONG))
        await until(lambda: self.fleet.ports[old.engine].in_flight(self.lora_name("A")) > 0)
        reached, go_on = self.fleet.gates.hold("E1", "load", "B")
        start = self.cast.recorder.now()
        publication = asyncio.create_task(self.publish("B"))
        await _either(reached, publication)
        await self._ready_on_e0()
        committed = await self.services.apply(
            Commit(key=self.key("B"), token=self.tokens["B"], expected_revision=1, now=self.services.clock())
        )
        waiting = committed.engines if isinstance(committed, Refusal) else ()
        self.expect.expect("commit with READY of E0 only", ["NOT_READY", "E1"], [str(committed.code), *waiting[:1]])
        mid = self.join("S_mid", 1)
        await mid.turn(SHORT)
        self.expect.expect("S_mid, bound while only E0 is READY(B)", "A", mid.version)
        go_on.set()
        self.expect.expect("B is published", "PUBLISHED", str(await publication))
        end = self.cast.recorder.now()
        new = self.join("S_new", 1, self.facts.shared_prompt)
        other = self.join("S_new0", 0, self.facts.shared_prompt)
        await new.turn(SHORT)
        await other.turn(SHORT)
        self.expect.expect("S_new, bound after the commit", "B", new.version)
        long = await long_answer
        self._long_answer_spans(long, start, end)
        await self.turns(["S_old", "S_mid", "S_new", "S_new0"], 4)
        self._cold_then_warm("S_old", "S_new0")
        self.expect.expect("S_old goes on with", "A", old.version)
        self.expect.expect("S_mid goes on with", "A", mid.version)
        self.expect.expect("A is", "RETIRED", await self.state("A"))

    async def _ready_on_e0(self) -> None:
        """Wait until the registry has E0's READY."""

        async def ready() -> bool:
            return (await self.services.targets()).get("E0") is TargetState.READY

        await self.services.until(ready)

    def _long_answer_spans(self, long: Answer | Refused, start: float, end: float) -> None:
        """S_old's long answer ran from before the reserve to after the commit."""
        spans = isinstance(long, Answer) and long.start < start and long.end > end
        self.seconds_per_token = (long.end - long.start) / LONG if isinstance(long, Answer) else 0.0
        self.expect.expect("S_old generated through the whole publication of B", True, spans)

    def _cold_then_warm(self, old: str, new: str) -> None:
        """On one engine A is warm on the shared prefix; B starts cold all the same, then hits its own (RFC 6)."""

        def cached(session: str) -> list[int]:
            return [a.generation.cached_tokens for a in self.cast.answers if a.session == session]

        self.expect.at_least("A's second turn on the shared prefix finds cached tokens", PROMPT_TOKENS, cached(old)[1])
        self.expect.expect("B's first turn on that prefix and engine finds cached tokens", 0, cached(new)[0])
        self.expect.at_least("B's second turn there finds cached tokens", PROMPT_TOKENS, cached(new)[1])

    async def refuse_c(self) -> None:
        """Both slots are taken: C is refused before any engine hears of it (RFC 5.2)."""
        before = len(self.cast.recorder.operations)
        refused = await self.reserve("C")
        self.expect.expect("reserve(C) with A and B resident", "CAPACITY_ERROR", str(refused.code))
        self.expect.expect("engine operations caused by the refused C", 0, len(self.cast.recorder.operations) - before)
        claim = await self.services.client.ask(ReclaimerOrders(self.services.clock()))
        self.expect.expect("orders of the reclaimer while sessions hold A", 0, len(claim))

    async def reclaim_a(self) -> None:
        """A's sessions close, one of its requests still runs; unload waits for exactly that one (RFC 5.1)."""
        last = self.people["S_a1"]
        tokens = max(LONG, min(LONGEST, round(DRAIN_S / (self.seconds_per_token or 1.0))))
        running = asyncio.create_task(last.turn(tokens))
        port, name = self.fleet.ports[last.engine], self.lora_name("A")
        await until(lambda: port.in_flight(name) > 0)
        for closed in ("S_early", "S_a1", "S_a2", "S_old", "S_mid"):
            await self.people[closed].close()
        claimed_at = self.cast.recorder.now()
        reclaim = asyncio.create_task(self.services.reclaim(self.key("A")))
        await self._either_reclaiming(reclaim)
        at_claim = (await self.state("A"), port.in_flight(name))
        refused = await self.reserve("C")
        late = self._dispatch(last)
        busy = [self.join(f"S_b{i}", i).name for i in range(2)]
        await self.turns(busy, 4)
        answer = await running
        self.expect.expect("A is reclaimed", "RECLAIMED", str(await reclaim))
        unloads = {
            engine: [op for op in self.cast.recorder.operations if op["op"] == "unload" and op["engine"] == engine]
            for engine in self.fleet.ports
        }
        end = answer.end if isinstance(answer, Answer) else float("inf")
        held = unloads[last.engine][-1]["end"]
        self.facts.reclaim = {
            "drain_s": round(held - claimed_at, 3),
            "unloads": {engine: len(ops) for engine, ops in unloads.items()},
            "in_flight_at_claim": at_claim[1],
            "after_last_request_ms": round((held - end) * 1000, 1),
        }
        self.expect.expect("A at the claim", "RECLAIMING", at_claim[0])
        self.expect.at_least("requests of A in flight at the claim", 1, at_claim[1])
        self.expect.at_least("drain of A in seconds", 2.0, held - claimed_at)
        self.expect.expect("unload of A ended after its last request", True, held >= end)
        self.expect.expect("unloads of A per engine", dict.fromkeys(unloads, 1), self.facts.reclaim["unloads"])
        self.expect.expect("reserve(C) while A is RECLAIMING", "CAPACITY_ERROR", str(refused.code))
        self.expect.expect("dispatch of a closed session of A", "SESSION_CLOSED", late)

    async def _either_reclaiming(self, reclaim: asyncio.Task[VersionState]) -> None:
        async def claimed() -> bool:
            return reclaim.done() or await self.state("A") != VersionState.RETIRED

        await self.services.until(claimed)

    def _dispatch(self, person: Conversation) -> str:
        """Whether the session's owner may send a request now: a code."""
        try:
            self.services.binder.may_dispatch(person.key)
        except Refused as refused:
            return refused.code
        return "OK"

    async def publish_c(self) -> None:
        """The slot is free: C is accepted (RFC 5.2)."""
        self.expect.expect("C is published", "PUBLISHED", str(await self.publish("C")))
        for i in range(3):
            self.join(f"S_c{i}", i, self.facts.shared_prompt if i == 0 else None)
        await self.turns(["S_c0", "S_c1", "S_c2", "S_new", "S_b0"], 4)
        self.expect.expect("a session of B goes on with", "B", self.people["S_new"].version)
        self.expect.expect("a session after the commit of C gets", "C", self.people["S_c0"].version)

    async def fail_d(self) -> None:
        """E0 is READY(D), E1's copy is broken after the reserve: aborted, cleaned on both, nothing changed."""
        for name in ("S_new", "S_new0", "S_b0", "S_b1"):
            await self.people[name].close()
        self.expect.expect("B is reclaimed", "RECLAIMED", str(await self.services.reclaim(self.key("B"))))
        before = await self._probe_default("S_before")
        reached, go_on = self.fleet.gates.hold("E1", "verify", "D")
        publication = asyncio.create_task(self.publish("D"))
        await _either(reached, publication)
        await self.break_copy("E1", "D")
        await self._ready_on_e0()
        during = await self._probe_default("S_during")
        go_on.set()
        self.expect.expect("D ends", "FAILED_CLEAN", str(await publication))
        name = self.lora_name("D")
        for engine, port in self.fleet.ports.items():
            listed = await port.models()
            self.expect.expect(f"{engine} lists D", False, not isinstance(listed, OK) or name in listed.data)
        cleaned = [op["engine"] for op in self.cast.recorder.operations if (op["op"], op["version"]) == ("unload", "D")]
        self.expect.expect("D was unloaded on", ["E0"], cleaned)
        self.expect.expect("the default is still", "C", await self.default())
        after = await self._probe_default("S_after")
        self.expect.expect("the default's tokens before, during and after D", True, before == during == after)

    async def _probe_default(self, name: str) -> tuple[int, ...]:
        """The same prompt in a new session: what the default answers now."""
        answer = await self.join(name, 1, token_ids("probe of the default", PROMPT_TOKENS)).turn(SHORT)
        await self.people[name].turn(SHORT)
        return answer.generation.output_ids if isinstance(answer, Answer) else ()

    async def break_copy(self, engine: str, letter: str) -> None:
        """Break this engine's own copy of the version: the fault of this act."""
        version = await self.services.version(self.key(letter))
        if self.transport.kind == "torch":
            status = await self.fleet.executors[engine].guarded.status()
            # Not truncated: the engine has the file mapped, and would die of that.
            (Path(status["stash"]) / "received" / str(version.number) / "adapter_model.safetensors").unlink()
            return
        weights = self.fleet.replicas[engine].folder(version.lora_name) / "adapter_model.safetensors"
        with weights.open("r+b") as file:
            file.truncate(weights.stat().st_size // 2)


async def until(condition: Callable[[], bool], deadline_s: float = 60.0) -> None:
    """Wait until the condition holds; TimeoutError when it does not in time."""
    async with asyncio.timeout(deadline_s):
        while not condition():  # noqa: ASYNC110 - a condition of several parts, none of which signals
            await asyncio.sleep(0.005)


async def _either(reached: asyncio.Event, publication: asyncio.Task[VersionState]) -> None:
    """Wait for the gate, or for a publication that ended without reaching it."""
    gate = asyncio.create_task(reached.wait())
    await asyncio.wait({gate, publication}, return_when=asyncio.FIRST_COMPLETED)
    gate.cancel()


async def tell(
    epoch: str,
    services: Services,
    cast: Cast,
    fleet: Fleet,
    transport: Transport,
    store: ArtifactStore,
    snapshots: dict[str, Snapshot],
    expect: Expectations,
    say: Callable[[str], None],
) -> Facts:
    """Play all acts in order."""
    facts = Facts(token_ids("the prefix that S_old and S_new share", PROMPT_TOKENS))
    story = Story(epoch, services, cast, fleet, transport, store, snapshots, expect, facts, say)
    acts = (
        ("A is published", story.bootstrap),
        ("B is published over A, while S_old generates", story.publish_b_over_a),
        ("C is refused: no slot", story.refuse_c),
        ("A is reclaimed, one of its requests still running", story.reclaim_a),
        ("C is published", story.publish_c),
        ("D is READY on E0 and broken on E1: aborted and cleaned", story.fail_d),
    )
    for title, act in acts:
        say(title)
        await act()
    return facts


__all__ = ["Facts", "Story", "tell"]

"""Agent sessions: several tool turns each, always under the version that the first turn bound (RFC 4)."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

from attrs import define, field, frozen

from gpu_e2e.recording import Recorder
from lorafsm.events import BeginClose, BindFirst, CloseAndRelease, Open
from lorafsm.identity import SessionKey
from lorafsm.outcomes import Binding, Outcome, Refusal
from lorafsm.registry.view import may_dispatch
from lorafsm_journal import JournaledRegistry
from lorafsm_sglang import OK, Arrival, EnginePort, Generation, Logprobs, Sampling
from lorafsm_sglang.tiny_model import VOCAB_SIZE

FIRST_TOKEN_ID = 3  # below are padding, start and end of the text


@frozen
class Answer:
    """One finished request: what was asked under which version, and what came back."""

    session: str
    version: str
    turn: int
    engine: str
    prompt: tuple[int, ...]
    generation: Generation
    start: float
    end: float


@define
class Cast:
    """What all sessions share: the registry, the engines, the clock of the run, and the answers so far."""

    host: JournaledRegistry
    ports: dict[str, EnginePort]
    recorder: Recorder
    epoch: str
    owner: str
    clock: Any  # () -> ms
    answers: list[Answer] = field(factory=list)
    failures: list[str] = field(factory=list)
    opened: int = 0


def token_ids(seed: str, count: int) -> list[int]:
    """`count` token ids that depend on `seed` only."""
    draw = random.Random(seed)  # noqa: S311 - test data, not a secret
    return [draw.randrange(FIRST_TOKEN_ID, VOCAB_SIZE) for _ in range(count)]


class Conversation:
    """One session.  `engine` is where a router would have placed it."""

    def __init__(self, cast: Cast, name: str, engine: str, prompt: Sequence[int]) -> None:
        self.cast = cast
        self.name = name
        self.engine = engine
        self.key = SessionKey(cast.epoch, cast.owner, cast.opened)
        self.history = list(prompt)
        self.turns = 0
        self.version = ""
        cast.opened += 1
        cast.host.apply(Open(session=self.key, label=name, now=cast.clock()))
        cast.recorder.sessions[name] = {
            "name": name,
            "version": "",
            "start": cast.recorder.now(),
            "end": None,
            "turns": [],
        }

    def bind(self) -> Outcome:
        """Bind at the first generation; later calls answer the same (RFC 4.1)."""
        outcome = self.cast.host.apply(BindFirst(session=self.key, now=self.cast.clock()))
        if isinstance(outcome, Binding):
            self.version = self.cast.recorder.letter(outcome.key)
            self.cast.recorder.sessions[self.name]["version"] = self.version
        elif isinstance(outcome, Refusal):
            self.cast.recorder.refused(f"bind_first({self.name})", outcome.code, outcome.reason)
        return outcome

    async def turn(self, new_tokens: int, *, tool_tokens: int = 6) -> Answer | Refusal:
        """One tool turn: generate under the bound name, then take in what the tool said."""
        self.bind()
        allowed = may_dispatch(self.cast.host.registry, self.key)
        if isinstance(allowed, Refusal):
            self.cast.recorder.refused(f"dispatch({self.name})", allowed.code, allowed.reason)
            return allowed
        answer = await self._generate(allowed.lora_name, new_tokens)
        self.turns += 1
        self.history += [*answer.generation.output_ids, *token_ids(f"{self.name} tool {self.turns}", tool_tokens)]
        return answer

    async def _generate(self, lora_path: str, new_tokens: int) -> Answer:
        cast, prompt = self.cast, tuple(self.history)
        sampling = Sampling(max_new_tokens=new_tokens, ignore_eos=True)
        start, last, reply = cast.recorder.now(), 0.0, None
        stream = cast.ports[self.engine].stream(prompt, lora_path, sampling, uuid.uuid4().hex, logprobs=Logprobs())
        async with aclosing(stream):
            async for item in stream:
                if not isinstance(item, Arrival):
                    reply = item
                    continue
                if last:
                    cast.recorder.gaps.append((cast.recorder.at(item.at), (item.at - last) * 1000))
                last = item.at
        end = cast.recorder.now()
        if not isinstance(reply, OK) or reply.data.aborted or len(reply.data.output_ids) != new_tokens:
            cast.failures.append(f"{self.name} turn {self.turns + 1} on {self.engine}: {reply}"[:300])
            raise RequestFailed(cast.failures[-1])
        answer = Answer(self.name, self.version, self.turns + 1, self.engine, prompt, reply.data, start, end)
        cast.answers.append(answer)
        cast.recorder.sessions[self.name]["turns"].append(
            {
                "start": start,
                "end": end,
                "engine": self.engine,
                "cached_tokens": reply.data.cached_tokens,
                "output_tokens": len(reply.data.output_ids),
            }
        )
        return answer

    def close(self) -> Outcome:
        """No new dispatch, then the one release (RFC 4.3)."""
        now = self.cast.clock()
        self.cast.host.apply(BeginClose(session=self.key, now=now))
        outcome = self.cast.host.apply(CloseAndRelease(session=self.key, now=now))
        self.cast.recorder.sessions[self.name]["end"] = self.cast.recorder.now()
        return outcome


class RequestFailed(RuntimeError):
    """A request that should have succeeded did not; the run stops and says so."""

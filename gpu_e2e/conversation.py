"""Agent sessions: several tool turns each, always under the version that the first turn bound (RFC 4)."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from contextlib import aclosing

from attrs import define, field, frozen

from gpu_e2e.recording import Recorder
from lorafsm.outcomes import Binding
from lorafsm_asyncio import Attempt, Call, GenerateFailed, Refused, SessionBinder
from lorafsm_sglang import OK, Arrival, EnginePort, Generation, Logprobs, Reply, Sampling, UnknownKind
from lorafsm_sglang import Refused as EngineRefused
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
    """What all sessions share: their owner, the engines, and the answers so far."""

    binder: SessionBinder
    ports: dict[str, EnginePort]
    recorder: Recorder
    answers: list[Answer] = field(factory=list)
    failures: list[str] = field(factory=list)


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
        self.key = cast.binder.open(name)
        self.history = list(prompt)
        self.turns = 0
        self.version = ""
        cast.recorder.sessions[name] = {
            "name": name,
            "version": "",
            "start": cast.recorder.now(),
            "end": None,
            "turns": [],
        }

    async def bind(self) -> Binding | Refused:
        """Bind as the first generation does; later calls answer the same (RFC 4.1)."""
        try:
            binding = await self.cast.binder.ensure(self.key)
        except Refused as refused:
            self.cast.recorder.refused(f"bind_first({self.name})", refused.code, refused.message)
            return refused
        self._bound(binding)
        return binding

    async def turn(self, new_tokens: int, *, tool_tokens: int = 6) -> Answer | Refused:
        """One tool turn: generate under the bound name, then take in what the tool said."""
        rid = uuid.uuid4().hex
        try:
            async with self.cast.binder.attempt(self.key, rid) as attempt:
                self._bound(attempt.binding)
                answer = await self._generate(attempt, new_tokens)
        except Refused as refused:
            self.cast.recorder.refused(f"dispatch({self.name})", refused.code, refused.message)
            return refused
        self.turns += 1
        self.history += [*answer.generation.output_ids, *token_ids(f"{self.name} tool {self.turns}", tool_tokens)]
        return answer

    def _bound(self, binding: Binding) -> None:
        self.version = self.cast.recorder.letter(binding.key)
        self.cast.recorder.sessions[self.name]["version"] = self.version

    async def _generate(self, attempt: Attempt, new_tokens: int) -> Answer:
        cast, prompt = self.cast, tuple(self.history)
        sampling = Sampling(max_new_tokens=new_tokens, ignore_eos=True)
        start, last = cast.recorder.now(), 0.0
        reply: Reply[Generation] | None = None
        stream = cast.ports[self.engine].stream(prompt, attempt.lora_path, sampling, attempt.rid, logprobs=Logprobs())
        async with aclosing(stream):
            async for item in stream:
                if not isinstance(item, Arrival):
                    reply = item
                    continue
                if last:
                    cast.recorder.gaps.append((cast.recorder.at(item.at), (item.at - last) * 1000))
                last = item.at
        end = cast.recorder.now()
        try:
            attempt.heard(as_call(reply))
        except GenerateFailed as failed:
            raise self._failed(reply) from failed
        if not isinstance(reply, OK) or reply.data.aborted or len(reply.data.output_ids) != new_tokens:
            raise self._failed(reply)
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

    def _failed(self, reply: object) -> RequestFailed:
        self.cast.failures.append(f"{self.name} turn {self.turns + 1} on {self.engine}: {reply}"[:300])
        return RequestFailed(self.cast.failures[-1])

    async def close(self) -> None:
        """No new dispatch, then the one release (RFC 4.3)."""
        await self.cast.binder.begin_close(self.key)
        await self.cast.binder.close_and_release(self.key)
        self.cast.recorder.sessions[self.name]["end"] = self.cast.recorder.now()


def as_call(reply: Reply[Generation] | None) -> Call:
    """What an engine port's reply says of the one call (`lorafsm_asyncio.classify` judges it)."""
    if isinstance(reply, OK):
        return Call(200, {"meta_info": {}})  # the port has read the body: it was whole
    if isinstance(reply, EngineRefused):
        return Call(reply.status, {"error": {"message": reply.message}})
    return Call(0, sent=reply is None or reply.kind is not UnknownKind.NOT_CONNECTED)


class RequestFailed(RuntimeError):
    """A request that should have succeeded did not; the run stops and says so."""

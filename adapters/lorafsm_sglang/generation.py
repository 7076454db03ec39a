"""What an engine says about a generation, read from ``/generate`` once or as a stream."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import attrs
import httpx

from lorafsm_sglang.replies import OK, Refused, Reply, Unknown, UnknownKind, classify, lost, message_of, read_data


@attrs.frozen
class Arrival:
    """Tokens that came together, and when: ``at`` is seconds on this process's monotonic clock."""

    at: float
    token_ids: tuple[int, ...]


@attrs.frozen
class Generation:
    """One finished request.

    ``output_ids`` are token ids; ``output_logprobs`` (nats) has one entry an output token, or is empty
    when not asked for; ``token_ids_logprobs`` has one ``{token id: nats}`` an output token.
    ``cached_tokens`` of ``prompt_tokens`` came from the KV cache.  ``finish`` is SGLang's type: ``length``,
    ``stop`` or ``abort``.  ``arrivals`` is empty unless the request was streamed.
    """

    rid: str
    output_ids: tuple[int, ...]
    finish: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    output_logprobs: tuple[float, ...] = ()
    token_ids_logprobs: tuple[Mapping[int, float], ...] = ()
    meta_info: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    arrivals: tuple[Arrival, ...] = attrs.field(default=(), repr=False)

    @property
    def aborted(self) -> bool:
        """The engine ended the request before its own stop condition."""
        return self.finish == "abort"

    def largest_gap_s(self) -> float:
        """Longest wait between two arrivals in seconds; 0 with fewer than two."""
        times = [arrival.at for arrival in self.arrivals]
        return max((later - earlier for earlier, later in itertools.pairwise(times)), default=0.0)


def read_generation(body: Any) -> Generation:
    """The body of a complete ``/generate`` reply."""
    return _generation(body["meta_info"], body["output_ids"], (), body["meta_info"])


def _generation(
    meta: Mapping[str, Any],
    output_ids: Sequence[int],
    arrivals: tuple[Arrival, ...],
    logprobs: Mapping[str, Any],
) -> Generation:
    reason = meta["finish_reason"]
    return Generation(
        rid=str(meta["id"]),
        output_ids=tuple(int(token) for token in output_ids),
        finish=str(reason["type"]),
        prompt_tokens=int(meta["prompt_tokens"]),
        completion_tokens=int(meta["completion_tokens"]),
        cached_tokens=int(meta["cached_tokens"]),
        output_logprobs=tuple(float(entry[0]) for entry in logprobs.get("output_token_logprobs") or ()),
        token_ids_logprobs=tuple(
            {int(token): float(nats) for nats, token, *_ in position}
            for position in logprobs.get("output_token_ids_logprobs") or ()
        ),
        meta_info=meta,
        arrivals=arrivals,
    )


class _Stream:
    """Puts a streamed generation together; chunks may be cumulative or incremental (an engine flag)."""

    _SERIES = ("output_token_logprobs", "output_token_ids_logprobs")

    def __init__(self) -> None:
        self.output_ids: list[int] = []
        self.arrivals: list[Arrival] = []
        self.logprobs: dict[str, list[Any]] = {name: [] for name in self._SERIES}
        self.last: Mapping[str, Any] | None = None

    def take(self, chunk: Mapping[str, Any], at: float) -> Arrival | None:
        meta = chunk["meta_info"]
        self.last = meta
        fresh = int(meta["completion_tokens"]) - len(self.output_ids)
        if fresh <= 0:
            return None
        token_ids = tuple(int(token) for token in chunk["output_ids"][-fresh:])
        if len(token_ids) != fresh:
            raise ValueError(f"{fresh} new tokens announced, {len(token_ids)} sent")
        self.output_ids.extend(token_ids)
        for name, series in self.logprobs.items():
            series.extend((meta.get(name) or [])[-fresh:])
        arrival = Arrival(at, token_ids)
        self.arrivals.append(arrival)
        return arrival

    def finish(self) -> Reply[Generation]:
        if self.last is None or not self.last.get("finish_reason"):
            return Unknown(UnknownKind.CONNECTION_LOST, "the stream ended without a finish reason")
        return read_data(
            self.last,
            lambda meta: _generation(meta, self.output_ids, tuple(self.arrivals), self.logprobs),
        )


async def stream_generation(response: httpx.Response) -> AsyncGenerator[Arrival | Reply[Generation], None]:
    """Arrivals as they come, then exactly one reply.  A stream that breaks off is `Unknown`."""
    if response.status_code != httpx.codes.OK:
        await response.aread()
        yield classify(response, read_generation)
        return
    stream = _Stream()
    try:
        async for line in response.aiter_lines():
            at = time.monotonic()
            if not line.startswith("data:"):
                continue
            payload = line.removeprefix("data:").strip()
            if payload == "[DONE]":
                break
            chunk = json.loads(payload)
            if "error" in chunk:
                yield _error_event(chunk)
                return
            arrival = stream.take(chunk, at)
            if arrival is not None:
                yield arrival
    except httpx.HTTPError as error:
        yield lost(error)
        return
    except (KeyError, TypeError, ValueError) as error:
        yield Unknown(UnknownKind.UNPARSABLE, f"{type(error).__name__}: {error} in a stream event")
        return
    yield stream.finish()


def _error_event(chunk: Mapping[str, Any]) -> Reply[Generation]:
    """An error inside a stream: SGLang has sent status 200 by then, the true code is in the event."""
    error = chunk["error"]
    code = error.get("code") if isinstance(error, Mapping) else None
    message = message_of(str(error), chunk)
    if isinstance(code, int) and 400 <= code < 500:
        return Refused(code, message)
    return Unknown(UnknownKind.SERVER_ERROR, message)


def reply_or_none(item: Arrival | Reply[Generation]) -> Reply[Generation] | None:
    """The reply at the end of a stream; ``None`` for an arrival."""
    return item if isinstance(item, OK | Refused | Unknown) else None

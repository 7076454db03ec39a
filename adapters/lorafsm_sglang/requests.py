"""What may go on the wire: checked values for the fields of a request.

Checks are made before anything is sent, because some bad values hurt more than their sender: a token
id outside the vocabulary ends a CPU engine, and an empty rid means every request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import attrs

_LORA_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,199}")
_RID = re.compile(r"[0-9a-f]{32}")


class RequestFieldError(ValueError):
    """A field that must not be sent; ``field`` names it and the message says what to send instead."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message

    def __reduce__(self) -> tuple[type[RequestFieldError], tuple[str, str]]:
        return (type(self), (self.field, self.message))


@attrs.frozen
class Sampling:
    """Sampling of one request; one sample (``n`` is not offered: SGLang's n > 1 leaks references).

    ``max_new_tokens`` is a count of tokens; ``temperature`` 0 is greedy.
    """

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = -1
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()

    def __attrs_post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise RequestFieldError("max_new_tokens", f"{self.max_new_tokens} is not a count of 1 or more")

    def wire(self) -> dict[str, Any]:
        """The ``sampling_params`` object of ``/generate``."""
        body: dict[str, Any] = {
            "max_new_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "ignore_eos": self.ignore_eos,
        }
        if self.stop_token_ids:
            body["stop_token_ids"] = list(self.stop_token_ids)
        return body


@attrs.frozen
class Logprobs:
    """Which log-probabilities of output tokens to return, in nats.

    The sampled token's is always among them; ``token_ids`` asks for these ids at every output position.
    Input log-probabilities are not offered: asking for them makes SGLang ignore its prefix cache.
    """

    token_ids: tuple[int, ...] = ()

    def wire(self) -> dict[str, Any]:
        """The log-probability fields of ``/generate``."""
        body: dict[str, Any] = {"return_logprob": True, "logprob_start_len": -1}
        if self.token_ids:
            body["token_ids_logprob"] = list(self.token_ids)
        return body


def check_lora_name(name: str) -> str:
    """A registered name: no path, no ``:`` (OpenAI routes split there), no dot-only parts."""
    if not _LORA_NAME.fullmatch(name) or ".." in name:
        raise RequestFieldError("lora_name", f"{name!r} is not a name of letters, digits and _ . @ + -")
    return name


def check_rid(rid: str) -> str:
    """32 lower-case hex digits: SGLang aborts by prefix, so all rids have one length."""
    if not _RID.fullmatch(rid):
        raise RequestFieldError("rid", f"{rid!r} is not 32 lower-case hex digits; send uuid4().hex")
    return rid


def check_input_ids(input_ids: Sequence[int], vocab_size: int | None) -> list[int]:
    """Token ids inside the vocabulary; an id outside ends a CPU engine's scheduler."""
    ids = list(input_ids)
    if not ids:
        raise RequestFieldError("input_ids", "empty; send at least one token id")
    bound = vocab_size if vocab_size is not None else max(ids) + 1
    for position, token in enumerate(ids):
        if not 0 <= token < bound:
            raise RequestFieldError("input_ids", f"id {token} at position {position} is not in [0, {bound})")
    return ids


def check_adapter_path(path: Path | str) -> str:
    """An absolute folder on the engine's host; a relative one would be looked up on a hub."""
    pure = PurePosixPath(str(path))
    if not pure.is_absolute() or ".." in pure.parts:
        raise RequestFieldError("lora_path", f"{str(path)!r} is not an absolute path without '..'")
    return str(pure)


def generate_body(
    input_ids: Sequence[int],
    lora_path: str | None,
    sampling: Sampling,
    rid: str,
    logprobs: Logprobs | None,
    *,
    stream: bool,
    vocab_size: int | None,
) -> Mapping[str, Any]:
    """The body of ``/generate``; ``lora_id``, ``extra_key`` and ``n`` have no way into it."""
    return {
        "input_ids": check_input_ids(input_ids, vocab_size),
        "lora_path": None if lora_path is None else check_lora_name(lora_path),
        "sampling_params": sampling.wire(),
        "rid": check_rid(rid),
        "stream": stream,
        **(logprobs.wire() if logprobs is not None else {}),
    }

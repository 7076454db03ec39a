"""`SGLangBackendAdapter.generate`: the exact name in the payload, one single shot, and what its answer proves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from lorafsm.errors import InvalidField
from lorafsm.outcomes import Binding
from lorafsm_asyncio.attempt import Attempt
from lorafsm_asyncio.generate import Call


class Response(Protocol):
    """What an HTTP client answers (httpx, aiohttp behind a thin cover)."""

    @property
    def status_code(self) -> int:
        """HTTP status."""

    def json(self) -> Any:
        """The body; raises ValueError where it is no JSON."""


def versioned_payload(payload: Mapping[str, Any], attempt: Attempt | None) -> dict[str, Any]:
    """The payload of `/generate` with the attempt's `lora_path` and `rid`; as it was where the switch is off.

    Raises InvalidField for n > 1, which engines count wrongly (M23), and for a `lora_path` that somebody else chose.
    """
    if attempt is None:
        return dict(payload)
    if (payload.get("sampling_params") or {}).get("n", 1) != 1:
        raise InvalidField("sampling_params.n", "must be 1: send n requests instead")
    if payload.get("lora_path", attempt.lora_path) != attempt.lora_path:
        raise InvalidField("lora_path", f"this session is bound to {attempt.lora_path}")
    return {**payload, "lora_path": attempt.lora_path, "rid": attempt.rid}


async def post_once(
    attempt: Attempt,
    send: Callable[[], Awaitable[Response]],
    *,
    not_sent: tuple[type[BaseException], ...] = (),
) -> Any:
    """Send once and judge: the body of an answer, else GenerateFailed with VERSION_MISSING, REFUSED or UNKNOWN.

    `send` is one plain request: no retries at any level (RFC 4.2).  `not_sent` are the client's exceptions which
    prove that no connection was made (`httpx.ConnectError`, `httpx.ConnectTimeout`); any other exception leaves the
    request in doubt, and so does a cancellation.
    """
    try:
        response = await send()
    except not_sent:
        attempt.heard(Call(0, sent=False))
    except Exception as error:
        attempt.heard(Call(0, f"{type(error).__name__}: {error}"))
    else:
        return attempt.heard(Call(response.status_code, _body(response))).body
    raise AssertionError("a call without a response is no answer")


def _body(response: Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return None


def sample_fields(binding: Binding) -> dict[str, str]:
    """What a sample says of the version that generated it."""
    return {
        "lora_version": str(binding.key),
        "lora_digest": binding.digest,
        "lora_name": binding.lora_name,
    }

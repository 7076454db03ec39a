"""`EngineSessions`: sessions of one guarded engine's cache, as a process outside sees them.

Give `follow` each of the registry's steps: a session is opened on the engine as it binds and closed there as it is
closed, by the same key; an owner that ends takes its sessions along.
"""

from __future__ import annotations

from typing import Any

import httpx
from attrs import define, field

from lorafsm.errors import LoraFsmError
from lorafsm.events import BindFirst, CloseAndRelease, Event, OwnerExpired, OwnerGone
from lorafsm.identity import SessionKey
from lorafsm.outcomes import Binding, Code
from lorafsm.registry.answer import Step
from lorafsm_sglang.guard.session_cache import SessionRefused
from lorafsm_sglang.guard.settings import TOKEN_HEADER


class EngineSilent(LoraFsmError):
    """No answer came, or none that can be read: what happened is unknown; the same call may be made again."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__("ENGINE_SILENT", message, field)

    def __reduce__(self) -> tuple[type[EngineSilent], tuple[str, str | None]]:
        return type(self), (self.message, self.field)


@define
class EngineSessions:
    """One guarded engine at `url`; `deadline_s` seconds a call.  Each call may be made again."""

    url: str
    token: str = field(repr=False)
    deadline_s: float = 10.0
    transport: httpx.AsyncBaseTransport | None = None
    _client: httpx.AsyncClient | None = None

    async def open(self, session: SessionKey, lora_name: str | None) -> str:
        """The `session_id` that the session's requests carry; SessionRefused where nothing would be protected."""
        return str(await self._call("open", {**_named(session), "lora_name": lora_name}, "session_id"))

    async def close(self, session: SessionKey) -> Code:
        """Its KV stays, unprotected.  OK, or ALREADY_CLOSED."""
        return Code(await self._call("close", _named(session), "code"))

    async def end_owner(self, epoch: str, owner: str) -> int:
        """How many sessions of the owner ended."""
        return int(await self._call("end_owner", {"epoch": epoch, "owner": owner}, "ended"))

    async def follow(self, event: Event, step: Step) -> None:
        """What a registry's step means to the engine's cache (`lorafsm.kv.follow` is the same for our own)."""
        if not step.outcome.ok:
            return
        if isinstance(event, BindFirst) and isinstance(step.outcome, Binding):
            await self.open(event.session, step.outcome.lora_name)
        elif isinstance(event, CloseAndRelease):
            await self.close(event.session)
        elif isinstance(event, (OwnerExpired, OwnerGone)):
            await self.end_owner(step.registry.epoch, event.owner)

    async def aclose(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()

    async def _call(self, what: str, body: dict[str, Any], wanted: str) -> Any:
        if self._client is None:
            transport = self.transport or httpx.AsyncHTTPTransport(trust_env=False)
            self._client = httpx.AsyncClient(
                base_url=self.url, headers={TOKEN_HEADER: self.token}, timeout=self.deadline_s, transport=transport
            )
        try:
            response = await self._client.post(f"/lorafsm/sessions/{what}", json=body)
            data = response.json()
        except (httpx.HTTPError, ValueError) as error:
            raise EngineSilent(f"{what}: {type(error).__name__}") from error
        if response.status_code == httpx.codes.OK and isinstance(data, dict) and wanted in data:
            return data[wanted]
        refusal = data.get("error") if isinstance(data, dict) else None
        if not isinstance(refusal, dict) or "code" not in refusal:
            raise EngineSilent(f"{what}: HTTP {response.status_code}; is this engine guarded?")
        raise SessionRefused(str(refusal["code"]), str(refusal.get("message")), refusal.get("field"))


def _named(session: SessionKey) -> dict[str, Any]:
    return {"epoch": session.epoch, "owner": session.owner, "sequence": session.sequence}

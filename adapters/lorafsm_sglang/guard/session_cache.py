"""Our sessions in SGLang's own session cache: soft protection of a session's prefix, today.

SGLang (`--enable-session-radix-cache`, seed 004) tags the KV of each request that carries a `session_id`, evicts
untagged KV first, and lets go of the tags at `/close_session`.  What it lacks is added here, before a request reaches
it: one id for one lifecycle (`engine_session_id`), closed for ever (SGLang lets a late request open the session
again), one version for life.  Which sessions are live and closed is `lorafsm.kv.sessions`, the very class of our cache.

Where the engine cannot protect anything, everything here ends in SESSION_CACHE_OFF, never in a silent no-op.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from lorafsm.errors import InvalidField, LoraFsmError
from lorafsm.identity import (
    SessionKey,
    VersionKey,
    fault_in_epoch,
    fault_in_identifier,
    fault_in_session_key,
    is_managed,
    parse_lora_name,
)
from lorafsm.kv.sessions import Live, Sessions
from lorafsm.outcomes import Code, Refusal
from lorafsm_sglang.guard.admission import GuardCode, RequestRefused, names_in
from lorafsm_sglang.guard.wire import read_json

PREFIX = "lorafsm/"
"""What the ids of our sessions begin with; nobody else's may."""

KNOWN = ("0.5.23",)
"""SGLang versions whose session cache is seed 004's.  Older ones have none, or another, which frees KV at the close."""

Opening = Callable[[str], Awaitable[str | None]]
Closing = Callable[[str], Awaitable[None]]


class SessionCode(StrEnum):
    """Why a session of ours is refused on this engine, besides the codes of `lorafsm.outcomes`."""

    SESSION_CACHE_OFF = "SESSION_CACHE_OFF"  # the engine has no session cache: nothing would be protected
    SESSION_ID = "SESSION_ID"  # not an id of `engine_session_id`, or an id of ours where SGLang's own belong


class SessionRefused(LoraFsmError):
    """A session call that was refused; nothing has changed."""

    def __reduce__(self) -> tuple[type[SessionRefused], tuple[str, str, str | None]]:
        return type(self), (self.code, self.message, self.field)


def engine_session_id(session: SessionKey) -> str:
    """What a request of this session carries as `session_id`.  Another sequence, another id: a label that is opened
    again is a new session for SGLang too, and no late request of the old one can tag the new one's KV."""
    if fault := fault_in_session_key(session):
        raise InvalidField("session", fault)
    return f"{PREFIX}{session}"


def session_of(engine_id: str) -> SessionKey:
    """The session of an id; InvalidField for any other text."""
    epoch, _, rest = engine_id.removeprefix(PREFIX).partition("/")
    owner, _, sequence = rest.partition("/")
    number = int(sequence) if sequence.isascii() and sequence.isdigit() and len(sequence) < 20 else -1
    key = SessionKey(epoch, owner, number)
    if fault_in_session_key(key) or f"{PREFIX}{key}" != engine_id:
        raise InvalidField("session_id", f"must be {PREFIX}EPOCH/OWNER/SEQUENCE, as engine_session_id makes it")
    return key


def why_off(sglang_version: str, server_args: Any) -> str:
    """What keeps this engine from protecting sessions, and what to do; empty: nothing does."""
    if sglang_version not in KNOWN:
        return f"SGLang {sglang_version} has no session cache that is known here; use {', '.join(KNOWN)}"
    if getattr(server_args, "enable_session_radix_cache", None) is not True:
        return "the engine keeps no session refs; start it with --enable-session-radix-cache"
    return ""


class SessionCache:
    """The sessions of one guarded engine.  `off` says why there can be none; empty: SGLang protects them."""

    def __init__(self, off: str, native_open: Opening, native_close: Closing) -> None:
        self.off = off
        self._open, self._close = native_open, native_close
        self._sessions = Sessions(parts=0, ttl=0)

    # -- requests -------------------------------------------------------------------------------------

    def check(self, request: Any) -> None:
        """RequestRefused, or the request's `session_id` means a live session of ours, bound to the request's version.

        Requests without a managed name and without an id of ours are SGLang's own affair.
        """
        engine_id = getattr(request, "session_id", None)
        if engine_id is None:
            return
        names = set(names_in(request.lora_path))
        ours = isinstance(engine_id, str) and engine_id.startswith(PREFIX)
        if not ours and not any(is_managed(name) for name in names if name):
            return
        if self.off:
            raise RequestRefused(SessionCode.SESSION_CACHE_OFF, self.off)
        if not ours:
            raise RequestRefused(SessionCode.SESSION_ID, "a managed version's session_id is made by engine_session_id")
        if len(names) != 1:
            raise RequestRefused(GuardCode.SESSION_VERSION, "one session, one version; send one request for each")
        try:
            version = _version(names.pop())
            refused = self._sessions.open(session_of(engine_id), version, 0)
        except InvalidField as error:
            raise RequestRefused(SessionCode.SESSION_ID, error.message) from error
        if isinstance(refused, Refusal):
            code = GuardCode.SESSION_VERSION if refused.code is Code.OPERATION_CONFLICT else refused.code
            raise RequestRefused(code, refused.reason)

    @staticmethod
    def check_foreign(engine_id: str | None) -> None:
        """SGLang's own session routes do not touch sessions of ours; RequestRefused."""
        if engine_id is not None and engine_id.startswith(PREFIX):
            raise RequestRefused(SessionCode.SESSION_ID, "sessions of lorafsm open and close at /lorafsm/sessions")

    # -- the lifecycle --------------------------------------------------------------------------------

    async def open(self, session: SessionKey, lora_name: str | None) -> str:
        """Open it here and in SGLang (RFC 4.1); the `session_id` of its requests.  SessionRefused if it may not be.

        A request without an open opens as well: this only lets the caller know early.
        """
        self._refuse_if_off()
        was_live = session in self._sessions.live
        live = self._sessions.open(session, _version(lora_name), 0)
        if isinstance(live, Refusal):
            raise SessionRefused(live.code, live.reason, live.field)
        engine_id = engine_session_id(session)
        # SGLang takes a second open for a new generation, and the running requests of the first for stale ones.
        if not was_live and await self._open(engine_id) is None:
            raise SessionRefused(SessionCode.SESSION_ID, "SGLang has a session of this id already; close it")
        return engine_id

    async def close(self, session: SessionKey) -> Code:
        """Close it for ever, here and in SGLang (RFC 4.3): its KV stays, unprotected.  A repeat does nothing more."""
        self._refuse_if_off()
        engine_id = engine_session_id(session)
        found = self._sessions.close(session)
        if found is True:
            return Code.ALREADY_CLOSED
        await self._close(engine_id)  # also of an unseen one: SGLang then marks it closed
        return Code.OK

    async def end_owner(self, epoch: str, owner: str) -> int:
        """The owner's process is gone (rule 9): every session of it is closed; how many were live."""
        self._refuse_if_off()
        for name, fault in (("epoch", fault_in_epoch(epoch)), ("owner", fault_in_identifier(owner))):
            if fault:
                raise InvalidField(name, fault)
        ended: list[Live] = self._sessions.end_owner(epoch, owner)
        for live in ended:
            await self._close(engine_session_id(live.key))
        return len(ended)

    def _refuse_if_off(self) -> None:
        if self.off:
            raise SessionRefused(SessionCode.SESSION_CACHE_OFF, self.off)


def _version(lora_name: str | None) -> VersionKey | None:
    return parse_lora_name(lora_name).key if lora_name else None


# -- HTTP ---------------------------------------------------------------------------------------------


class SessionHandlers:
    """POST /lorafsm/sessions/open|close|end_owner; refusals are 409 with a code."""

    def __init__(self, cache: SessionCache) -> None:
        self._cache = cache

    async def open(self, request: Request) -> JSONResponse:
        """{epoch, owner, sequence, lora_name} -> {session_id}; `lora_name` null: the base model."""
        data = read_json(await request.body())
        name = data.get("lora_name")
        if name is not None and type(name) is not str:
            raise InvalidField("lora_name", "must be a managed name, or null for the base model")
        return await _answered(lambda: self._cache.open(_session(data, "lora_name"), name), "session_id")

    async def close(self, request: Request) -> JSONResponse:
        """{epoch, owner, sequence} -> {code}."""
        data = read_json(await request.body())
        return await _answered(lambda: self._cache.close(_session(data)), "code")

    async def end_owner(self, request: Request) -> JSONResponse:
        """{epoch, owner} -> {ended}."""
        data = read_json(await request.body())
        if set(data) != {"epoch", "owner"}:
            raise InvalidField("body", "must have epoch and owner, and no more")
        return await _answered(lambda: self._cache.end_owner(data["epoch"], data["owner"]), "ended")


def install_sessions(cache: SessionCache, token: str) -> None:
    """Put the three routes before SGLang's own, each behind the guard's token."""
    from lorafsm_sglang.guard.routes import put_first, with_token

    handlers = SessionHandlers(cache)
    put_first(
        [
            Route(f"/lorafsm/sessions/{name}", with_token(token, handler), methods=["POST"])
            for name, handler in (
                ("open", handlers.open),
                ("close", handlers.close),
                ("end_owner", handlers.end_owner),
            )
        ]
    )


async def _answered(call: Callable[[], Awaitable[object]], name: str) -> JSONResponse:
    try:
        return JSONResponse({name: await call()})
    except SessionRefused as error:
        return JSONResponse({"error": {"code": error.code, "message": error.message, "field": error.field}}, 409)


def _session(data: Mapping[str, Any], *more: str) -> SessionKey:
    if set(data) - {"epoch", "owner", "sequence", *more}:
        raise InvalidField("body", "must have epoch, owner and sequence")
    key = SessionKey(data.get("epoch", ""), data.get("owner", ""), data.get("sequence", -1))
    if fault := fault_in_session_key(key):
        raise InvalidField("session", fault)
    return key

"""Calls to a registry's actor: finding it by name, and telling a lost call from an answer."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError, RayTaskError

from lorafsm.errors import LoraFsmError
from lorafsm_journal import JournalCode

NAMESPACE = "lorafsm"
_AGAIN = frozenset({JournalCode.JOURNAL_LOCKED, JournalCode.JOURNAL_UNCERTAIN, JournalCode.JOURNAL_CLOSED})


class Lost(Exception):
    """A try brought no answer: the call, or its reply, or the actor is lost.  It may have been carried out."""


def meaning(cause: Exception) -> Exception:
    """What an error that the registry raised means to a caller: Lost where another try may bring an answer."""
    if isinstance(cause, LoraFsmError) and cause.code in _AGAIN:
        return Lost(str(cause))
    return cause


class Calls(Protocol):
    """The way to a registry.  `call` raises Lost, or what the registry raised."""

    async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        """One try of one call."""


class RayCalls:
    """The way to the actor of this name, wherever it runs and however often it is started anew."""

    def __init__(self, name: str, namespace: str = NAMESPACE) -> None:
        self.name = name
        self.namespace = namespace
        self._handle: ActorHandle | None = None

    def find(self) -> ActorHandle:
        """The actor's handle; raises UNKNOWN_REGISTRY when there is none, or Ray is not connected."""
        if self._handle is None:
            if not ray.is_initialized():
                raise LoraFsmError("RAY_NOT_CONNECTED", "this process is in no Ray cluster; call ray.init first")
            try:
                self._handle = ray.get_actor(self.name, namespace=self.namespace)
            except ValueError as error:
                raise LoraFsmError(
                    "UNKNOWN_REGISTRY", f"there is no registry {self.name!r}; start_registry makes one", "name"
                ) from error
        return self._handle

    async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        """One try from an event loop."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._submit(method, args)
        except TimeoutError as error:
            raise Lost(f"no answer within {timeout_s:.3g} s") from error
        except RayError as error:
            raise self._meaning(error) from error

    def call_and_block(self, method: str, *args: Any, timeout_s: float) -> Any:
        """One try from a thread that may wait."""
        try:
            return ray.get(self._submit(method, args), timeout=timeout_s)
        except RayError as error:
            raise self._meaning(error) from error

    def _submit(self, method: str, args: tuple[Any, ...]) -> Any:
        try:
            handle = self.find()
        except LoraFsmError as error:
            if error.code == "UNKNOWN_REGISTRY":  # it may be about to be started
                raise Lost(error.message) from error
            raise
        return getattr(handle, method).remote(*args)

    def _meaning(self, error: RayError) -> Exception:
        if isinstance(error, RayTaskError):
            if getattr(error.cause, "code", None) == JournalCode.JOURNAL_CLOSED:  # another may take its name
                self._handle = None
            return meaning(error.cause) if isinstance(error.cause, Exception) else error
        self._handle = None
        return Lost(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")

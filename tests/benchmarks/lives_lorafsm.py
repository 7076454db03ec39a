"""A session's life in lorafsm: four steps of a registry, sixteen owners."""

from __future__ import annotations

from lorafsm import events as ev
from lorafsm.registry import step
from tests.benchmarks.fleet import START, published_registry, session_key


class LorafsmLives:
    """One registry, replaced by every step."""

    def __init__(self) -> None:
        self._registry = published_registry()

    @property
    def held(self) -> int:
        return self._registry.versions[self._registry.default].session_refs

    def open(self, number: int) -> None:
        self._step(ev.Open(session=session_key(number), now=START))

    def bind_first(self, number: int) -> None:
        self._step(ev.BindFirst(session=session_key(number), now=START))

    def begin_close(self, number: int) -> None:
        self._step(ev.BeginClose(session=session_key(number), now=START))

    def close(self, number: int) -> None:
        self._step(ev.CloseAndRelease(session=session_key(number), now=START))

    def _step(self, event: ev.Event) -> None:
        self._registry = step(self._registry, event).registry

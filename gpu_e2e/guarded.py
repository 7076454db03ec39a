"""What stands beside a guarded engine: what it is told at its start, its proof, and the record of what was done to it.

The record comes from inside the engine; that it is complete is checked against SGLang's own log.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from pathlib import Path

from attrs import define, field, frozen

from gpu_e2e.recording import Recorder
from lorafsm.events import Event, Prepared, Ready
from lorafsm.identity import MANAGED_PREFIX
from lorafsm.orders import Begin, End, Order
from lorafsm_sglang.guard import AttestationError, GuardedEngine, guard_environment, write_token

MODULE = "lorafsm_sglang.serve"

_PHASES = {"fetch": "begin"}  # names in the report, where they differ
_TOUCHED = re.compile(rf"LoRA adapter (loading|unloading) starts: .*lora_name={re.escape(MANAGED_PREFIX)}")


@frozen
class GuardPlan:
    """What the guards of one run are told."""

    epoch: str
    store: Path
    hosts: Path
    token: str = field(factory=lambda: secrets.token_hex(16), repr=False)

    def environment(self, engine: str, inherit: Mapping[str, str]) -> dict[str, str]:
        """The environment of a guarded engine's process."""
        token_file = write_token(self.hosts / f".token-{engine}", self.token)
        return guard_environment(
            inherit, engine, self.epoch, store=self.store, host=self.hosts / engine, token_file=token_file
        )


@define
class RecordedEngine:
    """A guarded engine whose operations go into the record."""

    guarded: GuardedEngine
    recorder: Recorder
    _noted: set[int] = field(factory=set)

    async def carry_out(self, order: Order) -> Event | None:
        """As `GuardedEngine`; then note what the engine did to the order's adapter."""
        start = self.recorder.now()
        event = await self.guarded.carry_out(order)
        name = getattr(order, "lora_name", "")
        if not name:
            return event
        if isinstance(order, Begin) and order.plan.buckets:  # nothing is fetched: the announcement is checked
            self._note("begin", name, start, isinstance(event, Prepared))
            return event
        for done in await self.guarded.operations():
            if done["lora_name"] != name or done["index"] in self._noted:
                continue
            self._noted.add(done["index"])
            op = _PHASES.get(done["op"], done["op"])
            with self.recorder.operation(self.guarded.engine, op, self.recorder.letters.get(name, name)) as entry:
                entry["outcome"] = "FAILED" if done["fault"] else "OK"
            # Both processes read the host's monotonic clock.  An unload's span is its order's: the wait belongs to it.
            entry["start"], entry["end"] = self.recorder.at(done["start"]), self.recorder.at(done["end"])
            if op == "unload":
                entry["start"], entry["end"] = start, self.recorder.now()
        if isinstance(order, End):
            self._note("end", name, start, isinstance(event, Ready))
        return event

    def _note(self, op: str, name: str, start: float, done: bool) -> None:
        with self.recorder.operation(self.guarded.engine, op, self.recorder.letters.get(name, name)) as entry:
            entry["start"], entry["outcome"] = start, "OK" if done else "FAILED"


async def proved(guarded: GuardedEngine, base: str) -> int:
    """The incarnation of an engine that proved its guard and this base; AttestationError otherwise."""
    proof = await guarded.attest()
    if proof.base_fingerprint != base:
        raise AttestationError("is not the one of this run's model", "base_fingerprint")
    return proof.incarnation


def touched(log: Path) -> list[int]:
    """How often SGLang says that it loaded and unloaded a managed adapter."""
    kinds = [match[1] for match in map(_TOUCHED.search, log.read_text(errors="replace").splitlines()) if match]
    return [kinds.count("loading"), kinds.count("unloading")]

"""What one engine remembers, as long as its process lives: frozen, hashable, without a clock or any I/O.

A restarted engine is a new `Agent` value with a larger incarnation that remembers nothing (protocol rule 14).
"""

from __future__ import annotations

from attrs import frozen
from immutables import Map

from lorafsm.engine.lifecycle import HOLDS_A_FREE_SLOT, AdapterState, WorkState
from lorafsm.errors import InvalidField
from lorafsm.identity import (
    VersionKey,
    fault_in_count,
    fault_in_epoch,
    fault_in_identifier,
    fault_in_text,
)
from lorafsm.manifest import Plan
from lorafsm.records import Resident, Stray


@frozen
class Work:
    """What one number asked for and how far it is: an attempt's share on this engine, or a repair."""

    number: int
    key: VersionKey
    digest: str
    lora_name: str  # under which the engine knows it
    plan: Plan | None  # the attempt's frozen bucket plan; None: a repair, which loads from the artifact store
    state: WorkState
    received: int = 0  # buckets complete; the next one to arm
    doomed: bool = False  # nothing of it may stay; what runs is waited for
    detail: str = ""  # why it FAILED

    @property
    def buckets(self) -> int:
        """Buckets that are sent; 0 when the engine reads the artifact store."""
        return 0 if self.plan is None else self.plan.buckets


@frozen
class Adapter:
    """One adapter that the engine holds, by its name."""

    lora_name: str
    resident: Resident | None  # what it is and which number loaded it; None: somebody else put it there
    state: AdapterState = AdapterState.PRESENT
    refs: int = 0  # requests of it in flight

    @property
    def number(self) -> int:
        """The number that loaded it; 0: somebody else."""
        return 0 if self.resident is None else self.resident.number

    def with_refs(self, refs: int) -> Adapter:
        """The adapter with so many requests in flight; spelt out for the reason of `Agent.with_requests`."""
        return Adapter(self.lora_name, self.resident, self.state, refs)


@frozen
class Agent:
    """The whole memory of one engine under one incarnation.  Made by `new_agent`, changed only by `agent_step`."""

    engine: str
    incarnation: int
    epoch: str
    base_fingerprint: str  # of base weights and tokenizer, proved with every READY
    slots: int  # adapters that the engine can hold, strays and strangers counted
    seq: int = 0  # of the latest fact; an answer is true at the seq that it carries
    fence: int = 0  # the highest attempt number seen: one at or below it that is no work is over for ever
    tombstones: frozenset[int] = frozenset()  # further numbers that are over: repairs and strays
    works: Map[int, Work] = Map()
    adapters: Map[str, Adapter] = Map()
    closed: Map[VersionKey, str] = Map()  # keys that never come back here, and the reclaim that closed each
    strays: Map[str, Stray] = Map()  # what each stray order's operation key was for
    requests: Map[str, str] = Map()  # in flight: rid -> name of its adapter
    sealed: Map[str, VersionKey] = Map()  # rids that were declared absent and must never start

    def with_requests(self, requests: Map[str, str], adapter: Adapter) -> Agent:
        """The agent with these requests in flight and the adapter whose count they changed.

        Every request comes through here twice.  So the constructor is spelt out: `evolve`, which finds out the
        fields anew each time, takes three times as long.
        """
        return Agent(
            self.engine,
            self.incarnation,
            self.epoch,
            self.base_fingerprint,
            self.slots,
            self.seq,
            self.fence,
            self.tombstones,
            self.works,
            self.adapters.set(adapter.lora_name, adapter),
            self.closed,
            self.strays,
            requests,
            self.sealed,
        )


def new_agent(engine: str, incarnation: int, epoch: str, *, slots: int = 3, base_fingerprint: str = "") -> Agent:
    """The memory of an engine's process that just started; raises InvalidField naming the argument."""
    faults = (
        ("engine", fault_in_identifier(engine)),
        ("incarnation", fault_in_count(incarnation)),
        ("epoch", fault_in_epoch(epoch)),
        ("slots", fault_in_count(slots) or (None if slots else "must be at least 1")),
        ("base_fingerprint", fault_in_text(base_fingerprint)),
    )
    for name, fault in faults:
        if fault:
            raise InvalidField(name, fault)
    return Agent(engine, incarnation, epoch, base_fingerprint, slots)


def adapter_of(agent: Agent, number: int) -> Adapter | None:
    """The adapter that this number loaded, if the engine still holds it."""
    return next((a for a in agent.adapters.values() if a.number == number), None) if number else None


def used_slots(agent: Agent) -> int:
    """Adapters that are held or promised, strays and strangers counted (rule 6)."""
    return len(agent.adapters) + sum(w.state in HOLDS_A_FREE_SLOT for w in agent.works.values())

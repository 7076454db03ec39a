"""The boxes of tla/models/agent on the side of the core: the same constants, read from the same .cfg, and every input
that may come in them, with every argument, the illegal ones too.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, combinations, product
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen

from lorafsm import orders
from lorafsm.engine import Agent, AgentStep, agent_step, new_agent
from lorafsm.engine import orders as inputs
from lorafsm.engine.orders import Input
from lorafsm.identity import VersionKey, lora_name
from lorafsm.manifest import Plan
from lorafsm.records import Stray
from lorafsm_tla.agent_state import AgentNames, agent_as_tla, answer_as_tla, asked_as_tla
from lorafsm_tla.values import Graph, Plain, State, read_value, state_of, text_of

EPOCH, ENGINE, INCARNATION = "e1", "E0", 2
DIGESTS = {"a": "a" * 64, "b": "b" * 64}
US = {"epoch": EPOCH, "engine": ENGINE, "incarnation": INCARNATION}
ADDRESSES: Mapping[str, Mapping[str, Any]] = {
    "us": US,
    "the one before": {**US, "incarnation": INCARNATION - 1},
    "the next": {**US, "incarnation": INCARNATION + 1},
    "another engine": {**US, "engine": "E1"},
    "another epoch": {**US, "epoch": "e2"},
}
KEY_OF: Mapping[str, Callable[[int], int]] = {
    "AllOfOne": lambda n: 1,
    "OneEach": lambda n: n,
    "OneTwoOne": lambda n: 2 if n == 2 else 1,
}
COUNTS: Mapping[str, tuple[int, ...]] = {"AnyCount": (-1, 0, 1), "OnlyZero": (0,)}
NAMING = (orders.Begin, orders.End, orders.Cleanup, orders.Load, orders.Unload)
NUMBERED = (orders.Begin, orders.End, orders.Cleanup, orders.Load, orders.AskStatus, inputs.ArmBucket)
OUR_KEY = VersionKey(EPOCH, 1)
NEVER = "Mistaken"
"""The name of every step that an input with a mistake would take."""


@frozen
class AgentBox:
    """The constants of one model."""

    name: str
    constants: Mapping[str, Any]
    names: AgentNames = field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(
            self,
            "names",
            AgentNames(
                EPOCH,
                tuple(self.Version),
                {short: DIGESTS[short] for short in self.Digest},
                tuple(self.Stranger),
                tuple(self.ReclaimId),
                tuple(self.OperationKey),
                tuple(self.Rid),
            ),
        )

    def __getattr__(self, name: str) -> Any:
        try:
            return self.constants[name]
        except KeyError:
            raise AttributeError(name) from None

    def key_of(self, number: int) -> int:
        """The version that a number is for."""
        return KEY_OF[self.KeyOf](number)

    def listings(self) -> list[frozenset[str]]:
        """What an engine may list."""
        called = self.names.called
        managed = [name for name, record in called.items() if record["version"]]
        if self.Listings == "NothingOrAll":
            return [frozenset(), frozenset(called)]
        return [frozenset(some) for some in _subsets(managed if self.Listings == "OnlyManaged" else list(called))]

    def stray_names(self) -> list[str]:
        """What a stray order may name."""
        called = self.names.called
        return [name for name, record in called.items() if record["version"] or self.StrayNames == "Name"]


def read_agent_box(path: Path) -> AgentBox:
    """The box of one .cfg."""
    text = path.read_text()
    constants = {key: read_value(value) for key, value in re.findall(r"^    (\w+) = (.*)$", text, re.MULTILINE)}
    constants.update(re.findall(r"^    (KeyOf|Counts|Listings|StrayNames) <- (\w+)$", text, re.MULTILINE))
    return AgentBox(path.stem, constants)


def _subsets(items: list[str]) -> Iterator[tuple[str, ...]]:
    return chain.from_iterable(combinations(items, size) for size in range(len(items) + 1))


def _plans(box: AgentBox) -> Iterator[Plan]:
    for buckets in box.Plans:
        yield Plan(buckets, "f" * 64)
        if buckets > 1:  # another cut into as many: the map drops the difference
            yield Plan(buckets, "e" * 64)


def _named(box: AgentBox, version: int, digest: str) -> dict[str, Any]:
    key = box.names.key(version)
    return {"key": key, "digest": DIGESTS[digest], "lora_name": lora_name(key, DIGESTS[digest])}


def _orders(box: AgentBox, to: str) -> Iterator[Input]:
    """Every order, for this addressee."""
    at = ADDRESSES[to]
    for version, digest in product(box.Version, box.Digest):
        named = _named(box, version, digest)
        for number in box.Attempts:
            if version == box.key_of(number):
                yield from (orders.Begin(**at, **named, number=number, plan=plan) for plan in _plans(box))
        for number in box.Number:
            yield orders.End(**at, **named, number=number)
            yield orders.Cleanup(**at, **named, number=number)
        for number in box.Repairs:
            if version == box.key_of(number):
                yield orders.Load(**at, **named, number=number)
        yield from (orders.Unload(**at, **named, reclaim_id=c) for c in box.ReclaimId)
    for number, bucket in product(box.Number, range(box.MaxBuckets + 1)):
        yield inputs.ArmBucket(**at, number=number, bucket=bucket)
        yield inputs.ReceiveBucket(**at, number=number, bucket=bucket)
    yield from (orders.AskStatus(**at, number=number) for number in box.Number)
    yield orders.TakeInventory(**at)
    for p, name, number in product(box.OperationKey, box.stray_names(), (0, *box.Number)):
        yield orders.UnloadStray(**at, operation_key=p, lora_name=name, number=number)


def _malformed(box: AgentBox) -> Iterator[Input]:
    """Orders for us with the number 0, of another epoch's version, or under a name that their digest does not give."""
    for item in _orders(box, "us"):
        if isinstance(item, NAMING):
            yield evolve(item, lora_name=lora_name(item.key, "0" * 64))
            other = evolve(item.key, epoch="e2")
            yield evolve(item, key=other, lora_name=lora_name(other, item.digest))
        if isinstance(item, NUMBERED):
            yield evolve(item, number=0)


def _requests_and_results(box: AgentBox) -> Iterator[Input]:
    called = list(box.names.called)
    yield from (inputs.Acquire(rid=r, lora_name=name) for r, name in product(box.Rid, called))
    yield from (inputs.Release(rid=r) for r in box.Rid)
    for rid, version in product(box.Rid, box.Version):
        yield inputs.Settle(rid=rid, key=box.names.key(version))
        yield inputs.Settle(rid=rid, key=evolve(box.names.key(version), epoch="e2"))
    for number, ok in product(box.Number, (True, False)):
        for bucket in range(box.MaxBuckets + 1):
            yield inputs.BucketFinished(number=number, bucket=bucket, ok=ok)
        yield inputs.LoadFinished(number=number, ok=ok)
        yield inputs.ProbeFinished(number=number, ok=ok)
    for name in called:
        yield inputs.Unregistered(lora_name=name)
        yield from (inputs.Counted(lora_name=name, count=count) for count in COUNTS[box.Counts])
        if -1 in COUNTS[box.Counts]:
            yield inputs.Counted(lora_name=name, count=None)  # unreadable: as negative
        yield from (inputs.UnloadFinished(lora_name=name, absent=absent) for absent in (True, False))


def fixed_inputs(box: AgentBox) -> list[Input]:
    """Every input but the listings, whose seq is the agent's."""
    ordered = chain.from_iterable(_orders(box, to) for to in box.Address)
    malformed = _malformed(box) if len(box.Address) > 1 else ()
    all_of_them = [*ordered, *malformed, *_requests_and_results(box)]
    silent = {"AskStatus", "TakeInventory", "ReceiveBucket"}  # these must do nothing, in every box
    return [item for item in all_of_them if type(item).__name__ in {*box.Happens, *silent}]


def listings(box: AgentBox, a: Agent) -> Iterator[Input]:
    """Every listing, with the right seq up to the box's last, and with a wrong one."""
    if "Listed" in box.Happens:
        for names in box.listings():
            for seq in (a.seq - 1, *((a.seq,) if a.seq < box.MaxSeq else ()), a.seq + 1):
                if seq >= 0:
                    yield inputs.Listed(names=names, seq=seq)


def action_of(a: Agent, item: Input) -> str:
    """The specification's name for a step: the input's, unless the input makes a mistake that no state shows."""
    return NEVER if _mistaken(a, item) else type(item).__name__


def _mistaken(a: Agent, item: Input) -> bool:
    if isinstance(item, inputs.ORDERS):
        if {name: getattr(item, name) for name in US} != US:
            return True
        if isinstance(item, NAMING) and item.lora_name != lora_name(item.key, item.digest):
            return True
    if getattr(item, "key", OUR_KEY).epoch != EPOCH or (isinstance(item, NUMBERED) and item.number == 0):
        return True
    match item:
        case orders.End():
            work = a.works.get(item.number)
            return work is not None and (work.key, work.digest) != (item.key, item.digest)
        case orders.Cleanup():
            work = a.works.get(item.number)
            return work is not None and work.key != item.key
        case orders.Unload():
            return a.closed.get(item.key, item.reclaim_id) != item.reclaim_id
        case orders.UnloadStray():
            stray = Stray(item.lora_name, item.number)
            return a.strays.get(item.operation_key, stray) != stray
        case inputs.BucketFinished():
            work = a.works.get(item.number)
            return work is not None and work.received != item.bucket
        case inputs.Listed():
            return item.seq != a.seq
    return False


class TwoFaced(AssertionError):
    """Two agents have one image and different futures: the map drops something that a guard reads."""


Future = tuple[str, State, str]  # an action, and the image and `asked` that it leads to


def walk_agent(
    box: AgentBox, step: Callable[[Agent, Input], AgentStep] = agent_step, max_agents: int = 100_000
) -> Graph:
    """The agent's graph in the specification's terms: every state, and where each input leads.

    Raises TwoFaced when a field that the map drops matters.
    """
    names, fixed = box.names, fixed_inputs(box)
    first = new_agent(ENGINE, INCARNATION, EPOCH, slots=box.Slots, base_fingerprint="base")
    images: dict[Agent, State] = {first: state_of(agent_as_tla(first, names))}
    futures: dict[State, tuple[Agent, frozenset[Future]]] = {}
    todo = deque([first])
    while todo:
        agent = todo.popleft()
        out: set[Future] = set()
        for item in chain(fixed, listings(box, agent)):
            done = step(agent, item)
            if done.agent is agent and not done.actions:
                told = answer_as_tla(item, done.answer)
                if told is not None and told[0] in box.Happens:
                    name = NEVER if _mistaken(agent, item) else told[0]
                    out.add((name, images[agent], text_of(told[1])))
                continue
            if done.agent not in images:
                images[done.agent] = state_of(agent_as_tla(done.agent, names))
                todo.append(done.agent)
                assert len(images) <= max_agents, f"{box.name} has more than {max_agents} agents"
            asked = text_of(asked_as_tla(done.actions, done.agent, names)) if done.actions else "[]"
            out.add((action_of(agent, item), images[done.agent], asked))
        other, known = futures.setdefault(images[agent], (agent, frozenset(out)))
        if known != out:
            [one, *_] = sorted(known ^ out)
            raise TwoFaced(f"{box.name}: {one}\nis a step of only one of\n{other}\n{agent}")
    return _unfolded(images[first], {image: steps for image, (_, steps) in futures.items()})


def _unfolded(first: State, futures: Mapping[State, frozenset[Future]]) -> Graph:
    """The graph whose states say, besides the agent, what the latest step asked for."""
    start = _with_asked(first, text_of([]))
    origin: dict[State, State] = {start: first}
    steps: dict[State, frozenset[tuple[str, State]]] = {}
    todo = deque([start])
    while todo:
        state = todo.popleft()
        out: set[tuple[str, State]] = set()
        for action, image, asked in futures[origin[state]]:
            target = _with_asked(image, asked)
            if target != state:
                out.add((action, target))
            if target not in origin:
                origin[target] = image
                todo.append(target)
        steps[state] = frozenset(out)
    return Graph(frozenset({start}), steps)


def _with_asked(image: State, asked: Plain) -> State:
    return tuple(sorted((*image, ("asked", asked))))

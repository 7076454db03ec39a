"""Net 5 for what is mutable around the core: after a refusal each wrapper is as it was, and nothing was set going."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from lorafsm.box import registry_moves
from lorafsm.boxes import BOXES
from lorafsm.dispatch import dispatch_step
from lorafsm.dispatch import records as d
from lorafsm.engine import agent_step, new_agent
from lorafsm.engine.answers import Refused
from lorafsm.errors import LoraFsmError
from lorafsm.identity import SessionKey, VersionKey
from lorafsm.outcomes import Binding, Lease, Refusal
from lorafsm.registry import step
from lorafsm_asyncio.local import LocalClient
from lorafsm_asyncio.owner import Owner
from lorafsm_journal import JournaledRegistry
from lorafsm_sglang.guard.executor import Executor
from lorafsm_sglang.guard.stash import Stash
from lorafsm_tla.agent_boxes import fixed_inputs, listings, read_agent_box
from lorafsm_tla.manifest import folder

WORLDS = [
    "restart during a publication",
    "sessions and leases",
    "reclaim and restarts",
    "repair and restart",
    "rollback overtakes a publication",
    "attempts of one version",
]
STEPS = 12  # accepted events that a walk goes on by
AGENTS = 40  # states of an agent's box


def host_of(name: str, path: Path) -> JournaledRegistry:
    box = BOXES[name]
    host = JournaledRegistry.open(path / "journal", box.config, box.epoch)
    host.apply_all(box.story)
    return host


def refused_and_next(name: str, host: JournaledRegistry, at: int) -> tuple[list[Any], Any]:
    """Events that the registry refuses now, one of each kind and code, and one that it accepts."""
    refused, accepted = {}, []
    for event in registry_moves(BOXES[name])(host.registry):
        done = step(host.registry, event)
        if isinstance(done.outcome, Refusal):
            refused[event.name, done.outcome.code] = event
        elif done.registry is not host.registry:
            accepted.append(event)
    return list(refused.values()), accepted[at * 7 % len(accepted)] if accepted else None


@pytest.mark.parametrize("name", WORLDS)
def test_the_journaled_registry(name: str, tmp_path: Path):
    """Refusals are written down, and play no part in what the registry is, now or after a recovery (rule 18)."""
    host, seen = host_of(name, tmp_path), set()
    for at in range(STEPS):
        refused, following = refused_and_next(name, host, at)
        before = host.registry
        for event in refused:
            outcome = host.apply(event)
            assert isinstance(outcome, Refusal)
            assert host.registry is before
            seen.add(outcome.code)
        assert all(isinstance(outcome, Refusal) for outcome in host.apply_all(refused))
        assert host.registry is before
        if following is None:
            break
        host.apply(following)
    assert len(seen) >= 3
    last = host.registry
    host.close()
    with JournaledRegistry.open(tmp_path / "journal", BOXES[name].config, BOXES[name].epoch) as again:
        assert again.registry == last


@pytest.mark.parametrize("name", WORLDS)
async def test_the_local_client(name: str, tmp_path: Path):
    """Whoever waits for news is not woken by a refusal."""
    host = host_of(name, tmp_path)
    client = LocalClient(host)
    for at in range(STEPS):
        refused, following = refused_and_next(name, host, at)
        before, count = host.registry, await client.changed(-1, 0)
        waiting = asyncio.create_task(client.changed(count, 60))
        for event in refused:
            assert isinstance(await client.apply(event), Refusal)
        assert host.registry is before
        assert await client.changed(count, 0) == count
        assert not waiting.done()
        if following is None:
            waiting.cancel()
            break
        await client.apply(following)
        assert await waiting == count + 1
    host.close()


class Untouchable:
    """An engine and a store that nothing may be asked of: a refusal must not come so far."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"a refused order came as far as {name}")


@pytest.mark.parametrize("name", ["buckets", "contents", "requests", "closed", "listings"])
async def test_the_executor_of_an_engine(name: str, tmp_path: Path):
    """The agent is the very one that it was, and no task, no receive, no quarantine came of it."""
    box = read_agent_box(folder() / "models" / "agent" / f"{name}.cfg")
    fixed, codes, asked = fixed_inputs(box), set(), 0
    for agent in agents(box, fixed):
        executor = Executor(agent, Untouchable(), Untouchable(), Stash(tmp_path, "E0"))
        for item in [*fixed, *listings(box, agent)]:
            if isinstance(agent_step(agent, item).answer, Refused):
                answer = executor.give(item)
                assert isinstance(answer, Refused)
                assert executor.agent is agent
                going = (executor._tasks, executor._fetches, executor.quarantine, executor.operations)
                assert not any(going)
                codes.add(answer.code)
                asked += 1
        assert executor._broken == {}
    assert asked > 100
    assert len(codes) >= 3


def agents(box: Any, fixed: list[Any]) -> list[Any]:
    """The first states of an agent's box."""
    first = new_agent("E0", 2, "e1", slots=box.Slots)
    found, todo = dict.fromkeys([first]), [first]
    while todo and len(found) < AGENTS:
        here = todo.pop(0)
        for item in fixed:
            after = agent_step(here, item).agent
            if after not in found:
                found[after] = None
                todo.append(after)
    return list(found)


class Answering:
    """A registry that grants whatever lease is asked for: the guard alone is in question here."""

    async def apply(self, event: Any) -> Lease:
        return Lease(event.owner, event.now + 1_000)


def told(session: SessionKey, other: SessionKey) -> list[Any]:
    """Every event of a guard, about a session that is known and about one that is not."""
    binding = Binding(session, VersionKey("e1", 1), "lorafsm-e1-1-" + "a" * 16, "a" * 64)
    return [
        item
        for key in (session, other)
        for item in (
            d.Opened(session=key),
            d.Bound(session=key, binding=Binding(key, binding.key, binding.lora_name, binding.digest)),
            d.StartAttempt(session=key, rid="r1", attempt=1, now=5),
            d.StartAttempt(session=key, rid="r2", attempt=7, now=5),
            d.StartAttempt(session=key, rid="r3", attempt=1, now=999_999),
            d.Admitted(session=key, rid="r1"),
            d.Admitted(session=key, rid="nobody"),
            d.AdmissionUnknown(session=key, rid="r1"),
            d.Settled(session=key, rid="r1", verdict=d.Verdict.ABSENT),
            d.Finished(session=key, rid="r1"),
            d.BeginClose(session=key),
            d.Drop(session=key),
        )
    ]


async def test_the_guard_of_an_owner():
    """What the owner's wrapper refuses it raises, and its guard is the very one that it was."""
    owner = Owner(Answering(), "e1", "o1", lambda: 5, margin=0)
    await owner.register(1_000)
    refused = 0
    session, other = SessionKey("e1", "o1", 0), SessionKey("e1", "o2", 3)
    for _ in range(3):
        for following in told(session, other):
            for event in told(session, other):
                before = owner._guard
                if isinstance(dispatch_step(before, event).outcome, d.Refused):
                    with pytest.raises(LoraFsmError):
                        owner.tell(event)
                    assert owner._guard is before
                    refused += 1
            if dispatch_step(owner._guard, following).outcome.ok:
                owner.tell(following)
    assert refused > 200

"""RFC 7.1 on running engines: what the online acts do not show by themselves, asked of the same deployment under load.

Every condition's name begins with the row of RFC 7.1's table that it belongs to.  What needs a fault that real engines
cannot be made to show on demand (lost answers at every step, crashes between any two writes) is in the state spaces of
`tests/spec` and in `tests/engines`.
"""

from __future__ import annotations

import asyncio
import secrets
import uuid
from typing import TYPE_CHECKING, Any

import attrs

from gpu_e2e.conversation import token_ids
from lorafsm.events import BindFirst, Commit, Reserve
from lorafsm.lifecycle import SessionState
from lorafsm.orders import Begin, End
from lorafsm.outcomes import Refusal
from lorafsm_asyncio import Refused
from lorafsm_asyncio.questions import DefaultVersion, SessionStateOf
from lorafsm_sglang import OK, Generation, Logprobs, Reply, Sampling
from lorafsm_sglang import Refused as EngineRefused

if TYPE_CHECKING:
    from gpu_e2e.experiment.online import Stage

HALF, AGAIN, FAILED, LATE, RACES, COUNTS, PINNED, CAPACITY, EXACT = (f"7.1.{row}" for row in range(1, 10))
"""The rows of RFC 7.1's table, in order."""

_LONG = 96  # tokens of a request that is watched while it runs
_WAITERS = 8
_CLOSED = (None, SessionState.CLOSED)  # a closed session may be forgotten


async def half_ready(stage: Stage, label: str, last: str) -> None:
    """While one engine has not proved the version: no commit, and who binds now gets the default."""
    services, story = stage.place.story.services, stage.place.story
    _, revision = await services.client.ask(DefaultVersion())
    said = await services.apply(
        Commit(key=stage.place.key(label), token=story.tokens[label], expected_revision=revision, now=services.clock())
    )
    seen = [str(said.code), *(said.engines if isinstance(said, Refusal) else ())]
    stage.faults.expect(f"{HALF} commit while {last} is not READY", ["NOT_READY", last], seen)
    mid = await stage.load.hold("S_mid", last)
    await stage.load.let_go([mid])
    stage.faults.expect(f"{HALF} a session that binds meanwhile gets", stage.default, mid.person.version)


async def play(stage: Stage, failed: str) -> None:
    """All checks; the default is a version that was published here, `failed` one that was given up."""
    await _published_again(stage)
    await _late_orders(stage, failed)
    await _one_binding(stage)
    await _one_release_each(stage)
    await _exact_version(stage)


async def _published_again(stage: Stage) -> None:
    """The same version once more does nothing, and says what is; another content under its key is a conflict."""
    place, services, label = stage.place, stage.place.story.services, stage.default
    snapshot, done = place.story.snapshots[label], len(stage.recorder.operations)
    key, revision = await services.client.ask(DefaultVersion())
    again = Reserve(
        key=place.key(label),
        digest=snapshot.digest,
        plan=place.story.transport.plan(snapshot),
        token=secrets.token_hex(16),
        now=services.clock(),
    )
    said = await services.apply(again)
    stage.faults.expect(f"{AGAIN} the same version and content once more", True, said.ok)
    other = await services.apply(attrs.evolve(again, digest="0" * 64, token=secrets.token_hex(16)))
    stage.faults.expect(f"{AGAIN} the same version, another content", "VERSION_CONFLICT", str(other.code))
    # As a publisher does whose first reply was lost.
    committed = await services.apply(
        Commit(
            key=place.key(label), token=place.story.tokens[label], expected_revision=revision - 1, now=services.clock()
        )
    )
    stage.faults.expect(f"{FAILED} a commit whose answer was lost, asked again", True, committed.ok)
    stage.faults.expect(f"{AGAIN} default and revision after all that", [str(key), revision], await _default(stage))
    loads = [op for op in stage.recorder.operations[done:] if op["version"] == label]
    stage.faults.expect(f"{AGAIN} engine operations that it caused", 0, len(loads))


async def _default(stage: Stage) -> list[Any]:
    key, revision = await stage.place.story.services.client.ask(DefaultVersion())
    return [str(key), revision]


async def _late_orders(stage: Stage, failed: str) -> None:
    """Begin and end of an attempt that was cleaned arrive once more: refused, and nothing is created."""
    place, version = stage.place, await stage.place.story.services.version(stage.place.key(failed))
    snapshot, name = place.story.snapshots[failed], place.lora_name(failed)
    for engine, guard in place.guards.items():
        to: dict[str, Any] = {
            "epoch": place.engines.epoch,
            "engine": engine,
            "incarnation": guard.incarnation,
            "number": version.number,
        }
        what: dict[str, Any] = {"key": version.key, "digest": snapshot.digest, "lora_name": name}
        begin = await guard.give(Begin(**to, **what, plan=place.story.transport.plan(snapshot)))
        end = await guard.give(End(**to, **what), wait_s=5.0)
        seen = [answer is not None and not answer.ok for answer in (begin, end)]
        stage.faults.expect(f"{LATE} late begin and end of {failed} refused by {engine}", [True, True], seen)
        listed = await place.port(engine).models()
        stage.faults.expect(
            f"{LATE} {engine} lists {failed} after them", False, not isinstance(listed, OK) or name in listed.data
        )


async def _one_binding(stage: Stage) -> None:
    """Many wait for one binding, one of them leaves; two close; what comes late opens nothing again."""
    binder, services = stage.cast.binder, stage.place.story.services
    session = binder.open("S_shared")
    waiters = [asyncio.create_task(binder.ensure(session)) for _ in range(_WAITERS)]
    await asyncio.sleep(0)
    waiters[0].cancel()
    said = await asyncio.gather(*waiters, return_exceptions=True)
    names = sorted({binding.lora_name for binding in said if not isinstance(binding, BaseException)})
    stage.faults.expect(f"{RACES} bindings of a session that {_WAITERS} wait for", 1, len(names))
    await asyncio.gather(binder.close_and_release(session), binder.close_and_release(session))
    try:
        late = (await binder.ensure(session)).lora_name
    except Refused as refused:
        late = refused.code
    stage.faults.expect(f"{RACES} a late bind by its owner", "SESSION_CLOSED", late)
    again = await services.apply(BindFirst(session=session, now=services.clock()))
    stage.faults.expect(f"{RACES} a late bind at the registry", False, again.ok)
    state = await services.client.ask(SessionStateOf(session))
    stage.faults.expect(f"{RACES} the session stays closed", True, state in _CLOSED)


async def _one_release_each(stage: Stage) -> None:
    """Two requests hold the version on one engine; one is aborted and is released, the other still holds it."""
    place, engine = stage.place, next(iter(stage.place.fleet.ports))
    port, name = place.port(engine), place.lora_name(stage.default)
    first, second = uuid.uuid4().hex, uuid.uuid4().hex
    before = await _again(stage, engine)

    async def ask(rid: str) -> Reply[Generation]:
        sampling = Sampling(max_new_tokens=_LONG, ignore_eos=True)
        return await port.generate(token_ids(rid, 8), name, sampling, rid, logprobs=Logprobs(), stream=True)

    tasks = {rid: asyncio.create_task(ask(rid)) for rid in (first, second)}
    seen = [await _holders(stage, engine, tasks, 2)]
    await port.abort(first)
    await tasks[first]
    seen.append(await _holders(stage, engine, tasks, 1))
    await tasks[second]
    seen.append(await _holders(stage, engine, tasks, 0))
    stage.faults.expect(f"{COUNTS} holders: both run, one is aborted, the other has ended", [2, 1, 0], seen)
    stage.faults.expect(f"{COUNTS} releases that came twice", before, await _again(stage, engine))


async def _holders(stage: Stage, engine: str, rids: Any, wanted: int) -> int:
    """How many of these requests hold their version, by the engine's word; asked again until as wanted, 10 s."""
    found = -1
    for _ in range(200):
        status = await stage.place.guards[engine].status()
        held = {rid for line in status.get("adapters", ()) for rid in line["held_by"]}
        found = sum(rid in held for rid in rids)
        if found == wanted:
            break
        await asyncio.sleep(0.05)
    return found


async def _again(stage: Stage, engine: str) -> int:
    return int((await stage.place.guards[engine].status()).get("released_again", -1))


async def _exact_version(stage: Stage) -> None:
    """A name that is not served is refused and nothing stands in for it; the ordinary unload route is closed."""
    place, name = stage.place, stage.place.lora_name(stage.default)
    missing = name[:-8] + "0" * 8
    for engine, port in place.fleet.ports.items():
        sampling = Sampling(max_new_tokens=1)
        said = await port.generate(token_ids("missing", 8), missing, sampling, uuid.uuid4().hex)
        text = said.message if isinstance(said, EngineRefused) else str(said)
        stage.faults.expect(f"{EXACT} {engine}, asked for a name that it lacks", True, "VERSION_MISSING" in text)
        around = await port.unload(name)
        stage.faults.expect(f"{EXACT} {engine}: ordinary unload of the default", False, isinstance(around, OK))
        served = await port.score(token_ids("still there", 8), name, uuid.uuid4().hex)
        stage.faults.expect(f"{EXACT} {engine} still serves it", True, isinstance(served, OK))


def section(stage: Stage) -> dict[str, Any]:
    """The section of the report."""
    return {"ok": stage.faults.ok, "conditions": stage.faults.rows}

"""What the tests of this folder share: engines, versions in the store, and what is asked of them."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from attrs import frozen

from lorafsm import events as ev
from lorafsm.identity import VersionKey
from lorafsm.manifest import store_plan
from lorafsm.orders import Begin, End
from lorafsm_sglang import EngineProcess, Sampling
from lorafsm_sglang import Refused as HttpRefused
from lorafsm_sglang.guard import GuardedEngine
from lorafsm_torch import ArtifactStore

EPOCH_ID = "g1"
PROMPT = list(range(40, 72))
SHORT = Sampling(max_new_tokens=2)
LONG = Sampling(max_new_tokens=1500, ignore_eos=True)


@frozen
class Guarded:
    """One guarded engine, one whose guard failed to come up (as SGLang alone), and the store."""

    process: EngineProcess
    broken: EngineProcess
    store: ArtifactStore
    token: str
    model: Path
    adapter: Path  # an adapter folder that nobody manages


@frozen
class Version:
    """A version in the store, and the orders about it."""

    key: VersionKey
    digest: str
    lora_name: str
    incarnation: int
    engine: str = "E0"

    def order(self, kind: Callable[..., Any], **more: Any) -> Any:
        what = {"key": self.key, "digest": self.digest, "lora_name": self.lora_name}
        return kind(**who(self.incarnation, self.engine), **what, **more)


versions: list[Version] = []
numbers = iter(range(1000, 100_000))
"""Of keys and of operations: no engine sees one twice.  Below 1000 they are the registry's (`deployment.py`)."""


def who(incarnation: int, engine: str = "E0") -> dict[str, Any]:
    return {"epoch": EPOCH_ID, "engine": engine, "incarnation": incarnation}


def clock() -> int:
    return time.time_ns() // 1_000_000


def client(process: EngineProcess, token: str, incarnation: int = 0, engine: str = "E0", **more: Any) -> GuardedEngine:
    """The publisher's side of one engine."""
    return GuardedEngine(engine, incarnation, process.url, token, clock, **more)


async def ready(engine: GuardedEngine, version: Version) -> int:
    """Publish the version on this engine; the operation's number."""
    number = next(numbers)
    begun = await engine.carry_out(version.order(Begin, number=number, plan=store_plan()))
    assert isinstance(begun, ev.Prepared), begun
    proof = await engine.carry_out(version.order(End, number=number))
    assert isinstance(proof, ev.Ready), proof
    assert (proof.digest, proof.number, proof.incarnation) == (version.digest, number, engine.incarnation)
    return number


async def adapter_of(engine: GuardedEngine, version: Version) -> dict[str, Any]:
    return next(a for a in (await engine.status())["adapters"] if a["lora_name"] == version.lora_name)


async def until(condition: Callable[[], Awaitable[Any]], what: str, deadline_s: float = 30.0) -> None:
    """Wait for a condition; fail saying what did not come true."""
    end = time.monotonic() + deadline_s
    while not await condition():
        assert time.monotonic() < end, f"after {deadline_s} s still not: {what}"
        await asyncio.sleep(0.02)


async def until_refs(engine: GuardedEngine, version: Version, refs: int) -> None:
    async def there() -> bool:
        adapter = await adapter_of(engine, version)
        return (adapter["refs"], adapter["sglang_count"]) == (refs, refs)

    await until(there, f"{refs} references of {version.lora_name}")


async def until_draining(engine: GuardedEngine, version: Version) -> None:
    async def there() -> bool:
        return (await adapter_of(engine, version))["state"] == "DRAINING"

    await until(there, f"{version.lora_name} drains")


def code_of(reply: Any) -> str:
    """The guard's code in a refused request."""
    assert isinstance(reply, HttpRefused), reply
    assert reply.status == 400
    return reply.message.partition(":")[0]


def rid() -> str:
    return uuid.uuid4().hex


def lora_ids(process: EngineProcess, lora_name: str) -> list[str]:
    """SGLang's ids of the adapter, one a load, from its log: no reply shows them."""
    log = process.log_path.read_text(errors="replace")
    found = re.findall(rf"starts: LoRARef\(lora_id=([0-9a-f]{{32}}), lora_name={re.escape(lora_name)},", log)
    return list(dict.fromkeys(found))

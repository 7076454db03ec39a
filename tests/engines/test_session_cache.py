"""Our sessions in the session cache of a real guarded engine: what protects a prefix there, and until when.

The engine has a KV pool of its own, small enough that a few requests fill it.
"""

from __future__ import annotations

import importlib.util
import secrets
from collections.abc import AsyncIterator, Iterator
from itertools import count
from random import Random
from typing import Any

import httpx
import pytest
from attrs import evolve, frozen

pytest.importorskip("torch", reason="not installed: torch (`make test` installs it)")

from lorafsm import events as ev
from lorafsm.identity import SessionKey, VersionKey, lora_name
from lorafsm.orders import Load
from lorafsm.outcomes import Code
from lorafsm.registry import Step, step
from lorafsm_sglang import EngineProcess, wait_all_ready
from lorafsm_sglang.cpu_profile import cpu_environment, cpu_flags
from lorafsm_sglang.guard import GuardedEngine, guard_environment, write_token
from lorafsm_sglang.guard.session_cache import SessionRefused, engine_session_id
from lorafsm_sglang.guard.session_client import EngineSessions
from lorafsm_sglang.guard.settings import TOKEN_HEADER
from lorafsm_sglang.tiny_model import VOCAB_SIZE, lora_fixture, write_model
from lorafsm_torch import ArtifactStore, freeze_snapshot
from tests.core.story import World
from tests.engines.conftest import DEADLINE_S

pytestmark = pytest.mark.engines

EPOCH = "g1"
POOL = 600  # tokens of KV
LENGTH = 120  # tokens of one prompt


@frozen
class Stored:
    """A version in the store."""

    key: VersionKey
    digest: str

    @property
    def lora_name(self) -> str:
        return lora_name(self.key, self.digest)

    def order(self, incarnation: int, number: int) -> Load:
        what = {"key": self.key, "digest": self.digest, "lora_name": self.lora_name}
        return Load(epoch=EPOCH, engine="E0", incarnation=incarnation, number=number, **what)


@frozen
class House:
    """A guarded engine whose cache knows sessions, and two versions in its store."""

    process: EngineProcess
    token: str
    a: Stored
    b: Stored


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Started once, stopped by pid."""
    if missing := [name for name in ("transformers", "psutil", "sglang") if importlib.util.find_spec(name) is None]:
        pytest.skip(f"not installed: {', '.join(missing)} (`make test` installs them)")
    folder = tmp_path_factory.mktemp("session-cache")
    model, token = write_model(folder / "model"), secrets.token_hex(16)
    store = ArtifactStore(folder / "store")

    environment = guard_environment(
        cpu_environment(),
        "E0",
        EPOCH,
        store=folder / "store",
        host=folder / "host",
        token_file=write_token(folder / "token", token),
    )
    flags = [*cpu_flags(model, max_total_tokens=POOL, context_length=POOL), "--enable-session-radix-cache"]
    process = EngineProcess("E0", flags, environment, folder / "E0.log", module="lorafsm_sglang.serve")
    with process:
        a, b = (_store(store, number, fixture) for number, fixture in ((1, "A"), (2, "B")))
        wait_all_ready((process,), DEADLINE_S)
        yield House(process, token, a, b)


def _store(store: ArtifactStore, number: int, fixture: str) -> Stored:
    tensors, config = lora_fixture(fixture)
    snapshot = freeze_snapshot(config, tensors)
    key = VersionKey(EPOCH, number)
    store.put(key, snapshot)
    return Stored(key, snapshot.digest)


def prompt(number: int) -> list[int]:
    """No two of them begin alike."""
    return [number, *Random(number).choices(range(10, VOCAB_SIZE), k=LENGTH - 1)]


@frozen
class Client:
    """One engine as its users see it."""

    http: httpx.AsyncClient
    sessions: EngineSessions

    async def generate(self, number: int, lora: str | None, session: str | None = None) -> httpx.Response:
        body: dict[str, Any] = {
            "input_ids": prompt(number),
            "sampling_params": {"max_new_tokens": 1, "temperature": 0.0, "ignore_eos": True},
            "lora_path": lora,
            "session_id": session,
        }
        return await self.http.post(
            "/generate", json={name: value for name, value in body.items() if value is not None}
        )

    async def cached(self, number: int, lora: str | None, session: str | None = None) -> int:
        """Tokens of the prompt that were in the cache."""
        answer = await self.generate(number, lora, session)
        assert answer.status_code == 200, answer.text
        return int(answer.json()["meta_info"]["cached_tokens"])

    async def press(self, first: int, lora: str | None) -> None:
        """As many new prompts as fill the pool, but for one."""
        for number in range(first, first + POOL // LENGTH - 1):
            assert await self.cached(number, lora) == 0


async def client_of(process: EngineProcess, token: str) -> AsyncIterator[Client]:
    async with httpx.AsyncClient(base_url=process.url, timeout=60, trust_env=False) as http:
        sessions = EngineSessions(process.url, token)
        yield Client(http, sessions)
        await sessions.aclose()


@pytest.fixture
async def engine(house: House) -> AsyncIterator[Client]:
    """The engine whose cache knows sessions; both versions are there, and its cache is empty."""
    asking = GuardedEngine(engine="E0", incarnation=0, url=house.process.url, token=house.token, clock=lambda: 0)
    incarnation = (await asking.attest()).incarnation
    for number, version in enumerate((house.a, house.b), 1):
        load = version.order(incarnation, number)
        assert isinstance(await evolve(asking, incarnation=incarnation).carry_out(load), ev.RepairReady)
    await asking.aclose()
    async for client in client_of(house.process, house.token):
        await client.http.post("/flush_cache")
        yield client


_sequences = count()


@pytest.fixture
def session() -> SessionKey:
    """A session that no test had before."""
    return SessionKey(EPOCH, "trainer-0", next(_sequences))


def code_of(answer: httpx.Response) -> str:
    assert answer.status_code == 400, answer.text
    return str(answer.json()["error"]["message"]).partition(":")[0]


async def test_a_protected_prefix_survives_pressure_that_evicts_a_younger_one(engine: Client, house: House, session):
    name = house.a.lora_name
    engine_id = await engine.sessions.open(session, name)
    assert await engine.cached(1, name, engine_id) == 0
    assert await engine.cached(2, name) == 0
    await engine.press(10, name)
    assert await engine.cached(1, name, engine_id) >= LENGTH - 1
    assert await engine.cached(2, name) == 0


async def test_without_sessions_the_same_requests_evict_the_older_one(engine: Client, house: House):
    name = house.a.lora_name
    assert await engine.cached(1, name) == 0
    assert await engine.cached(2, name) == 0
    await engine.press(10, name)
    assert await engine.cached(1, name) == 0


async def test_closing_keeps_the_kv_and_drops_the_protection(engine: Client, house: House, session):
    name = house.a.lora_name
    engine_id = await engine.sessions.open(session, name)
    await engine.cached(1, name, engine_id)
    assert await engine.sessions.close(session) is Code.OK
    assert await engine.cached(1, name) >= LENGTH - 1
    await engine.cached(2, name)
    await engine.press(10, name)
    assert await engine.cached(1, name) == 0


async def test_a_request_after_the_close_cannot_open_the_session_again(engine: Client, house: House, session):
    """SGLang by itself lets it: whatever has no generation gets one."""
    name = house.a.lora_name
    engine_id = await engine.sessions.open(session, name)
    await engine.cached(1, name, engine_id)
    await engine.sessions.close(session)
    assert code_of(await engine.generate(1, name, engine_id)) == Code.SESSION_CLOSED
    with pytest.raises(SessionRefused) as caught:
        await engine.sessions.open(session, name)
    assert caught.value.code == Code.SESSION_CLOSED
    assert await engine.sessions.close(session) is Code.ALREADY_CLOSED
    await engine.http.post("/flush_cache")
    assert code_of(await engine.generate(1, name, engine_id)) == Code.SESSION_CLOSED
    again = evolve(session, sequence=next(_sequences))  # the label, opened again
    assert await engine.cached(1, name, await engine.sessions.open(again, name)) == 0


async def test_a_session_needs_no_open_and_stays_with_its_version(engine: Client, house: House, session):
    engine_id = engine_session_id(session)
    await engine.cached(1, house.a.lora_name, engine_id)
    assert code_of(await engine.generate(1, house.b.lora_name, engine_id)) == "SESSION_VERSION"
    with pytest.raises(SessionRefused) as caught:
        await engine.sessions.open(session, house.b.lora_name)
    assert caught.value.code == Code.OPERATION_CONFLICT
    assert await engine.sessions.open(session, house.a.lora_name) == engine_id
    await engine.cached(2, house.a.lora_name)
    await engine.press(10, house.a.lora_name)
    assert await engine.cached(1, house.a.lora_name, engine_id) >= LENGTH - 1, "the second open changed nothing"


async def test_only_ids_of_ours_name_sessions_of_managed_versions(engine: Client, house: House, session):
    assert code_of(await engine.generate(1, house.a.lora_name, "somebody")) == "SESSION_ID"
    for wrong in (
        "lorafsm/",
        "lorafsm/g1/trainer-0/-1",
        "lorafsm/g1/trainer-0/01",
        "lorafsm/g1//1",
        "lorafsm/g1/a/b/1",
    ):
        assert code_of(await engine.generate(1, house.a.lora_name, wrong)) == "SESSION_ID"
    assert await engine.cached(1, None, "somebody") == 0, "the base model's are SGLang's own affair"
    for route, more in (("open", {"capacity_of_str_len": 1}), ("close", {})):
        answer = await engine.http.post(f"/{route}_session", json={"session_id": engine_session_id(session), **more})
        assert code_of(answer) == "SESSION_ID"


@pytest.mark.parametrize(
    ("route", "body", "field"),
    [
        ("open", {"epoch": "g1", "owner": "o", "sequence": -1}, "session"),
        ("open", {"epoch": "g1", "owner": "o", "sequence": 1, "lora_name": 5}, "lora_name"),
        ("open", {"epoch": "g1", "owner": "o", "sequence": 1, "lora_name": "mine"}, "lora_name"),
        ("close", {"epoch": "g1", "owner": "o", "sequence": 1, "now": 3}, "body"),
        ("end_owner", {"epoch": "g1"}, "body"),
        ("end_owner", {"epoch": "g 1", "owner": "o"}, "epoch"),
    ],
)
async def test_malformed_calls_are_refused_by_name(engine: Client, house: House, route: str, body: dict, field: str):
    answer = await engine.http.post(f"/lorafsm/sessions/{route}", json=body, headers={TOKEN_HEADER: house.token})
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)
    unsigned = await engine.http.post(f"/lorafsm/sessions/{route}", json=body)
    assert unsigned.status_code == 401


class Followed(World):
    """A registry whose steps an engine's cache is told of."""

    steps: list[tuple[Any, Step]]

    def do(self, event: Any) -> Code:
        done = step(self.r, event)
        self.__dict__.setdefault("steps", []).append((event, done))
        return super().do(event)

    async def tell(self, sessions: EngineSessions) -> None:
        for event, done in self.steps:
            await sessions.follow(event, done)
        self.steps.clear()


async def test_one_close_releases_the_version_ref_and_the_engines_refs(engine: Client):
    """One concept of session: the registry's key is the engine's."""
    w = Followed()
    w.publish("A")
    w.bind_first("s")
    w.bind_first("t")
    await w.tell(engine.sessions)
    ids = {name: engine_session_id(w.session_key(name)) for name in "st"}
    w.close_and_release("s")
    assert w.r.versions[w.key("A")].session_refs == 1
    await w.tell(engine.sessions)
    assert await engine.sessions.close(w.session_key("s")) is Code.ALREADY_CLOSED
    assert code_of(await engine.generate(1, None, ids["s"])) == Code.SESSION_CLOSED
    w.owner_gone("o1")
    assert w.r.versions[w.key("A")].session_refs == 0
    await w.tell(engine.sessions)
    assert code_of(await engine.generate(1, None, ids["t"])) == Code.SESSION_EXPIRED

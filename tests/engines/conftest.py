"""Two real SGLang engines for the whole session, started together before the first test runs.

They start in the background as soon as pytest knows that a test wants them, so that other tests run while
they load, and are stopped by pid however the session ends.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import attrs
import httpx
import pytest

from lorafsm_sglang import OK, EnginePort, EngineProcess, wait_all_ready
from lorafsm_sglang.cpu_profile import cpu_environment, cpu_flags
from lorafsm_sglang.tiny_model import FIXTURES, VOCAB_SIZE, write_lora, write_model

# Idle, two engines need 30 s; cores that are shared with much else have been seen to need five minutes.
DEADLINE_S = float(os.environ.get("LORAFSM_ENGINE_DEADLINE_S", "240"))
_NEEDED = ("torch", "transformers", "safetensors", "psutil", "sglang")


@attrs.frozen
class Artifacts:
    """The tiny model and its adapters on disk."""

    model: Path
    adapters: dict[str, Path]


@attrs.frozen
class House:
    """What one session shares: a folder, the artifacts, and two engines that are starting or ready."""

    folder: Path
    artifacts: Artifacts
    engines: tuple[EngineProcess, EngineProcess]


_house: House | None = None


def _missing() -> list[str]:
    return [name for name in _NEEDED if importlib.util.find_spec(name) is None]


def _build(folder: Path) -> House:
    model = write_model(folder / "model")
    adapters = {name: write_lora(folder / f"adapter-{name}", name) for name in FIXTURES}
    first, second = (
        EngineProcess(f"engine-{number}", cpu_flags(model), cpu_environment(), folder / f"engine-{number}.log")
        for number in (1, 2)
    )
    return House(folder, Artifacts(model, adapters), (first, second))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the engines if any selected test asks for them (elsewhere `engines` may be something smaller)."""
    global _house
    asking = [item for item in session.items if "engines" in getattr(item, "fixturenames", ())]
    wanted = any(item.get_closest_marker("engines") for item in asking)
    if not wanted or session.config.option.collectonly or _missing():
        return
    _house = _build(Path(tempfile.mkdtemp(prefix="lorafsm-engines-")))
    # Should one not even start, pytest_sessionfinish stops the other.
    for engine in _house.engines:
        engine.start()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Stop the engines, after failures and Ctrl-C as well; keep their logs unless all went well."""
    if _house is None:
        return
    for engine in _house.engines:
        engine.stop()
    if exitstatus == pytest.ExitCode.OK:
        shutil.rmtree(_house.folder)
    else:
        print(f"\nlogs of the engines: {_house.folder}/engine-*.log")


@pytest.fixture(scope="session")
def house() -> House:
    """The session's folder, artifacts and engines, not waited for."""
    missing = _missing()
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (`make test` installs them)")
    if _house is None:
        pytest.fail("engines were not started: the test does not ask for the fixture `engines`")
    return _house


@pytest.fixture(scope="session")
def engines(house: House) -> tuple[EngineProcess, EngineProcess]:
    """Both engines, ready."""
    wait_all_ready(house.engines, DEADLINE_S)
    return house.engines


@pytest.fixture
def artifacts(house: House) -> Artifacts:
    return house.artifacts


@pytest.fixture
async def port(engines: tuple[EngineProcess, EngineProcess]) -> AsyncIterator[EnginePort]:
    """A port to the first engine; afterwards the engine has no adapters, so that tests do not meet."""
    async with EnginePort(engines[0].url, vocab_size=VOCAB_SIZE) as client:
        yield client
        models = await client.models()
        # An engine that a failed test has ended has nothing to clean.
        for name in models.data if isinstance(models, OK) else ():
            await client.unload(name, timeout_s=60)


@pytest.fixture
def throw_away(engines: tuple[EngineProcess, EngineProcess]) -> EngineProcess:
    """An engine that a test may pause or kill: the second one, started again if an earlier test killed it."""
    engine = engines[1]
    if not engine.alive():
        engine.start()
        wait_all_ready([engine], DEADLINE_S)
    return engine


@pytest.fixture
def new_name() -> Callable[[str], str]:
    """Names that no test used before: an engine remembers the path of every name it ever loaded."""
    return lambda fixture: f"{fixture}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def new_rid() -> Callable[[], str]:
    return lambda: uuid.uuid4().hex


def wait_until(condition: Callable[[], bool], what: str, deadline_s: float = 30.0) -> None:
    """Wait for a condition; fail with ``what`` when it does not come true in time."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            pytest.fail(f"after {deadline_s} s still not: {what}")
        time.sleep(0.02)


@pytest.fixture
def http(engines: tuple[EngineProcess, EngineProcess]) -> Iterator[Callable[[EngineProcess], httpx.Client]]:
    """Plain clients for calls that the port does not offer (pause, flush)."""
    opened: list[httpx.Client] = []

    def client(engine: EngineProcess) -> httpx.Client:
        opened.append(httpx.Client(base_url=engine.url, timeout=60, trust_env=False))
        return opened[-1]

    yield client
    for each in opened:
        each.close()

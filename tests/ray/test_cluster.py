"""The registry on a real Ray cluster: found by name, one writer, typed errors, metrics, and the command line."""

import asyncio
import json
import os
import pickle
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import ray
from hypothesis import HealthCheck, given, settings
from prometheus_client.parser import text_string_to_metric_families
from ray.exceptions import RayTaskError
from typer.testing import CliRunner

from lorafsm.errors import InvalidField, LoraFsmError
from lorafsm.events import EngineJoin, Heartbeat, OwnerUp
from lorafsm.outcomes import Code, Committed, Lease
from lorafsm_asyncio.questions import AttemptOutcome, DefaultVersion
from lorafsm_asyncio.refusals import as_error
from lorafsm_cli.main import app
from lorafsm_journal import Journal, JournalCode, JournalError
from lorafsm_ray import NAMESPACE, AsyncClient, Patience, connect, connect_blocking, stop_registry
from lorafsm_ray.calls import RayCalls
from tests.adapters.journal_stories import EPOCH, life
from tests.ray.lossy import Fault, LossyCalls
from tests.ray.programs import publisher, require_story_was_told, shard
from tests.ray.test_client_faults import FAULTS, TURNS


def actor_of(name: str):
    return ray.get_actor(name, namespace=NAMESPACE)


def error_of(action) -> LoraFsmError:
    with pytest.raises(LoraFsmError) as caught:
        action()
    return caught.value


async def test_it_is_found_by_name_and_started_once(started, tmp_path: Path):
    first = started("once")
    assert started("once") == first
    assert error_of(lambda: started("once", epoch="e2")).code == "REGISTRY_EXISTS"
    assert error_of(lambda: connect("never")).code == "UNKNOWN_REGISTRY"
    assert error_of(lambda: connect("no/name")).field == "name"
    assert error_of(lambda: started("levels", level="none")).field == "level"
    client = connect("once")
    assert isinstance(await client.apply(OwnerUp(owner="o1")), Lease)
    assert (await client.apply(Heartbeat(owner="o2"))).code is Code.UNKNOWN_OWNER
    assert stop_registry("once")
    assert not stop_registry("once")
    with Journal.read(tmp_path / "once.journal") as journal:
        assert [row.event.owner for row in journal.rows()] == ["o1", "o2"]


async def test_a_client_outlasts_a_registry_that_is_stopped_and_started_again(started):
    started("again")
    client = connect("again", Patience(deadline_s=60))
    assert (await client.apply(OwnerUp(owner="o1"))).ok
    stop_registry("again")
    waiting = asyncio.create_task(client.apply(Heartbeat(owner="o1")))
    await asyncio.to_thread(started, "again")
    assert isinstance(await waiting, Lease)
    stop_registry("again")
    with pytest.raises(LoraFsmError) as caught:
        await AsyncClient(RayCalls("again"), "again", Patience(deadline_s=0.3)).apply(Heartbeat(owner="o1"))
    assert caught.value.code == "REGISTRY_UNAVAILABLE"


async def test_of_two_registries_on_one_journal_one_wins(started, tmp_path: Path):
    started("first")
    client = connect("first")
    assert (await client.apply(OwnerUp(owner="o1"))).ok
    error = error_of(lambda: started("second", journal=tmp_path / "first.journal"))
    assert isinstance(error, JournalError)
    assert error.code == JournalCode.JOURNAL_LOCKED
    assert error_of(lambda: connect("second")).code == "UNKNOWN_REGISTRY"
    assert isinstance(await client.apply(Heartbeat(owner="o1")), Lease)
    stop_registry("first")
    started("second", journal=tmp_path / "first.journal")
    assert isinstance(await connect("second").apply(Heartbeat(owner="o1")), Lease)


def test_what_cannot_be_started_leaves_no_actor_behind(started, tmp_path: Path):
    (tmp_path / "foreign.journal").write_bytes(b"not a database at all, but long enough " * 200)
    assert error_of(lambda: started("foreign")).code == JournalCode.JOURNAL_SCHEMA
    hook = error_of(lambda: started("hook", on_event="tests.ray.hooks:nothing"))
    assert isinstance(hook, InvalidField)
    assert hook.field == "on_event"
    started("listens", metrics_port=0)
    port = connect_blocking("listens").live().metrics_port
    assert error_of(lambda: started("port", metrics_port=port)).field == "metrics_port"
    for name in ("foreign", "hook", "port"):
        assert error_of(lambda name=name: connect(name)).code == "UNKNOWN_REGISTRY"


def test_errors_cross_ray_as_what_they_are(started, shared: str):
    """Ray raises an instance of two classes, its own and the cause's; the clients raise the cause."""
    started("closed")
    actor = actor_of("closed")
    ray.get(actor.stop.remote())
    with pytest.raises(JournalError) as caught:
        ray.get(actor.apply.remote(OwnerUp(owner="o1")))
    dual = caught.value
    assert isinstance(dual, RayTaskError)
    assert isinstance(dual, LoraFsmError)
    assert dual.code == JournalCode.JOURNAL_CLOSED
    assert dual.row is None
    cause = pickle.loads(pickle.dumps(dual.cause))
    assert (type(cause), cause.code, cause.message) == (JournalError, dual.code, dual.message)

    @ray.remote
    def refuse(outcome):
        raise as_error(outcome)

    refusal = connect_blocking(shared).apply(Heartbeat(owner="nobody"))
    with pytest.raises(LoraFsmError) as caught:
        ray.get(refuse.remote(refusal))
    assert isinstance(caught.value, RayTaskError)
    assert (caught.value.code, caught.value.field) == ("UNKNOWN_OWNER", "owner")
    with pytest.raises(TypeError, match="is not a question") as wrong:
        connect_blocking(shared).ask("how are you")
    assert not isinstance(wrong.value, RayTaskError)


def test_all_ranks_read_one_outcome(started):
    """A blocking client in each rank's process (RFC 6): what one commits, all are told alike."""
    started("ranks")
    client = connect_blocking("ranks")
    for event in life()[:9]:
        assert client.apply(event).ok, event

    @ray.remote(num_cpus=0)
    def rank():
        mine = connect_blocking("ranks")
        while (outcome := mine.ask(AttemptOutcome(1))) is None:
            mine.changed(mine.live().accepted, 1.0)
        return outcome

    waiting = [rank.remote() for _ in range(2)]
    committed = client.apply(life()[9])
    assert isinstance(committed, Committed)
    assert ray.get(waiting) == [committed, committed]
    assert client.ask(DefaultVersion()) == (committed.key, 1)
    assert client.changed(0, 5.0) >= 10


def numbers(text: str) -> dict[tuple[str, ...], float]:
    """Every sample: (name, label values in the order of their names) -> value."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_and_command_line_say_what_the_registry_says(started, cluster: str):
    started("shown", metrics_port=0)
    client = connect_blocking("shown")
    for event in [*life()[:-1], OwnerUp(owner="o2"), Heartbeat(owner="nobody")]:
        client.apply(event)
    live = client.live()
    with urllib.request.urlopen(f"http://127.0.0.1:{live.metrics_port}/metrics", timeout=10) as answer:
        said = numbers(answer.read().decode())
    status = live.status
    assert said["lorafsm_default_revision",] == status.revision == 2
    assert said["lorafsm_used_slots",] == status.slots_used == 2
    assert said["lorafsm_live_sessions",] == status.live_sessions == 1
    assert said["lorafsm_live_owners",] == status.live_owners == 2
    assert said["lorafsm_reserve_refused",] == (status.next_reserve is not None) == 1
    assert said["lorafsm_journal_rows",] == live.rows
    assert said["lorafsm_version_session_refs", "e1-2"] == 1
    for version in status.versions:
        assert said["lorafsm_version_state", version.state, str(version.key)] == 1
        assert said["lorafsm_version_routable_engines", str(version.key)] == len(version.routable)
    for engine in status.engines:
        assert said["lorafsm_engine_state", engine.engine, engine.state] == 1
        assert said["lorafsm_engine_residents", engine.engine] == len(engine.residents)
    assert ("lorafsm_reclaim_age_seconds", "r1", "e1-1") in said
    counted = {key[1:]: value for key, value in said.items() if key[0] == "lorafsm_events_total"}
    assert counted == {(code, event): count for event, code, count in live.counts}

    ran = CliRunner().invoke(app, ["status", "--registry", "shown", "--json"], standalone_mode=False)
    page = json.loads(ran.stdout)
    assert page["registry"] == "shown"
    assert page["live"]["last"][-1]["code"] == "UNKNOWN_OWNER"
    assert (page["revision"], page["slots_used"], page["live_sessions"]) == (2, 2, 1)
    text = CliRunner().invoke(app, ["status", "--registry", "shown"], standalone_mode=False).stdout
    for words in ("registry shown, pid", "e1-2", "Reclaim r1", "CAPACITY_ERROR", "UNKNOWN_OWNER", "each engine counts"):
        assert words in text


def lorafsm(*words: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    code = "from lorafsm_cli.main import app; app(prog_name='lorafsm')"
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=120)


def test_another_process_finds_the_cluster_by_its_address(shared: str, cluster: str):
    done = lorafsm("status", "--registry", shared, "--address", cluster, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["registry"] == shared
    missing = lorafsm("status", "--registry", "near", "--address", cluster)
    assert missing.returncode == 1
    assert missing.stderr.splitlines()[-1].startswith("lorafsm: UNKNOWN_REGISTRY")
    assert lorafsm("status", "--registry", shared, "--journal", "x").returncode == 2
    nobody = lorafsm("status", "--registry", shared, "--address", "127.0.0.1:1")
    assert (nobody.returncode, "no Ray cluster at 127.0.0.1:1" in nobody.stderr) == (2, True)


def test_the_stream_has_a_line_for_every_change(shared: str, cluster: str):
    client = connect_blocking(shared)
    code = "from lorafsm_cli.main import app; app(prog_name='lorafsm')"
    words = ["status", "--registry", shared, "--address", cluster, "--json", "--watch"]
    with subprocess.Popen(
        [sys.executable, "-c", code, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as shown:
        try:
            assert shown.stdout is not None
            assert json.loads(shown.stdout.readline())["engines"] == []
            client.apply(EngineJoin(engine="E0", incarnation=1, seq=1, base_fingerprint=""))
            assert [e["engine"] for e in json.loads(shown.stdout.readline())["engines"]] == ["E0"]
        finally:
            shown.terminate()


@given(faults=FAULTS, turns=TURNS)
@settings(max_examples=3, suppress_health_check=[*HealthCheck])
def test_losses_duplicates_and_delays_on_a_cluster(started, tmp_path: Path, faults: list[Fault], turns: list[int]):
    name = f"lossy-{time.monotonic_ns()}"
    started(name)
    faults = [Fault.REPLY_LOST if fault is Fault.RESTART else fault for fault in faults]

    async def run() -> list:
        lossy = LossyCalls(RayCalls(name), faults, turns)
        clients = [AsyncClient(lossy, name) for _ in range(3)]
        _, *bound = await asyncio.gather(
            publisher(clients[0]), *(shard(client, f"o{n}", 3) for n, client in enumerate(clients))
        )
        await lossy.settle()
        return [one for each in bound for one in each]

    bound = asyncio.run(run())
    stop_registry(name)
    require_story_was_told(tmp_path / f"{name}.journal", bound)


def test_without_a_cluster_it_says_so(tmp_path: Path):
    code = "from lorafsm.records import Config; from lorafsm_ray import *; {}({})"
    for call, arguments in (
        ("start_registry", f"'r', Config(), {str(tmp_path / 'j')!r}, epoch={EPOCH!r}"),
        ("connect", "'r'"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code.format(call, arguments)], capture_output=True, text=True, env=os.environ.copy()
        )
        assert done.stderr.splitlines()[-1].split(":")[1].strip() == "RAY_NOT_CONNECTED"

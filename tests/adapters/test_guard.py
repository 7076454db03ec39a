"""The guard's parts that need no SGLang: settings, configuration, attestation, wire, admission, stash, client."""

from __future__ import annotations

import asyncio
import json
import os
import tomllib
from collections.abc import Callable
from configparser import ConfigParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import httpx
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from lorafsm import events as ev
from lorafsm.engine import answers as an
from lorafsm.engine.orders import ORDERS, ArmBucket, ReceiveBucket, Settle
from lorafsm.errors import InvalidField
from lorafsm.identity import VersionKey, lora_name
from lorafsm.manifest import Plan, store_plan
from lorafsm.orders import AskStatus, Begin, Cleanup, End, Load, TakeInventory, Unload, UnloadStray
from lorafsm.outcomes import Code
from lorafsm.records import Resident
from lorafsm_sglang import serve
from lorafsm_sglang.guard import (
    AttestationError,
    GuardedEngine,
    guard_environment,
    relax_wire,
    settings,
    settings_from,
    write_token,
)
from lorafsm_sglang.guard.admission import RequestRefused, Rids, Screen
from lorafsm_sglang.guard.attestation import judge
from lorafsm_sglang.guard.configuration import SETTINGS, agent_slots, faults_in
from lorafsm_sglang.guard.plugin import activate
from lorafsm_sglang.guard.settings import CAPACITY, ENGINE, EPOCH, HOST, LAUNCHER, STORE, TOKEN_FILE
from lorafsm_sglang.guard.stash import Stash, StashError
from lorafsm_sglang.guard.versions import GUARD_VERSION, SUPPORTED, Hooked, Supported, self_test
from lorafsm_sglang.guard.wire import LARGEST_ORDER, read_answer, read_json, read_order, write_answer, write_order

KEY, DIGEST = VersionKey("e1", 3), "a" * 64
NAME = lora_name(KEY, DIGEST)
WHO: dict[str, Any] = {"epoch": "e1", "engine": "E0", "incarnation": 7}
WHAT: dict[str, Any] = {"key": KEY, "digest": DIGEST, "lora_name": NAME}
TOKEN = "t" * 32

GOOD: dict[str, Any] = {
    "enable_lora": True,
    "lora_strict_loading": True,
    "enable_lora_overlap_loading": False,
    "disable_radix_cache": False,
    "disable_overlap_schedule": True,
    "tokenizer_worker_num": 1,
    "tp_size": 1,
    "pp_size": 1,
    "dp_size": 1,
    "nnodes": 1,
    "speculative_algorithm": None,
    "disaggregation_mode": "null",
    "rust_server": False,
    "max_loras_per_batch": 3,
    "max_loaded_loras": 3,
    "lora_paths": [],
}


# -- settings ---------------------------------------------------------------------------------------------


def environment(folder: Path, **more: str) -> dict[str, str]:
    token = write_token(folder / "token", TOKEN)
    return {
        **guard_environment({}, "E0", "e1", store=folder / "store", host=folder / "host", token_file=token),
        **more,
    }


def test_settings_come_back_from_the_environment(tmp_path: Path):
    told = settings_from(environment(tmp_path))
    assert told is not None
    assert (told.engine, told.epoch, told.token, told.capacity) == ("E0", "e1", TOKEN, 2)
    assert not told.unmanaged
    assert TOKEN not in repr(told)


def test_an_engine_that_was_told_nothing_is_not_guarded():
    assert settings_from({"PATH": "/bin"}) is None


@pytest.mark.parametrize(
    "name, value",
    [
        (ENGINE, "-"),
        (EPOCH, "a-b"),
        (CAPACITY, "0"),
        (CAPACITY, "x"),
        (STORE, "relative"),
        (HOST, ""),
        (TOKEN_FILE, "x"),
    ],
)
def test_a_bad_variable_is_named(tmp_path: Path, name: str, value: str):
    with pytest.raises(InvalidField) as caught:
        settings_from(environment(tmp_path, **{name: value}))
    assert caught.value.field == name


@pytest.mark.parametrize("mode, token", [(0o644, TOKEN), (0o600, "short")])
def test_a_token_that_others_can_read_or_guess_is_refused(tmp_path: Path, mode: int, token: str):
    told = environment(tmp_path)
    path = Path(told[TOKEN_FILE])
    path.write_text(token)
    path.chmod(mode)
    with pytest.raises(InvalidField) as caught:
        settings_from(told)
    assert token not in str(caught.value)


# -- the plugin's entry point -----------------------------------------------------------------------------


def test_an_installed_lorafsm_needs_no_folder_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The launcher's own mark does not go on to another engine either: it would run that one unguarded."""
    told = {"PYTHONPATH": "/theirs", LAUNCHER: "7"}
    where = {"store": tmp_path / "store", "host": tmp_path / "host", "token_file": write_token(tmp_path / "t", TOKEN)}
    monkeypatch.setattr(settings, "entry_points", lambda **asked: [asked])
    environment = guard_environment(told, "E0", "e1", **where)
    assert environment["PYTHONPATH"] == "/theirs"
    assert LAUNCHER not in environment
    monkeypatch.setattr(settings, "entry_points", lambda **asked: [])
    assert guard_environment(told, "E0", "e1", **where)["PYTHONPATH"] == f"{settings.ENGINE_PATH}{os.pathsep}/theirs"


def test_the_folder_for_the_path_brings_the_installed_entry_point():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    [[name, value]] = project["project"]["entry-points"][settings.PLUGINS].items()
    [listed] = settings.ENGINE_PATH.glob("*.dist-info/entry_points.txt")
    folder = ConfigParser()
    folder.read_string(listed.read_text())
    assert name == settings.PLUGIN
    assert dict(folder[settings.PLUGINS]) == {name: value}


def test_a_plugin_that_was_told_nothing_does_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(ENGINE, raising=False)
    before = dict(os.environ)
    activate()
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    "more, said",
    [({ENGINE: ""}, ENGINE), ({EPOCH: "a-b"}, EPOCH), ({"SGLANG_PLUGINS": "theirs, other"}, "SGLANG_PLUGINS")],
)
def test_the_guarded_server_does_not_start_without_its_guard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, str], said: str
):
    for name, value in environment(tmp_path, **more).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as caught:
        serve.main()
    assert said in str(caught.value)


# -- configuration and versions ---------------------------------------------------------------------------


def test_the_supported_configuration_has_no_fault():
    assert faults_in(GOOD, capacity=2, unmanaged=False) == ()
    assert agent_slots(GOOD, unmanaged=False) == 2


@pytest.mark.parametrize(
    "name, value",
    [
        ("enable_lora", False),
        ("lora_strict_loading", False),
        ("enable_lora_overlap_loading", True),
        ("disable_radix_cache", True),
        ("disable_overlap_schedule", False),
        ("tokenizer_worker_num", 2),
        ("tp_size", 2),
        ("pp_size", 2),
        ("dp_size", 2),
        ("nnodes", 2),
        ("speculative_algorithm", "EAGLE"),
        ("disaggregation_mode", "prefill"),
        ("disaggregation_mode", "decode"),
        ("rust_server", True),
        ("max_loras_per_batch", 2),
        ("max_loras_per_batch", None),
        ("max_loaded_loras", 2),
        ("lora_paths", [NAME]),
        ("lora_paths", ["visitor"]),
    ],
)
def test_each_unsupported_setting_is_refused_by_its_name(name: str, value: object):
    """M23, one by one."""
    faults = faults_in({**GOOD, name: value}, capacity=2, unmanaged=False)
    assert len(faults) == 1
    assert faults[0].startswith(name)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_that_is_not_told_is_a_fault(name: str):
    assert faults_in({k: v for k, v in GOOD.items() if k != name}, capacity=2, unmanaged=False) == (
        f"{name} is not known",
    )


def test_unmanaged_adapters_need_a_slot_of_their_own():
    wider = {**GOOD, "max_loras_per_batch": 4, "max_loaded_loras": 4, "lora_paths": ["visitor"]}
    assert faults_in(wider, capacity=2, unmanaged=True) == ()
    assert len(faults_in(GOOD, capacity=2, unmanaged=True)) == 2
    assert agent_slots(wider, unmanaged=True) == 2


class Manager:
    """A class that has one method the table wants."""

    async def load(self, name: str) -> None: ...

    def renamed(self) -> None: ...


@pytest.mark.parametrize(
    "wanted, said",
    [
        (Hooked("async", ("self", "name")), None),
        (Hooked("sync", ("self", "name")), "Manager.load is"),
        (Hooked("async", ("self", "lora_name")), "Manager.load is"),
    ],
)
def test_the_self_test_sees_what_changed(monkeypatch: pytest.MonkeyPatch, wanted: Hooked, said: str | None):
    monkeypatch.setitem(SUPPORTED, "1.0", Supported({"Manager": {"load": wanted}}))
    faults = self_test("1.0", {"Manager": Manager})
    assert [fault.startswith(said) for fault in faults] == [True] if said else faults == ()


def test_the_self_test_sees_what_is_gone_and_versions_it_does_not_know():
    assert self_test("0.5.24", {})[0].startswith("SGLang 0.5.24 is not in the table")
    assert "TokenizerManager.init_lora is not there" in self_test("0.5.23", {"TokenizerManager": Manager})


# -- attestation ------------------------------------------------------------------------------------------

PROOF: dict[str, Any] = {
    "guard_version": GUARD_VERSION,
    "sglang_version": "0.5.23",
    "active": True,
    "faults": [],
    "self_test": [],
    "engine": "E0",
    "epoch": "e1",
    "incarnation": 7,
    "base_fingerprint": "b" * 64,
    "capacity": 2,
    "unmanaged": False,
    "configuration": GOOD,
}


def test_a_complete_proof_is_taken():
    assert judge(PROOF).engine == "E0"


@pytest.mark.parametrize(
    "name, value",
    [
        ("guard_version", "0"),
        ("sglang_version", "0.5.24"),
        ("self_test", ["TokenizerManager.x is not there"]),
        ("active", False),
        ("active", "yes"),
        ("engine", None),
        ("incarnation", -1),
        ("base_fingerprint", ""),
        ("configuration", None),
        ("configuration", {**GOOD, "tp_size": 2}),
        ("configuration", {**GOOD, "speculative_algorithm": "EAGLE"}),
    ],
)
def test_a_proof_with_a_hole_is_none(name: str, value: object):
    with pytest.raises(AttestationError) as caught:
        judge({**PROOF, name: value})
    assert (caught.value.code, caught.value.field) == ("ENGINE_UNGUARDED", name)


@pytest.mark.parametrize("name", PROOF)
def test_a_proof_that_lacks_a_field_is_none(name: str):
    with pytest.raises(AttestationError):
        judge({k: v for k, v in PROOF.items() if k != name})


# -- wire -------------------------------------------------------------------------------------------------

ALL_ORDERS = [
    Begin(**WHO, **WHAT, number=1, plan=store_plan()),
    ArmBucket(**WHO, number=1, bucket=0),
    ReceiveBucket(**WHO, number=1, bucket=0),
    End(**WHO, **WHAT, number=1),
    AskStatus(**WHO, number=1),
    Cleanup(**WHO, **WHAT, number=1),
    Load(**WHO, **WHAT, number=2),
    Unload(**WHO, **WHAT, reclaim_id="r1"),
    UnloadStray(**WHO, operation_key="k", lora_name=NAME, number=0),
    TakeInventory(**WHO),
    Settle(rid="r", key=KEY),
]

ALL_ANSWERS: list[Any] = [
    an.Refused(code=an.AgentCode.VERSION_CLOSED, reason="gone", field="key", number=3, repair=True),
    an.Refused(code=Code.STALE_ATTEMPT, reason="over"),
    an.Prepared(number=1),
    an.Armed(number=1, bucket=0),
    an.BucketDone(number=1, bucket=0),
    an.Ready(number=1, repair=False, key=KEY, digest=DIGEST, base_fingerprint="b"),
    an.Failed(number=1, repair=True, reason="no"),
    an.Cleaned(number=1),
    an.Unloaded(reclaim_id="r", key=KEY),
    an.StrayGone(operation_key="k", lora_name=NAME),
    an.Pending(waits_for="it"),
    an.Unknown(reason="?", number=2),
    an.Unseen(number=1),
    an.Inventory(base_fingerprint="b", residents=frozenset({Resident(KEY, DIGEST, 1)}), foreign=frozenset({"x", "y"})),
    an.Acquired(rid="r", lora_name=NAME),
    an.Released(rid="r", released=True),
    an.Settled(rid="r", verdict=an.Verdict.ABSENT),
    an.Noted(),
]


@pytest.mark.parametrize("order", ALL_ORDERS, ids=lambda order: type(order).__name__)
def test_orders_cross_the_wire(order: Any):
    assert read_order(json.loads(json.dumps(write_order(order)))) == order


def test_the_examples_are_all_there_are():
    assert {type(answer) for answer in ALL_ANSWERS} == set(get_args(an.Answer))
    assert {type(order) for order in ALL_ORDERS} == {*ORDERS, Settle}


@pytest.mark.parametrize("answer", ALL_ANSWERS, ids=lambda answer: type(answer).__name__)
def test_answers_cross_the_wire(answer: Any):
    told = evolve(answer, incarnation=7, seq=12)
    assert read_answer(json.loads(json.dumps(write_answer(told)))) == told


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(ALL_ORDERS), st.data())
def test_an_order_with_anything_else_in_it_is_refused_or_read(order: Any, data: st.DataObject):
    """Nothing but InvalidField comes out, whatever a field is replaced by."""
    written = write_order(order)
    [(name, body)] = written.items()
    field = data.draw(st.sampled_from(sorted(body) or ["none"]))
    put = data.draw(JSON)
    try:
        read = read_order({name: {**body, field: put}})
    except InvalidField:
        return
    assert type(getattr(read, field)) is type(put) or isinstance(put, dict)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'"x"', b"{" * 5000, b'{"a": "' + b"x" * LARGEST_ORDER + b'"}'])
def test_a_body_that_is_no_small_object_is_refused(raw: bytes):
    with pytest.raises(InvalidField):
        read_json(raw)


@pytest.mark.parametrize("body", [{"Refused": {}}, {"Refused": {"code": "NEW"}}, {"Shrug": {}}, {}, 3])
def test_an_answer_of_another_protocol_is_refused(body: Any):
    with pytest.raises(InvalidField):
        read_answer(body)


# -- Relax's words ----------------------------------------------------------------------------------------

CALL: dict[str, Any] = {"protocol_version": 2, "version_id": 3, "digest": DIGEST, "attempt_id": 1}


@pytest.mark.parametrize(
    "more, orders",
    [
        ({"op": "begin", "num_buckets": 0}, [Begin(**WHO, **WHAT, number=1, plan=store_plan())]),
        (
            {"op": "begin", "num_buckets": 2, "plan_digest": "d" * 64},
            [Begin(**WHO, **WHAT, number=1, plan=Plan(2, "d" * 64))],
        ),
        (
            {"op": "bucket", "bucket": 1},
            [ArmBucket(**WHO, number=1, bucket=1), ReceiveBucket(**WHO, number=1, bucket=1)],
        ),
        ({"op": "end", "lora_name": NAME}, [End(**WHO, **WHAT, number=1)]),
        ({"op": "status"}, [AskStatus(**WHO, number=1)]),
        ({"op": "cleanup"}, [Cleanup(**WHO, **WHAT, number=1)]),
        ({"op": "unload", "reclaim_id": "r1"}, [Unload(**WHO, **WHAT, reclaim_id="r1")]),
        ({"op": "unload"}, [Unload(**WHO, **WHAT, reclaim_id="unload-e1-3")]),
        ({"op": "status", "engine_incarnation": 6}, [AskStatus(**{**WHO, "incarnation": 6}, number=1)]),
    ],
)
def test_relaxs_calls_are_orders(more: dict[str, Any], orders: list[Any]):
    assert list(relax_wire.read_call({**CALL, **more}, "E0", "e1", 7)) == orders


@pytest.mark.parametrize(
    "change, field",
    [
        ({"protocol_version": 1}, "protocol_version"),
        ({"op": "pause"}, "op"),
        ({"op": "end", "digest": "x"}, "digest"),
        ({"op": "end", "attempt_id": True}, "attempt_id"),
        ({"op": "end", "lora_name": "other"}, "lora_name"),
        ({"op": "end", "lora_id": "i"}, "lora_id"),
        ({"op": "begin", "num_buckets": 1}, "plan_digest"),
        ({"op": "begin"}, "num_buckets"),
        ({"op": "bucket"}, "bucket"),
        ({"op": "unload", "reclaim_id": "-"}, "reclaim_id"),
    ],
)
def test_a_malformed_call_of_relax_names_its_field(change: dict[str, Any], field: str):
    with pytest.raises(InvalidField) as caught:
        relax_wire.read_call({**CALL, **change}, "E0", "e1", 7)
    assert caught.value.field == field


@pytest.mark.parametrize("answer", ALL_ANSWERS, ids=lambda answer: type(answer).__name__)
def test_relax_can_tell_done_from_refused_from_unknown(answer: Any):
    status, receipt = relax_wire.write_receipt(evolve(answer, incarnation=7), CALL, "e1")
    assert receipt["success"] is (status == 200)
    assert (receipt["lora_name"], receipt["version_id"], receipt["attempt_id"]) == (NAME, 3, 1)
    assert (receipt["engine_incarnation"], receipt["digest"]) == (7, DIGEST)
    if isinstance(answer, an.Pending | an.Unknown):
        assert status == 503
    elif isinstance(answer, an.Refused | an.Failed):
        assert 400 <= status < 500
    elif isinstance(answer, an.Ready):
        assert receipt["state"] == "READY_LOCAL"


# -- admission --------------------------------------------------------------------------------------------


def request(**fields: Any) -> Any:
    return SimpleNamespace(**{"lora_path": NAME, "lora_id": None, "extra_key": None, "sampling_params": {}, **fields})


@pytest.mark.parametrize(
    "fields, code",
    [
        ({"extra_key": "x"}, "EXTRA_KEY"),
        ({"extra_key": ["", "x"], "lora_path": [NAME, None]}, "EXTRA_KEY"),
        ({"sampling_params": {"n": 2}}, "SEVERAL_SAMPLES"),
        ({"sampling_params": [{"n": 1}, {"n": 3}], "lora_path": [NAME, NAME]}, "SEVERAL_SAMPLES"),
        ({"sampling_params": {"beam_width": 2}}, "SEVERAL_SAMPLES"),
        ({"lora_path": [NAME, "visitor"]}, "UNMANAGED_REFUSED"),
        ({"lora_path": "visitor"}, "UNMANAGED_REFUSED"),
        ({"lora_path": None, "extra_key": f"x{'i' * 32}"}, "EXTRA_KEY"),
    ],
)
def test_a_request_that_could_cross_versions_is_refused(fields: dict[str, Any], code: str):
    with pytest.raises(RequestRefused) as caught:
        Screen(False, {"i" * 32}).check(request(**fields))
    assert caught.value.code == code
    assert str(caught.value).startswith(f"{code}: ")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"lora_path": [NAME, None]},
        {"lora_path": None, "extra_key": "mine", "sampling_params": {"n": 4}},
        {"sampling_params": None},
        {"extra_key": ""},
    ],
)
def test_an_ordinary_request_passes_and_its_lora_id_is_stripped(fields: dict[str, Any]):
    seen = request(**fields, lora_id="i" * 32)
    Screen(False, {"i" * 32}).check(seen)
    assert seen.lora_id is None


@given(st.lists(st.tuples(st.booleans(), st.text("ab", min_size=1, max_size=5)), max_size=40))
def test_no_rid_in_flight_begins_with_another(steps: list[tuple[bool, str]]):
    """Against a plain set: refused exactly where one in flight is a prefix of the other."""
    rids, naive = Rids(), set[str]()
    for add, rid in steps:
        if not add:
            rids.discard(rid)
            naive.discard(rid)
            continue
        clash = any(rid.startswith(other) or other.startswith(rid) for other in naive)
        try:
            rids.add(rid)
        except RequestRefused:
            assert clash
        else:
            assert not clash
            naive.add(rid)


# -- stash ------------------------------------------------------------------------------------------------


def buckets_in(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*.safetensors")]


async def test_a_stash_takes_only_what_is_posted(tmp_path: Path):
    stash = Stash(tmp_path, "E0")
    with pytest.raises(StashError):
        await stash.deliver(1, 0, b"x")
    posted = asyncio.create_task(stash.receive(1, 0))
    await asyncio.sleep(0)
    with pytest.raises(StashError):
        await stash.deliver(1, 1, b"x")
    await stash.deliver(1, 0, b"x")
    assert await posted is None
    assert buckets_in(tmp_path) == ["0.safetensors"]
    stash.drop(1)
    assert buckets_in(tmp_path) == []


async def test_a_receive_ends_by_its_deadline_or_an_abort(tmp_path: Path):
    late = await Stash(tmp_path, "E0", deadline_s=0.01).receive(1, 0)
    assert late is not None
    assert "did not come" in late
    stash = Stash(tmp_path, "E0")
    posted = asyncio.create_task(stash.receive(2, 0))
    await asyncio.sleep(0)
    stash.abort(2)
    assert "aborted" in (await posted or "")


def test_what_dead_processes_left_is_removed(tmp_path: Path):
    dead = tmp_path / "lorafsm-stash-E0-4194305"
    dead.mkdir()
    other = tmp_path / "lorafsm-stash-E1-4194305"
    other.mkdir()
    Stash(tmp_path, "E0")
    assert (dead.exists(), other.exists()) == (False, True)


@pytest.mark.parametrize("fault", ["no safetensors", "no config", "twice", "another digest", None])
async def test_buckets_are_an_adapter_only_with_its_digest(tmp_path: Path, fault: str | None):
    pytest.importorskip("torch", reason="not installed: torch (`make test` installs it)")
    from safetensors.torch import save

    from lorafsm_sglang.tiny_model import lora_fixture
    from lorafsm_torch import freeze_snapshot

    snapshot = freeze_snapshot(*reversed(lora_fixture("A")))
    names = list(snapshot.tensors)
    config = None if fault == "no config" else {"config": snapshot.manifest.config_json}
    first = save({name: snapshot.tensors[name] for name in names[:5]}, config)
    second = save({name: snapshot.tensors[name] for name in names[4 if fault == "twice" else 5 :]})
    stash = Stash(tmp_path, "E0")
    for bucket, data in enumerate((first, b"no" if fault == "no safetensors" else second)):
        posted = asyncio.create_task(stash.receive(1, bucket))
        await asyncio.sleep(0)
        await stash.deliver(1, bucket, data)
        assert await posted is None
    if fault is None:
        folder = stash.assemble(1, snapshot.digest)
        assert sorted(path.name for path in folder.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    else:
        with pytest.raises(StashError):
            stash.assemble(1, "f" * 64 if fault == "another digest" else snapshot.digest)


# -- client -----------------------------------------------------------------------------------------------


def engine(answer: Callable[[httpx.Request], httpx.Response], **more: Any) -> GuardedEngine:
    transport = httpx.MockTransport(answer)
    return GuardedEngine("E0", 7, "http://engine", TOKEN, lambda: 5, transport=transport, **more)


def says(answer: Any, quarantine: tuple[str, ...] = ()) -> httpx.Response:
    return httpx.Response(200, json={"answer": write_answer(answer), "quarantine": list(quarantine)})


async def test_a_pending_order_is_given_again_until_it_is_done():
    answers = [an.Pending(waits_for="it"), an.Pending(waits_for="it"), an.Cleaned(number=1, incarnation=7, seq=4)]
    seen = []

    def answer(asked: httpx.Request) -> httpx.Response:
        assert asked.headers["x-lorafsm-token"] == TOKEN
        seen.append(json.loads(asked.content))
        return says(answers[len(seen) - 1])

    order = Cleanup(**WHO, **WHAT, number=1)
    assert await engine(answer).carry_out(order) == ev.Cleaned(number=1, engine="E0", incarnation=7, seq=4, now=5)
    assert [set(each) for each in seen] == [{"Cleanup", "wait_s"}] * 3


@pytest.mark.parametrize(
    "order, event",
    [
        (Begin(**WHO, **WHAT, number=1, plan=store_plan()), ev.TargetUnknown),
        (End(**WHO, **WHAT, number=1), ev.TargetUnknown),
        (Cleanup(**WHO, **WHAT, number=1), ev.TargetUnknown),
        (Unload(**WHO, **WHAT, reclaim_id="r1"), ev.ReclaimUnknown),
        (Load(**WHO, **WHAT, number=1), None),
        (TakeInventory(**WHO), None),
    ],
)
@pytest.mark.parametrize("how", ["lost", "500", "401", "no json", "another protocol", "pending"])
async def test_an_answer_that_does_not_come_is_unknown(order: Any, event: type | None, how: str):
    def answer(asked: httpx.Request) -> httpx.Response:
        match how:
            case "lost":
                raise httpx.ReadError("lost")
            case "500" | "401":
                return httpx.Response(int(how))
            case "no json":
                return httpx.Response(200, content=b"<html>")
            case "another protocol":
                return httpx.Response(200, json={"answer": {"Shrug": {}}})
            case _:
                return says(an.Pending(waits_for="it"))

    seen = await engine(answer, deadline_s=0.1).carry_out(order)
    assert type(seen) is (event or type(None))


async def test_a_broken_promise_is_told():
    unknown = an.Unknown(reason="count is -1", reclaim_id="r1", incarnation=7)
    told = await engine(lambda _: says(unknown, ("count is -1",))).carry_out(Unload(**WHO, **WHAT, reclaim_id="r1"))
    assert told == ev.Quarantine(engine="E0", incarnation=7, reason="count is -1", now=5)


async def test_another_process_order_is_not_sent():
    def answer(asked: httpx.Request) -> httpx.Response:
        raise AssertionError("sent")

    assert await engine(answer).carry_out(TakeInventory(**{**WHO, "incarnation": 8})) is None
    assert await engine(answer).carry_out(TakeInventory(**{**WHO, "engine": "E1"})) is None


@pytest.mark.parametrize("change", [{"engine": "E1"}, {"incarnation": 8}, {"active": False}])
async def test_an_attestation_of_somebody_else_is_none(change: dict[str, Any]):
    with pytest.raises(AttestationError):
        await engine(lambda _: httpx.Response(200, json={**PROOF, **change})).attest()


def test_the_token_is_in_no_text_about_the_client():
    assert TOKEN not in repr(engine(lambda _: httpx.Response(200)))

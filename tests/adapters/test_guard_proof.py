"""What makes a publisher trust an engine: settings, supported configurations and versions, the attestation."""

from __future__ import annotations

import os
import tomllib
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest

from lorafsm.errors import InvalidField
from lorafsm.identity import VersionKey, lora_name
from lorafsm_sglang import serve
from lorafsm_sglang.guard import (
    AttestationError,
    guard_environment,
    settings,
    settings_from,
    write_token,
)
from lorafsm_sglang.guard.attestation import judge
from lorafsm_sglang.guard.configuration import SETTINGS, agent_slots, faults_in
from lorafsm_sglang.guard.fingerprint import after_base_change, base_fingerprint
from lorafsm_sglang.guard.plugin import activate
from lorafsm_sglang.guard.settings import CAPACITY, ENGINE, EPOCH, HOST, LAUNCHER, STORE, TOKEN_FILE
from lorafsm_sglang.guard.versions import GUARD_VERSION, SUPPORTED, Hooked, Supported, self_test

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


# -- the base ---------------------------------------------------------------------------------------------


def base(folder: Path) -> Path:
    folder.mkdir()
    for name, data in (("model.safetensors", b"weights"), ("tokenizer.json", b"{}"), ("config.json", b"{1}")):
        (folder / name).write_bytes(data)
    return folder


def test_equal_bases_have_equal_fingerprints_wherever_they_lie(tmp_path: Path):
    assert base_fingerprint(base(tmp_path / "here")) == base_fingerprint(base(tmp_path / "there"))


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_weights_tokenizer_and_config_are_in_the_fingerprint(tmp_path: Path, name: str):
    folder = base(tmp_path / "base")
    before = base_fingerprint(folder)
    file = folder / name
    data = file.read_bytes()
    file.write_bytes(data[:-1] + b"x")
    changed = base_fingerprint(folder)
    file.unlink()
    gone = base_fingerprint(folder)
    (folder / f"{name}.x").write_bytes(data)
    assert len({before, changed, gone, base_fingerprint(folder)}) == 4


def test_a_base_that_was_replaced_at_run_time_has_another_fingerprint():
    once = after_base_change("b" * 64, "disk", "v2")
    assert once == after_base_change("b" * 64, "disk", "v2")
    others = (after_base_change("b" * 64, "tensor", "v2"), after_base_change("b" * 64, "disk", None))
    assert len({"b" * 64, once, *others, after_base_change(once, "disk", "v2")}) == 5

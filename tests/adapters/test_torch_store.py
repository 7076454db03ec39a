"""The artifact store: one immutable folder per version, checked on every read."""

import json
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given

from lorafsm.errors import InvalidField
from lorafsm.identity import VersionKey, lora_name

torch = pytest.importorskip("torch", reason="torch is missing: pip install 'lorafsm[torch]'")

from safetensors.torch import load_file, save_file  # noqa: E402

from lorafsm_torch import ArtifactError, ArtifactStore, check_adapter_folder, freeze_snapshot  # noqa: E402
from lorafsm_torch import store as store_module  # noqa: E402
from tests.adapters.test_torch_freeze import adapters, bytes_of  # noqa: E402

KEY = VersionKey("e1", 7)
CONFIG = {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
A = "base_model.model.q_proj.lora_A.weight"
B = "base_model.model.q_proj.lora_B.weight"
WEIGHTS = "adapter_model.safetensors"
FILES = {WEIGHTS, "adapter_config.json", "manifest.json"}


def snapshot_of(value: float = 1.0, **config):
    tensors = {A: torch.full((2, 8), value), B: torch.full((8, 2), -value, dtype=torch.bfloat16)}
    return freeze_snapshot(CONFIG | config, tensors)


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "store")


def refusal_of(call, *arguments) -> ArtifactError:
    with pytest.raises(ArtifactError) as refusal:
        call(*arguments)
    assert refusal.value.message
    return refusal.value


def test_a_version_is_a_folder_that_an_engine_loads(store: ArtifactStore):
    snapshot = snapshot_of()
    folder = store.put(KEY, snapshot)
    assert folder == store.root / lora_name(KEY, snapshot.digest) == store.path(folder.name)
    assert {path.name for path in folder.iterdir()} == FILES
    assert json.loads((folder / "adapter_config.json").read_text()) == CONFIG
    assert {n: bytes_of(t) for n, t in load_file(folder / WEIGHTS).items()} == {
        n: bytes_of(t) for n, t in snapshot.tensors.items()
    }
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1, "an engine of another user cannot read all"
    assert [path.name for path in store.root.iterdir()] == [folder.name]
    assert store.names() == (folder.name,)
    assert check_adapter_folder(folder, ignored={"manifest.json"}).digest == snapshot.digest


@given(adapters())
def test_any_adapter_comes_back(tmp_path_factory: pytest.TempPathFactory, adapter):
    store = ArtifactStore(tmp_path_factory.mktemp("any"))
    snapshot = freeze_snapshot(*adapter)
    folder = store.put(KEY, snapshot)
    again = store.get(KEY, snapshot.digest)
    assert again == snapshot
    assert {n: bytes_of(t) for n, t in again.tensors.items()} == {n: bytes_of(t) for n, t in snapshot.tensors.items()}
    assert store.verify(folder.name, snapshot.digest) == snapshot.manifest
    assert store.delete(folder.name)
    assert list(store.root.iterdir()) == []


def test_what_is_read_outlives_the_folder(store: ArtifactStore):
    folder = store.put(KEY, snapshot_of())
    again = store.get(KEY, snapshot_of().digest)
    with (folder / WEIGHTS).open("r+b") as file:
        file.seek(-32, os.SEEK_END)
        file.write(bytes(32))
    again.verify()
    assert len({t.untyped_storage().data_ptr() for t in again.tensors.values()}) == 2


def test_the_same_contents_again_change_nothing(store: ArtifactStore):
    folder = store.put(KEY, snapshot_of())
    before = {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.iterdir()}
    assert store.put(KEY, snapshot_of()) == folder
    assert {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.iterdir()} == before


def test_other_contents_are_a_conflict(store: ArtifactStore):
    folder = store.put(KEY, snapshot_of())
    for other in (snapshot_of(2.0), snapshot_of(lora_alpha=8)):
        refusal = refusal_of(store.put, KEY, other)
        assert (refusal.code, refusal.field) == ("VERSION_CONFLICT", "digest")
    assert [path.name for path in store.root.iterdir()] == [folder.name]
    store.verify(folder.name, snapshot_of().digest)
    assert store.put(VersionKey("e1", 70), snapshot_of(2.0)) != folder, "7 and 70 are two versions"
    assert store.put(VersionKey("e", 17), snapshot_of()) != folder


def test_other_contents_of_the_same_name_are_a_conflict(store: ArtifactStore, tmp_path: Path):
    """The name holds 48 bits of the digest; the full digest decides."""
    wanted, other = snapshot_of(), snapshot_of(2.0)
    name = lora_name(KEY, wanted.digest)
    other_store = ArtifactStore(tmp_path / "other")
    other_name = other_store.put(KEY, other).name
    shutil.copytree(other_store.path(other_name), store.path(name))
    manifest = store.path(name) / "manifest.json"
    manifest.write_text(manifest.read_text().replace(other_name, name))
    store.verify(name, other.digest)
    assert refusal_of(store.put, KEY, wanted).code == "VERSION_CONFLICT"
    assert refusal_of(store.get, KEY, wanted.digest).field == "manifest.json"


def test_a_changed_snapshot_is_not_stored(store: ArtifactStore):
    snapshot = snapshot_of()
    snapshot.tensors[B][0, 0] = 5
    refusal = refusal_of(store.put, KEY, snapshot)
    assert (refusal.code, refusal.field) == ("SNAPSHOT_CHANGED", B)
    assert list(store.root.iterdir()) == []


def test_a_snapshot_that_changes_while_it_is_written_is_not_stored(store: ArtifactStore, monkeypatch):
    def late(tensors, path, metadata):
        tensors[A][0, 0] = 9
        save_file(tensors, path, metadata)

    monkeypatch.setattr(store_module, "save_file", late)
    refusal = refusal_of(store.put, KEY, snapshot_of())
    assert (refusal.code, refusal.field) == ("ARTIFACT_INVALID", A)
    assert list(store.root.iterdir()) == []


def rewrite(folder: Path, change) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})


def edit(folder: Path, name: str, old: str, new: str) -> None:
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new, 1))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "missing tensor": (lambda f: rewrite(f, lambda t: t.pop(B)), B),
    "foreign tensor": (lambda f: rewrite(f, lambda t: t.update(x=torch.ones(1))), "x"),
    "wrong shape": (lambda f: rewrite(f, lambda t: t.update({A: t[A].reshape(8, 2)})), A),
    "wrong dtype": (lambda f: rewrite(f, lambda t: t.update({B: t[B].view(torch.float16)})), B),
    "dtype not served": (lambda f: rewrite(f, lambda t: t.update({B: t[B].double()})), B),
    "other bytes": (lambda f: flip(f / WEIGHTS, -1), B),
    "other metadata": (lambda f: save_file(load_file(f / WEIGHTS), f / WEIGHTS), WEIGHTS),
    "truncated": (lambda f: os.truncate(f / WEIGHTS, (f / WEIGHTS).stat().st_size - 1), WEIGHTS),
    "header alone": (lambda f: os.truncate(f / WEIGHTS, 40), WEIGHTS),
    "empty": (lambda f: os.truncate(f / WEIGHTS, 0), WEIGHTS),
    "padded": (lambda f: os.truncate(f / WEIGHTS, (f / WEIGHTS).stat().st_size + 1), WEIGHTS),
    "huge header": (lambda f: (f / WEIGHTS).write_bytes(b"\xff" * 16), WEIGHTS),
    "foreign file": (lambda f: (f / "code.py").touch(), "code.py"),
    "foreign folder": (lambda f: (f / "deep").mkdir(), "deep"),
    "weights are a link": (lambda f: ((f / WEIGHTS).rename(f.parent / "w"), (f / WEIGHTS).symlink_to("../w")), WEIGHTS),
    "weights are a pipe": (lambda f: ((f / WEIGHTS).unlink(), os.mkfifo(f / WEIGHTS)), WEIGHTS),
    "no weights": (lambda f: (f / WEIGHTS).unlink(), WEIGHTS),
    "no manifest": (lambda f: (f / "manifest.json").unlink(), "manifest.json"),
    "no config": (lambda f: (f / "adapter_config.json").unlink(), "adapter_config.json"),
    "other config": (lambda f: edit(f, "adapter_config.json", '"r":2', '"r":3'), "adapter_config.json"),
    "other config in manifest": (lambda f: edit(f, "manifest.json", '"r":2', '"r":3'), "manifest.json"),
    "manifest not canonical": (lambda f: edit(f, "manifest.json", ",", ", "), "manifest.json"),
    "manifest of another name": (lambda f: edit(f, "manifest.json", "@e1-7-", "@e1-8-"), "manifest.json"),
    "manifest not JSON": (lambda f: (f / "manifest.json").write_bytes(b"\xff{"), "manifest.json"),
    "manifest not an object": (lambda f: (f / "manifest.json").write_text("[]"), "manifest.json"),
    "manifest of nothing": (lambda f: (f / "manifest.json").write_text("{}"), "manifest.json"),
    "manifest too deep": (lambda f: (f / "manifest.json").write_text('{"a":' + "[" * 10**5), "manifest.json"),
    "manifest's shape": (
        lambda f: edit(f, "manifest.json", '"shape":[2,8]', '"shape":[2,"8"]'),
        f"manifest.json: tensors[{A!r}].shape",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_refused_and_named(store: ArtifactStore, damage: str):
    snapshot = snapshot_of()
    folder = store.put(KEY, snapshot)
    do, field = DAMAGE[damage]
    do(folder)
    for call in (
        lambda: store.verify(folder.name, snapshot.digest),
        lambda: store.get(KEY, snapshot.digest),
    ):
        refusal = refusal_of(call)
        assert (refusal.code, refusal.field) == ("ARTIFACT_INVALID", field)
    assert refusal_of(store.put, KEY, snapshot).code in {"ARTIFACT_INVALID", "VERSION_CONFLICT"}
    assert store.delete(folder.name), "what is damaged can be removed"
    assert store.get(KEY, store.put(KEY, snapshot).name and snapshot.digest) == snapshot


def test_a_missing_version_is_said_to_be_missing(store: ArtifactStore):
    digest = snapshot_of().digest
    assert refusal_of(store.get, KEY, digest).code == "ARTIFACT_MISSING"
    assert refusal_of(store.verify, lora_name(KEY, digest), digest).code == "ARTIFACT_MISSING"
    assert store.delete(lora_name(KEY, digest)) is False


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "/etc",
        "relax_policy_lora@e1-7-0123456789ab/..",
        "relax_policy_lora@../e1-7-0123456789ab",
        "relax_policy_lora@e1-7-0123456789AB",
        "relax_policy_lora@e1-7-0123456789ab\n",
        "relax_policy_lora@e1-07-0123456789ab",
        "relax_policy_lora@e1-7-0123456789ab\0",
        b"relax_policy_lora@e1-7-0123456789ab",
        None,
    ],
)
def test_a_name_that_is_none_reaches_no_path(store: ArtifactStore, name):
    for call in (store.path, store.delete, lambda name: store.verify(name, "0" * 64)):
        with pytest.raises(InvalidField) as refusal:
            call(name)
        assert refusal.value.field == "lora_name"


@pytest.mark.parametrize(
    "key, digest, field",
    [
        (VersionKey("../e", 1), "0" * 64, "epoch"),
        (VersionKey("e", -1), "0" * 64, "version_id"),
        (VersionKey("e", 1), "F" * 64, "digest"),
        (VersionKey("e", 1), "0" * 63, "digest"),
    ],
)
def test_a_bad_key_is_named(store: ArtifactStore, key: VersionKey, digest: str, field: str):
    with pytest.raises(InvalidField) as refusal:
        store.get(key, digest)
    assert refusal.value.field == field
    if field == "digest":
        with pytest.raises(InvalidField) as refusal:
            store.verify(lora_name(key, "0" * 64), digest)
        assert refusal.value.field == "digest"


def test_a_link_in_a_versions_place_is_not_followed(store: ArtifactStore, tmp_path: Path):
    elsewhere = ArtifactStore(tmp_path / "elsewhere")
    snapshot = snapshot_of()
    folder = elsewhere.put(KEY, snapshot)
    store.path(folder.name).symlink_to(folder)
    for call in (
        lambda: store.get(KEY, snapshot.digest),
        lambda: store.put(KEY, snapshot),
        lambda: store.delete(folder.name),
    ):
        refusal = refusal_of(call)
        assert (refusal.code, refusal.field) == ("ARTIFACT_INVALID", folder.name)
    elsewhere.verify(folder.name, snapshot.digest)


def test_opening_removes_the_leavings_of_the_dead_and_nothing_else(tmp_path: Path):
    store = ArtifactStore(tmp_path)
    folder = store.put(KEY, snapshot_of())
    dead = tmp_path / f".incoming-{'0' * 32}"
    dead.mkdir()
    (dead / WEIGHTS).write_bytes(b"half")
    link = tmp_path / f".incoming-{'1' * 32}"
    link.symlink_to(folder)
    kept = {folder, link}
    for name in (".incoming-short", f"x.incoming-{'0' * 32}", ".hidden", f".incoming-{'A' * 32}", "notes"):
        (tmp_path / name).mkdir()
        kept.add(tmp_path / name)
    file = tmp_path / f".incoming-{'2' * 32}"
    file.touch()
    ArtifactStore(tmp_path)
    assert set(tmp_path.iterdir()) == kept | {file}
    store.verify(folder.name, snapshot_of().digest)


def test_opening_leaves_a_living_writer_alone(tmp_path: Path, monkeypatch):
    writing, go_on = threading.Event(), threading.Event()

    def slow(tensors, path, metadata):
        save_file(tensors, path, metadata)
        writing.set()
        assert go_on.wait(60)

    monkeypatch.setattr(store_module, "save_file", slow)
    with ThreadPoolExecutor(1) as pool:
        put = pool.submit(ArtifactStore(tmp_path).put, KEY, snapshot_of())
        try:
            assert writing.wait(60)
            ArtifactStore(tmp_path)
            [incoming] = tmp_path.iterdir()
            assert {path.name for path in incoming.iterdir()} == FILES
            assert ArtifactStore(tmp_path).names() == ()
        finally:
            go_on.set()
        assert put.result(60).is_dir()
    ArtifactStore(tmp_path).verify(put.result().name, snapshot_of().digest)


@pytest.mark.parametrize("round_", range(5))
def test_two_puts_of_the_same_contents_agree(tmp_path: Path, round_: int):
    gate = threading.Barrier(4)

    def put():
        store = ArtifactStore(tmp_path)
        gate.wait(60)
        return store.put(KEY, snapshot_of())

    with ThreadPoolExecutor(4) as pool:
        folders = {call.result(60) for call in [pool.submit(put) for _ in range(4)]}
    assert set(tmp_path.iterdir()) == folders
    assert len(folders) == 1


@pytest.mark.parametrize("round_", range(5))
def test_of_two_puts_of_other_contents_one_wins(tmp_path: Path, round_: int):
    gate = threading.Barrier(4)

    def put(value: float):
        snapshot = snapshot_of(value)
        gate.wait(60)
        try:
            return ArtifactStore(tmp_path).put(KEY, snapshot), snapshot.digest
        except ArtifactError as refusal:
            return refusal.code, None

    with ThreadPoolExecutor(4) as pool:
        results = [call.result(60) for call in [pool.submit(put, float(value)) for value in range(4)]]
    [(folder, digest)] = [result for result in results if result[1]]
    assert [result[0] for result in results].count("VERSION_CONFLICT") == 3
    assert list(tmp_path.iterdir()) == [folder]
    ArtifactStore(tmp_path).verify(folder.name, digest)


def test_a_root_that_is_no_folder_is_a_typed_error(tmp_path: Path):
    (tmp_path / "file").touch()
    refusal = refusal_of(ArtifactStore, tmp_path / "file")
    assert (refusal.code, refusal.field) == ("STORE_UNWRITABLE", "root")


@pytest.mark.parametrize("fault", ["fsync", "save_file"])
def test_a_full_disk_is_a_typed_error(store: ArtifactStore, monkeypatch, fault: str):
    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(*((os, "fsync", full) if fault == "fsync" else (store_module, "save_file", full)))
        assert refusal_of(store.put, KEY, snapshot_of()).code == "STORE_UNWRITABLE"
    assert list(store.root.iterdir()) == []
    assert store.put(KEY, snapshot_of()).is_dir()

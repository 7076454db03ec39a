"""Adapter folders from outside: a PEFT adapter is taken, anything else is refused and named."""

import json
import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is missing: pip install 'lorafsm[torch]'")

from safetensors.torch import save_file  # noqa: E402

from lorafsm_sglang.tiny_model import lora_fixture, write_lora  # noqa: E402
from lorafsm_torch import ArtifactError, check_adapter_folder, check_lora, freeze_snapshot  # noqa: E402

Q = "base_model.model.model.layers.0.self_attn.q_proj"
A, B = f"{Q}.lora_A.weight", f"{Q}.lora_B.weight"
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_lora(tmp_path / "adapter", "A")


def refused(folder, *arguments) -> str | None:
    with pytest.raises(ArtifactError) as refusal:
        check_adapter_folder(folder, *arguments)
    assert refusal.value.code == "ARTIFACT_INVALID"
    return refusal.value.field


def with_tensors(folder: Path, **changes) -> None:
    """Write the fixture's tensors again; None drops a factor (A or B of one module), a tensor replaces it."""
    tensors, _ = lora_fixture("A")
    for side, tensor in changes.items():
        name = {"A": A, "B": B}.get(side, side)
        tensors.pop(name, None)
        if tensor is not None:
            tensors[name] = tensor
    save_file(tensors, folder / WEIGHTS)


def with_config(folder: Path, **changes) -> None:
    config = json.loads((folder / CONFIG).read_text()) | changes
    (folder / CONFIG).write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))


def test_a_peft_folder_is_taken(folder: Path):
    (folder / "README.md").write_text("PEFT writes one")
    tensors, config = lora_fixture("A")
    snapshot = check_adapter_folder(folder, {name: tuple(t.shape) for name, t in tensors.items()})
    assert snapshot.digest == freeze_snapshot(config, tensors).digest
    assert snapshot.config == config


def test_a_link_to_the_folder_itself_is_fine(folder: Path, tmp_path: Path):
    (tmp_path / "latest").symlink_to(folder)
    assert check_adapter_folder(tmp_path / "latest").digest == check_adapter_folder(folder).digest


def test_experts_and_embeddings_are_adapters():
    shapes = {
        "m.experts.w.lora_A.weight": (4, 2, 8),
        "m.experts.w.lora_B.weight": (4, 8, 2),
        "m.embed_tokens.lora_embedding_A": (2, 100),
        "m.embed_tokens.lora_embedding_B": (8, 2),
    }
    check_lora({"r": 2, "lora_alpha": 4.0, "target_modules": "all-linear"}, shapes)
    with pytest.raises(ArtifactError, match="rank 2"):
        check_lora({"r": 3, "lora_alpha": 4.0, "target_modules": "all-linear"}, shapes)


@pytest.mark.parametrize(
    "changes, field",
    [
        ({"A": None}, A),
        ({"B": None}, B),
        ({"A": torch.ones(4, 64)}, A),
        ({"B": torch.ones(64, 4)}, B),
        ({"A": torch.ones(64)}, A),
        ({"A": torch.ones(8, 64, dtype=torch.float64)}, A),
        ({"A": torch.ones(8, 0)}, f"{WEIGHTS}: tensors[{A!r}].shape"),
        ({"A": torch.ones(0, 64)}, A),
        ({f"{Q}.weight": torch.ones(1)}, f"{Q}.weight"),
        ({f"{Q}.lora_magnitude_vector": torch.ones(1)}, f"{Q}.lora_magnitude_vector"),
        ({f"{Q}.lora_embedding_A.weight": torch.ones(8, 1)}, f"{Q}.lora_embedding_A.weight"),
    ],
)
def test_wrong_tensors_are_named(folder: Path, changes, field: str):
    with_tensors(folder, **changes)
    assert refused(folder) == field


@pytest.mark.parametrize(
    "changes, entry",
    [
        ({"r": 4}, None),
        ({"r": 0}, "r"),
        ({"r": True}, "r"),
        ({"r": "8"}, "r"),
        ({"r": ...}, "r"),
        ({"lora_alpha": ...}, "lora_alpha"),
        ({"lora_alpha": float("inf")}, "lora_alpha"),
        ({"target_modules": []}, "target_modules"),
        ({"target_modules": [3]}, "target_modules"),
        ({"target_modules": None}, "target_modules"),
        ({"peft_type": "LOHA"}, "peft_type"),
        ({"rank_pattern": {"q_proj": 4}}, "rank_pattern"),
        ({"alpha_pattern": {"q_proj": 4}}, "alpha_pattern"),
        ({"use_rslora": True}, "use_rslora"),
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias"),
        ({"note": float("nan")}, "config.note"),
    ],
)
def test_wrong_config_is_named(folder: Path, changes, entry: str | None):
    with_config(folder, **changes)
    # A rank that no tensor has is the first tensor's fault.
    first = "base_model.model.model.layers.0.mlp.down_proj.lora_A.weight"
    assert refused(folder) == (first if entry is None else f"{CONFIG}: {entry}")


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"r": ' + b"9" * 5000 + b"}"])
def test_a_config_that_is_no_json_object_is_refused(folder: Path, text: bytes):
    (folder / CONFIG).write_bytes(text)
    assert refused(folder) == CONFIG


@pytest.mark.parametrize("keep", [0, 7, 100, -1])
def test_a_truncated_file_is_refused(folder: Path, keep: int):
    size = (folder / WEIGHTS).stat().st_size
    os.truncate(folder / WEIGHTS, keep % size)
    assert refused(folder) == WEIGHTS


def test_a_header_that_promises_more_than_is_there_is_refused_without_memory(folder: Path):
    header = json.dumps({A: {"dtype": "F32", "shape": [8, 1 << 38], "data_offsets": [0, 1 << 43]}}).encode()
    (folder / WEIGHTS).write_bytes(len(header).to_bytes(8, "little") + header + bytes(64))
    assert refused(folder) == WEIGHTS


def test_foreign_and_missing_files_are_named(folder: Path):
    (folder / "tokenizer.py").touch()
    assert refused(folder) == "tokenizer.py"
    (folder / "tokenizer.py").unlink()
    (folder / "README.md").mkdir()
    assert refused(folder) == "README.md"
    (folder / "README.md").rmdir()
    (folder / WEIGHTS).rename(folder / "adapter_model.bin")
    assert refused(folder) == "adapter_model.bin"
    (folder / "adapter_model.bin").unlink()
    assert refused(folder) == WEIGHTS


@pytest.mark.parametrize("name", [WEIGHTS, CONFIG])
def test_a_link_out_of_the_folder_is_refused(folder: Path, tmp_path: Path, name: str):
    (folder / name).rename(tmp_path / name)
    (folder / name).symlink_to(tmp_path / name)
    assert refused(folder) == name


def test_what_is_no_folder_is_refused(folder: Path, tmp_path: Path):
    assert refused(folder / WEIGHTS) == str(folder / WEIGHTS)
    assert refused(tmp_path / "nowhere") == str(tmp_path / "nowhere")


def test_expected_shapes_are_held_against_the_folder(folder: Path):
    tensors, _ = lora_fixture("A")
    shapes = {name: tuple(t.shape) for name, t in tensors.items()}
    assert refused(folder, shapes | {A: (8, 65)}) == A
    assert refused(folder, shapes | {"more": (1,)}) == "more"
    assert refused(folder, {n: s for n, s in shapes.items() if n != B}) == B

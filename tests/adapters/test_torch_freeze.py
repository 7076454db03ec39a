"""A frozen snapshot shares nothing with live parameters, and its digest says what it holds."""

import copy
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lorafsm.errors import InvalidField, LoraFsmError

torch = pytest.importorskip("torch", reason="torch is missing: pip install 'lorafsm[torch]'")

from lorafsm_torch import ArtifactError, Snapshot, freeze_snapshot  # noqa: E402
from lorafsm_torch.tensor_bytes import sha256_of_all  # noqa: E402

ROOT = Path(__file__).parents[2]
CONFIG = {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def live() -> dict:
    """Parameters as a trainer has them: a view, a transposed one, an expanded one, two of one storage, one wanting
    gradients."""
    flat = torch.arange(24, dtype=torch.float32)
    return {
        "view": flat[3:15].view(3, 4),
        "transposed": flat.view(4, 6).t(),
        "expanded": torch.ones(1, 3, dtype=torch.float16).expand(4, 3),
        "strided": flat[::2],
        "twin": flat,
        "twin.again": flat,
        "parameter": torch.nn.Parameter(torch.ones(2, 2, dtype=torch.bfloat16)),
    }


def bytes_of(tensor) -> bytes:
    return tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()


def test_a_snapshot_shares_no_storage():
    tensors = live()
    snapshot = freeze_snapshot(CONFIG, tensors)
    theirs = {t.untyped_storage().data_ptr() for t in tensors.values()}
    ours = [t.untyped_storage().data_ptr() for t in snapshot.tensors.values()]
    assert len(set(ours)) == len(tensors)
    assert theirs.isdisjoint(ours)
    for name, tensor in snapshot.tensors.items():
        assert tensor.device.type == "cpu"
        assert tensor.is_contiguous()
        assert not tensor.requires_grad
        assert tensor.dtype == tensors[name].dtype
        assert tensor.untyped_storage().nbytes() == tensor.nbytes, "the clone drags a larger storage along"
        assert torch.equal(tensor, tensors[name])


def test_a_snapshot_does_not_see_the_optimizer():
    tensors = live()
    before = {name: bytes_of(tensor) for name, tensor in tensors.items()}
    snapshot = freeze_snapshot(CONFIG, tensors)
    with torch.no_grad():
        for name, tensor in tensors.items():
            if name != "expanded":  # many elements in one place
                tensor.add_(1)
    assert bytes_of(tensors["view"]) != before["view"]
    assert {name: bytes_of(tensor) for name, tensor in snapshot.tensors.items()} == before
    snapshot.verify()


def test_tensors_of_a_snapshot_do_not_see_each_other():
    snapshot = freeze_snapshot(CONFIG, live())
    other = bytes_of(snapshot.tensors["twin.again"])
    snapshot.tensors["twin"].zero_()
    assert bytes_of(snapshot.tensors["twin.again"]) == other


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_digest_is_of_the_bytes(dtype):
    tensor = torch.tensor([[1.5, -0.0], [float("nan"), float("inf")]], dtype=dtype)
    [entry] = freeze_snapshot(CONFIG, {"w": tensor}).manifest.tensors
    assert entry.sha256 == hashlib.sha256(bytes_of(tensor)).hexdigest()
    assert (entry.dtype, entry.shape) == (str(dtype).removeprefix("torch."), (2, 2))
    assert freeze_snapshot(CONFIG, {"w": tensor.abs()}).digest != freeze_snapshot(CONFIG, {"w": tensor}).digest


def test_threads_and_one_thread_agree():
    tensors = {f"w{i}": torch.full((1 << 17,), i, dtype=torch.float32) for i in range(5)}  # 2.5 MiB in all
    assert sha256_of_all(tensors) == {n: hashlib.sha256(bytes_of(t)).hexdigest() for n, t in tensors.items()}


def test_order_and_layout_do_not_change_the_digest():
    tensors = live()
    plain = {name: tensor.detach().clone().contiguous() for name, tensor in reversed(tensors.items())}
    again = dict(reversed(CONFIG.items()))
    assert freeze_snapshot(CONFIG, tensors).digest == freeze_snapshot(again, plain).digest
    assert freeze_snapshot(CONFIG | {"r": 3}, plain).digest != freeze_snapshot(CONFIG, plain).digest


@st.composite
def adapters(draw):
    """Config and small tensors of random names, dtypes, shapes and bytes (NaN payloads and infinities included)."""
    names = draw(st.sets(st.text("ab_.-09", min_size=1, max_size=12), min_size=1, max_size=4))
    tensors = {}
    for name in names:
        dtype = draw(st.sampled_from(DTYPES))
        shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
        size = torch.Size(shape).numel() * torch.empty(0, dtype=dtype).element_size()
        data = draw(st.binary(min_size=size, max_size=size))
        tensors[name] = torch.frombuffer(bytearray(data), dtype=dtype).view(shape)
    text = st.text(st.characters(codec="utf-8"), max_size=8)
    number = st.integers(-(2**63) + 1, 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    leaf = st.none() | st.booleans() | number | text
    return draw(st.dictionaries(text, leaf | st.lists(leaf, max_size=3), max_size=4)), tensors


@given(adapters())
def test_any_adapter_is_frozen_exactly(adapter):
    config, tensors = adapter
    snapshot = freeze_snapshot(config, tensors)
    assert {name: bytes_of(t) for name, t in snapshot.tensors.items()} == {n: bytes_of(t) for n, t in tensors.items()}
    assert list(snapshot.tensors) == sorted(tensors)
    assert snapshot.config == config
    assert snapshot.digest == snapshot.manifest.digest()
    assert snapshot == freeze_snapshot(copy.deepcopy(config), {name: t.clone() for name, t in tensors.items()})
    snapshot.verify()


def test_a_change_of_the_snapshot_names_the_tensor():
    snapshot = freeze_snapshot(CONFIG, live())
    snapshot.tensors["view"][1, 2] += 1
    with pytest.raises(ArtifactError) as refusal:
        snapshot.verify()
    assert (refusal.value.code, refusal.value.field) == ("SNAPSHOT_CHANGED", "view")


def test_another_shape_of_the_same_bytes_is_a_change():
    snapshot = freeze_snapshot(CONFIG, live())
    snapshot.tensors["view"].resize_(4, 3)
    with pytest.raises(ArtifactError, match="shape") as refusal:
        snapshot.verify()
    assert refusal.value.field == "view"


def test_other_tensors_under_the_manifest_are_a_change():
    snapshot = freeze_snapshot(CONFIG, live())
    fewer = Snapshot(snapshot.manifest, snapshot.digest, {n: t for n, t in snapshot.tensors.items() if n != "twin"})
    with pytest.raises(ArtifactError) as refusal:
        fewer.verify()
    assert (refusal.value.code, refusal.value.field) == ("SNAPSHOT_CHANGED", "twin")
    with pytest.raises(ArtifactError, match="digest"):
        Snapshot(snapshot.manifest, "0" * 64, snapshot.tensors).verify()


def test_a_snapshot_is_read_only():
    config = copy.deepcopy(CONFIG)
    snapshot = freeze_snapshot(config, live())
    with pytest.raises(TypeError):
        snapshot.tensors["view"] = torch.zeros(1)
    snapshot.config["target_modules"].append("k_proj")
    config["target_modules"].append("v_proj")
    assert snapshot.config == CONFIG == json.loads(snapshot.manifest.config_json)


def test_tensors_that_are_all_nan_are_counted():
    nan = float("nan")
    some = {
        "all": torch.full((2, 2), nan, dtype=torch.bfloat16),
        "first": torch.tensor([nan, 1.0]),
        "last": torch.tensor([1.0, nan]),
    }
    assert freeze_snapshot(CONFIG, some).nan_only == ("all",)


@pytest.mark.parametrize(
    "config, tensors, field",
    [
        (CONFIG, {}, "tensors"),
        (CONFIG, [torch.ones(1)], "tensors"),
        ([CONFIG], {"w": torch.ones(1)}, "config"),
        ({"r": float("nan")}, {"w": torch.ones(1)}, "config.r"),
        ({"r": torch.ones(1)}, {"w": torch.ones(1)}, "config.r"),
        ({"r": "\ud800"}, {"w": torch.ones(1)}, "config.r"),
        (CONFIG, {3: torch.ones(1)}, "tensors[3]"),
        (CONFIG, {"../w": torch.ones(1)}, "tensors['../w']"),
        (CONFIG, {"w": [1.0]}, "tensors['w']"),
        (CONFIG, {"w": torch.ones(1, dtype=torch.float64)}, "tensors['w'].dtype"),
        (CONFIG, {"w": torch.ones(1, dtype=torch.int8)}, "tensors['w'].dtype"),
        (CONFIG, {"w": torch.ones(2, 0)}, "tensors['w'].shape"),
        (CONFIG, {"w": torch.tensor(1.0)}, "tensors['w'].shape"),
        (CONFIG, {"w": torch.ones(1 << 38, 1 << 10, device="meta")}, "tensors['w']"),
        (CONFIG, {"w": torch.ones(2, 2).to_sparse()}, "tensors['w']"),
        (CONFIG, {"w": torch.nn.UninitializedParameter()}, "tensors['w']"),
    ],
)
def test_bad_input_names_the_field(config, tensors, field):
    with pytest.raises(InvalidField) as refusal:
        freeze_snapshot(config, tensors)
    assert refusal.value.field == field


def test_a_config_that_holds_itself_is_refused():
    config: dict = {}
    config["again"] = config
    with pytest.raises(InvalidField, match="nested deeper") as refusal:
        freeze_snapshot(config, live())
    assert refusal.value.field.startswith("config.again")


def test_tensors_on_an_accelerator_are_frozen_on_the_cpu():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device: the copy from a GPU is not shown here")
    tensor = torch.arange(6, device="cuda", dtype=torch.bfloat16).view(2, 3).t()
    snapshot = freeze_snapshot(CONFIG, {"w": tensor})
    assert torch.equal(snapshot.tensors["w"], tensor.cpu())
    assert snapshot.tensors["w"].device.type == "cpu"


@pytest.mark.parametrize("missing", ["torch", "safetensors", "numpy"])
def test_without_the_extra_the_command_is_named(missing):
    script = f"""
import sys
sys.path[:0] = {[str(ROOT), str(ROOT / "adapters")]!r}
sys.modules[{missing!r}] = None
from lorafsm.errors import LoraFsmError
try:
    import lorafsm_torch
except ImportError as error:
    assert isinstance(error, LoraFsmError), type(error)
    print(error.code, error.field, error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"MISSING_EXTRA {missing} ")
    assert "pip install 'lorafsm[torch]'" in done.stdout


def test_errors_are_of_the_project():
    assert issubclass(ArtifactError, LoraFsmError)

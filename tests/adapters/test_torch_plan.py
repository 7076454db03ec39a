"""Buckets: a fixed order, a size cap, a digest of their own, and the file that safetensors itself would write."""

import hashlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lorafsm.errors import InvalidField
from lorafsm.manifest import TensorEntry, make_manifest

torch = pytest.importorskip("torch", reason="torch is missing: pip install 'lorafsm[torch]'")

from safetensors.torch import save  # noqa: E402

from lorafsm_torch import freeze_snapshot  # noqa: E402
from lorafsm_torch.plan import bucket_plan  # noqa: E402
from lorafsm_torch.stash import header_of  # noqa: E402
from lorafsm_torch.tensor_bytes import Hashing  # noqa: E402

DTYPES = ("float32", "bfloat16", "float16")
entries = st.lists(
    st.builds(
        lambda name, dtype, shape: TensorEntry(name, dtype, tuple(shape), "0" * 64),
        st.text("abAB_.0", min_size=1, max_size=6),
        st.sampled_from(DTYPES),
        st.lists(st.integers(1, 5), min_size=1, max_size=3),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda t: t.name,
)


@given(entries, st.integers(1, 400))
def test_buckets_and_their_pieces_cover_every_byte_once_and_in_order(tensors, cap):
    plan = bucket_plan(make_manifest(tensors, {}), cap)
    at = 0
    seen: dict[str, int] = {}
    for bucket in plan.buckets:
        assert bucket.start == at
        assert 0 < bucket.size <= cap
        for piece in plan.pieces(bucket.index):
            assert piece.start == at
            assert piece.end > piece.start
            assert piece.start - piece.first == seen.get(piece.tensor.name, 0), "a tensor's bytes stay in order"
            seen[piece.tensor.name] = piece.end - piece.first
            at = piece.end
        assert at == bucket.end
    assert at == plan.nbytes
    assert seen == {t.name: t.nbytes for t in tensors}
    assert all(bucket.size == cap for bucket in plan.buckets[:-1])


@given(entries, st.integers(1, 400), st.randoms())
def test_the_plan_does_not_depend_on_the_order_in_which_tensors_are_named(tensors, cap, random):
    shuffled = list(tensors)
    random.shuffle(shuffled)
    plan = bucket_plan(make_manifest(tensors, {}), cap)
    assert bucket_plan(make_manifest(shuffled, {}), cap) == plan
    assert plan.plan.buckets == len(plan.buckets)


def test_another_cap_is_another_plan_of_the_same_version():
    manifest = make_manifest([TensorEntry("w", "float32", (100,), "0" * 64)], {})
    digest = manifest.digest()
    plans = {cap: bucket_plan(manifest, cap).plan for cap in (100, 399, 400)}
    assert len({plan.digest for plan in plans.values()}) == 3
    assert [plan.buckets for plan in plans.values()] == [4, 2, 1]
    assert manifest.digest() == digest


def test_a_snapshot_lies_in_memory_as_it_travels():
    tensors = {
        "b": torch.arange(3, dtype=torch.float16),
        "a": torch.arange(5, dtype=torch.bfloat16),
        "z": torch.arange(2, dtype=torch.float32),
        "y": torch.arange(4, dtype=torch.float32).view(2, 2).t(),
    }
    snapshot = freeze_snapshot({}, tensors)
    plan = bucket_plan(snapshot.manifest, 7)
    assert [t.name for t in plan.tensors] == ["y", "z", "a", "b"]
    assert snapshot.sequence is not None
    file = header_of(plan) + snapshot.sequence.numpy().tobytes()
    assert file == save({name: t.contiguous() for name, t in tensors.items()}, {"format": "pt"})


def test_an_adapter_of_3_4_gib_is_planned_without_its_memory():
    tensors = [
        TensorEntry(f"layers.{layer}.{module}.lora_{side}.weight", "bfloat16", (32, 28000), "0" * 64)
        for layer in range(40)
        for module in range(25)
        for side in "AB"
    ]
    manifest = make_manifest(tensors, {})
    assert manifest.nbytes > 3.3 * 2**30
    start = time.perf_counter()
    plan = bucket_plan(manifest)
    assert time.perf_counter() - start < 1, "milliseconds on an idle machine"
    assert len(plan.buckets) == -(-manifest.nbytes // (64 << 20))


@pytest.mark.parametrize("cap", [0, -1, (1 << 30) + 1, 1.5, True])
def test_a_cap_that_is_none_is_refused(cap):
    with pytest.raises(InvalidField) as refusal:
        bucket_plan(make_manifest([TensorEntry("w", "float32", (1,), "0" * 64)], {}), cap)
    assert refusal.value.field == "cap"


@given(st.binary(min_size=1, max_size=300), st.lists(st.integers(1, 299), max_size=5))
def test_pieces_are_hashed_as_the_whole(data, cuts):
    hashing = Hashing()
    at = 0
    for cut in [*sorted(cut for cut in set(cuts) if cut < len(data)), len(data)]:
        hashing.add([("w", memoryview(data)[at:cut])])
        at = cut
    assert hashing.result(10) == {"w": hashlib.sha256(data).hexdigest()}
    hashing.close()

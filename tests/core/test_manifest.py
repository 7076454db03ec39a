"""The canonical manifest and its digest: one digest for one meaning, and no two meanings for one digest (RFC 3.1)."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from attrs import evolve
from hypothesis import assume, given
from hypothesis import strategies as st

from lorafsm.errors import InvalidField
from lorafsm.manifest import Manifest, TensorEntry, canonical_json, make_manifest, store_plan

SHA = hashlib.sha256(b"bytes").hexdigest()
GOLDEN = "da6810725fbe9334e749e3784e6594e8516885fef87e7c93780637d740511777"


def entry(name: str = "layers.0.q_proj.lora_A.weight", **changes: Any) -> TensorEntry:
    return evolve(TensorEntry(name, "bfloat16", (8, 16), SHA), **changes)


def test_the_digest_is_pinned():
    """A change of the encoding is a new domain string: versions of two encodings must never be compared."""
    manifest = make_manifest(
        [entry(), entry("layers.0.q_proj.lora_B.weight", dtype="float32", shape=(16, 8))],
        {"r": 8, "lora_alpha": 16.0, "target_modules": ["q_proj"], "bias": None, "name": "ü"},
    )
    assert manifest.digest() == GOLDEN
    assert manifest.nbytes == 8 * 16 * 2 + 16 * 8 * 4


def test_the_digest_is_the_encoding_that_the_docstring_describes():
    def framed(data: bytes) -> bytes:
        return len(data).to_bytes(8, "big") + data

    def number(value: int) -> bytes:
        return framed(value.to_bytes(8, "big"))

    manifest = make_manifest([entry()], {"r": 8})
    one = manifest.tensors[0]
    text = framed(b"lorafsm/manifest/v1") + framed(b'{"r":8}') + number(1)
    text += framed(one.name.encode()) + framed(b"bfloat16") + number(2) + number(8) + number(16)
    text += framed(bytes.fromhex(SHA))
    assert manifest.digest() == hashlib.sha256(text).hexdigest()


names = st.from_regex(r"[A-Za-z0-9_.\-]{1,12}", fullmatch=True)
shas = st.binary(min_size=32, max_size=32).map(bytes.hex)
entries = st.builds(
    TensorEntry,
    names,
    st.sampled_from(["bfloat16", "float16", "float32"]),
    st.lists(st.integers(1, 300), min_size=1, max_size=4).map(tuple),
    shas,
)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
configs = st.dictionaries(st.text(max_size=4), json_values, max_size=4)
manifests = st.builds(make_manifest, st.lists(entries, min_size=1, max_size=4, unique_by=lambda t: t.name), configs)


class Recorder:
    """Stands in for the hash, and keeps the encoding."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = data

    def update(self, data: bytes) -> None:
        self.data += data

    def hexdigest(self) -> str:
        return self.data.hex()


def encoding(manifest: Manifest) -> bytes:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lorafsm.manifest.hashlib.sha256", Recorder)
        return bytes.fromhex(manifest.digest())


def unframed(data: bytes) -> list[bytes]:
    items = []
    while data:
        size = int.from_bytes(data[:8], "big")
        items.append(data[8 : 8 + size])
        assert len(items[-1]) == size
        data = data[8 + size :]
    return items


@given(manifests)
def test_the_encoding_reads_back_so_no_two_manifests_share_one(manifest: Manifest):
    _, config, count, *rest = unframed(encoding(manifest))
    tensors = []
    for _ in range(int.from_bytes(count, "big")):
        name, dtype, sides, *rest = rest
        rank = int.from_bytes(sides, "big")
        shape, (sha, *rest) = tuple(int.from_bytes(side, "big") for side in rest[:rank]), rest[rank:]
        tensors.append(TensorEntry(name.decode(), dtype.decode(), shape, sha.hex()))
    assert rest == []
    assert Manifest(tuple(tensors), config.decode()) == manifest


@given(manifests, manifests)
def test_different_manifests_have_different_digests(one: Manifest, two: Manifest):
    assume(one != two)
    assert encoding(one) != encoding(two)
    assert one.digest() != two.digest()


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ([("ab", (1,)), ("c", (1,))], [("a", (1,)), ("bc", (1,))]),
        ([("a", (1, 2))], [("a", (12,))]),
        ([("a", (1, 2)), ("b", (3,))], [("a", (1,)), ("b", (2, 3))]),
        ([("a", (2, 3))], [("a", (3, 2))]),
        ([("a", (1,))], [("a", (1,)), ("b", (1,))]),
    ],
)
def test_parts_that_run_together_are_told_apart(one: list, two: list):
    digests = {make_manifest([entry(n, shape=s) for n, s in items], {}).digest() for items in (one, two)}
    assert len(digests) == 2


@given(st.lists(entries, min_size=2, max_size=5, unique_by=lambda t: t.name), configs, st.randoms())
def test_the_order_of_tensors_and_keys_means_nothing(tensors: list, config: dict, random: Any):
    shuffled, keys = list(tensors), list(config)
    random.shuffle(shuffled)
    random.shuffle(keys)
    other = make_manifest(shuffled, {key: config[key] for key in keys})
    assert other == make_manifest(tensors, config)
    assert other.digest() == make_manifest(tensors, config).digest()


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "other"},
        {"dtype": "float16"},
        {"shape": (16, 8)},
        {"shape": (8, 16, 1)},
        {"sha256": hashlib.sha256(b"other").hexdigest()},
    ],
)
def test_every_part_of_a_tensor_is_covered(changes: dict):
    assert make_manifest([entry(**changes)], {}).digest() != make_manifest([entry()], {}).digest()


def test_the_serving_config_is_covered():
    digests = {
        make_manifest([entry()], c).digest() for c in ({}, {"r": 8}, {"r": 8.0}, {"r": "8"}, {"r": None}, {"r": [8]})
    }
    assert len(digests) == 6


def test_an_empty_manifest_is_no_version():
    with pytest.raises(InvalidField) as caught:
        make_manifest([], {"r": 8})
    assert caught.value.field == "tensors"


def test_a_name_occurs_once():
    with pytest.raises(InvalidField) as caught:
        make_manifest([entry("a"), entry("b"), entry("a", dtype="float32")], {})
    assert caught.value.field == "tensors"
    assert "a" in caught.value.message


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": ""}, "tensors['']"),
        ({"name": "a/b"}, "tensors['a/b']"),
        ({"name": "a\n"}, "tensors['a\\n']"),
        ({"name": "x" * 257}, "tensors["),
        ({"dtype": "float64"}, "tensors['t'].dtype"),
        ({"dtype": "F32"}, "tensors['t'].dtype"),
        ({"shape": ()}, "tensors['t'].shape"),
        ({"shape": (0, 4)}, "tensors['t'].shape"),
        ({"shape": (-1,)}, "tensors['t'].shape"),
        ({"shape": (2.0,)}, "tensors['t'].shape"),
        ({"shape": (True,)}, "tensors['t'].shape"),
        ({"shape": (2**40,)}, "tensors['t'].shape"),
        ({"sha256": SHA.upper()}, "tensors['t'].sha256"),
        ({"sha256": SHA[:-1]}, "tensors['t'].sha256"),
        ({"sha256": None}, "tensors['t'].sha256"),
    ],
)
def test_a_malformed_tensor_is_refused_by_name(changes: dict, field: str):
    with pytest.raises(InvalidField) as caught:
        make_manifest([entry(**{"name": "t", **changes})], {})
    assert caught.value.field.startswith(field)


@pytest.mark.parametrize(
    "changes", [{"name": 7}, {"name": None}, {"dtype": ["float32"]}, {"shape": [2, 3]}, {"shape": 7}]
)
def test_foreign_types_in_a_tensor_are_refused_too(changes: dict):
    with pytest.raises(InvalidField):
        make_manifest([entry(**changes), entry("b")], {})


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"a": float("nan")}, "config.a"),
        ({"a": [1, float("inf")]}, "config.a[1]"),
        ({"a": {"b": -float("inf")}}, "config.a.b"),
        ({"a": b"bytes"}, "config.a"),
        ({"a": {1, 2}}, "config.a"),
        ({"a": object()}, "config.a"),
        ({"a": 1 + 2j}, "config.a"),
        ({1: "a"}, "config"),
        ({"a": {None: 1}}, "config.a"),
        ([1], "config"),
        (None, "config"),
        ("text", "config"),
        ({"a": 2**63}, "config.a"),
    ],
)
def test_a_config_without_a_canonical_form_is_refused_by_path(config: Any, field: str):
    with pytest.raises(InvalidField) as caught:
        make_manifest([entry()], config)
    assert caught.value.field == field


def test_text_that_no_utf8_can_carry_is_refused():
    with pytest.raises(InvalidField) as caught:
        make_manifest([entry()], {"a": "\ud800"})
    assert caught.value.field == "config.a"


@given(configs)
def test_canonical_json_is_json_sorted_and_stable(config: dict):
    text = canonical_json(config)
    assert json.loads(text) == config
    assert canonical_json(json.loads(text)) == text
    assert "\n" not in text


def test_the_plan_is_outside_the_digest_and_has_one_of_its_own():
    assert store_plan().buckets == 0
    assert store_plan().digest == "1b5986d91d2d227540a1b724224249cf9d0a9c3b22a5433ddc7ec804bd71e664"

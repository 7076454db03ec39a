"""Names and ids: what is accepted, what is refused, and that the refusal names the field (RFC 3.1)."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lorafsm import identity
from lorafsm.errors import InvalidField, LoraFsmError
from lorafsm.identity import LARGEST_INT, SessionKey, VersionKey, lora_name, parse_lora_name, version_key
from lorafsm.records import Config, new_registry

D = "0123456789abcdef" * 4

epochs = st.from_regex(r"[A-Za-z0-9_]{1,32}", fullmatch=True)
digests = st.from_regex(r"[0-9a-f]{64}", fullmatch=True)
ids = st.integers(0, LARGEST_INT)


def test_a_name_says_epoch_version_and_the_start_of_the_digest():
    assert lora_name(VersionKey("e1", 7), D) == "relax_policy_lora@e1-7-0123456789ab"


@given(epochs, ids, digests)
def test_a_name_reads_back(epoch: str, version_id: int, digest: str):
    key = version_key(epoch, version_id)
    name = lora_name(key, digest)
    parsed = parse_lora_name(name)
    assert (parsed.key, parsed.digest_prefix) == (key, digest[:12])
    assert identity.is_managed(name)
    assert identity.fault_in_lora_name(name) is None


@given(st.tuples(epochs, ids), st.tuples(epochs, ids), digests)
def test_two_versions_never_share_a_name(one: tuple, two: tuple, digest: str):
    names = {lora_name(VersionKey(*key), digest) for key in (one, two)}
    assert len(names) == len({one, two})


@pytest.mark.parametrize(
    "epoch", ["", "e-1", "e/1", "../e", "e 1", "e\n", "e1\n", "é", "e" * 33, "e\x00", 1, None, b"e1", "e.1"]
)
def test_an_epoch_without_its_form_is_refused_by_name(epoch: object):
    with pytest.raises(InvalidField) as caught:
        version_key(epoch, 1)
    assert (caught.value.field, caught.value.code) == ("epoch", "BAD_INPUT")
    with pytest.raises(InvalidField) as caught:
        new_registry(epoch)
    assert caught.value.field == "epoch"


@pytest.mark.parametrize("version_id", [-1, LARGEST_INT + 1, 1.0, True, "1", None, float("nan")])
def test_a_version_id_without_its_form_is_refused_by_name(version_id: object):
    with pytest.raises(InvalidField) as caught:
        version_key("e1", version_id)
    assert caught.value.field == "version_id"
    with pytest.raises(InvalidField) as caught:
        lora_name(VersionKey("e1", version_id), D)
    assert caught.value.field == "version_id"


@pytest.mark.parametrize("digest", ["", D[:-1], D + "0", D.upper(), "g" * 64, D[:-1] + "\n", D + "\n", None, b"0" * 64])
def test_a_digest_without_its_form_is_refused_by_name(digest: object):
    with pytest.raises(InvalidField) as caught:
        lora_name(VersionKey("e1", 1), digest)
    assert caught.value.field == "digest"


GOOD_NAME = "relax_policy_lora@e1-7-0123456789ab"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "e1-7-0123456789ab",
        GOOD_NAME + "c",
        GOOD_NAME[:-1],
        GOOD_NAME + "\n",
        " " + GOOD_NAME,
        GOOD_NAME.upper(),
        "relax_policy_lora@e1-07-0123456789ab",
        "relax_policy_lora@e1--7-0123456789ab",
        "relax_policy_lora@../x-7-0123456789ab",
        "relax_policy_lora@e1-7-0123456789AB",
        "relax_policy_lora@e1-7-0123/6789ab",
        "relax_policy_lora@e1-7",
        "relax_policy_lora@e1-99999999999999999999-0123456789ab",
        "relax_policy_lora@e1-7\x00-0123456789ab",
        None,
        7,
    ],
)
def test_a_lora_name_without_its_form_is_refused_by_name(name: object):
    with pytest.raises(InvalidField) as caught:
        parse_lora_name(name)
    assert caught.value.field == "lora_name"


def test_a_number_that_fits_the_pattern_and_no_version_id_is_refused_too():
    with pytest.raises(InvalidField):
        parse_lora_name("relax_policy_lora@e1-9999999999999999999-0123456789ab")


@pytest.mark.parametrize("value", ["E0", "a", "trainer-0.rank:3@host_1", "x" * 128])
def test_identifiers(value: str):
    assert identity.fault_in_identifier(value) is None


@pytest.mark.parametrize("value", ["", "-a", ".a", "a/b", "a\\b", "a b", "a\n", "a\x1b", "x" * 129, "ä", None, 1])
def test_what_no_identifier_is(value: object):
    assert "1 to 128" in identity.fault_in_identifier(value)


@pytest.mark.parametrize(
    ("value", "good"), [("", True), ("a b – ü", True), ("a\nb", False), ("x" * 513, False), (1, False)]
)
def test_free_text(value: object, good: bool):
    assert (identity.fault_in_text(value) is None) is good


@pytest.mark.parametrize(
    "value",
    [
        SessionKey("e1", "o/1", 0),
        SessionKey("e-1", "o1", 0),
        SessionKey("e1", "o1", -1),
        SessionKey("e1", "o1", True),
        ("e1", "o1", 0),
        None,
    ],
)
def test_what_no_session_key_is(value: object):
    assert identity.fault_in_session_key(value) is not None
    assert identity.fault_in_session_key(SessionKey("e1", "o1", 0)) is None


@given(st.text())
def test_text_that_is_managed_or_not_is_never_an_exception(name: str):
    assert identity.is_managed(name) is name.startswith("relax_policy_lora@")
    assert (
        identity.fault_in_lora_name(name) is None
        or not identity.is_managed(name)
        or "must be" in str(identity.fault_in_lora_name(name))
    )


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"capacity": 0}, "capacity"),
        ({"capacity": 9}, "capacity"),
        ({"capacity": "2"}, "capacity"),
        ({"capacity": True}, "capacity"),
        ({"engine_slots": 2}, "engine_slots"),
        ({"capacity": 3}, "engine_slots"),
        ({"repair_limit": 0}, "repair_limit"),
        ({"owner_lease": -1}, "owner_lease"),
        ({"driver_lease": 1.5}, "driver_lease"),
        ({"max_version_lag": None}, "max_version_lag"),
        ({"repair_backoff": 2**63}, "repair_backoff"),
    ],
)
def test_a_config_that_cannot_work_is_refused_by_name(changes: dict, field: str):
    with pytest.raises(InvalidField) as caught:
        Config(**changes)
    assert caught.value.field == field


def test_errors_keep_code_and_field_across_processes():
    for error in (LoraFsmError("NOT_READY", "wait", "engine"), InvalidField("epoch", "must be short")):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), again.code, again.field, str(again)) == (type(error), error.code, error.field, str(error))
    assert isinstance(InvalidField("epoch", "x"), ValueError)

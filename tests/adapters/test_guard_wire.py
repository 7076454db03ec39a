"""Orders and answers as JSON, ours and Relax's: both directions, and what malformed input is answered with."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from lorafsm.engine import answers as an
from lorafsm.engine.orders import ORDERS, ArmBucket, ReceiveBucket, Settle
from lorafsm.errors import InvalidField
from lorafsm.identity import VersionKey, lora_name
from lorafsm.manifest import Plan, store_plan
from lorafsm.orders import AskStatus, Begin, Cleanup, End, Load, TakeInventory, Unload, UnloadStray
from lorafsm.outcomes import Code
from lorafsm.records import Resident
from lorafsm_sglang.guard import (
    relax_wire,
)
from lorafsm_sglang.guard.wire import LARGEST_ORDER, read_answer, read_json, read_order, write_answer, write_order

KEY, DIGEST = VersionKey("e1", 3), "a" * 64
NAME = lora_name(KEY, DIGEST)
WHO: dict[str, Any] = {"epoch": "e1", "engine": "E0", "incarnation": 7}
WHAT: dict[str, Any] = {"key": KEY, "digest": DIGEST, "lora_name": NAME}
TOKEN = "t" * 32

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

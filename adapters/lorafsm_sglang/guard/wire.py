"""Orders and answers as JSON, read strictly: an object with one key, the name of its class, over all its fields.

    {"Unload": {"epoch": "e1", "engine": "E0", "incarnation": 7, "reclaim_id": "r1", "key": {...}, ...}}

No pickle and no import by name: only the classes below can come out.  `agent_step` judges the values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, get_args

from attrs import evolve, fields_dict

from lorafsm.engine.answers import AgentCode, Answer, Refused
from lorafsm.engine.orders import ORDERS, EngineOrder, Settle
from lorafsm.errors import InvalidField
from lorafsm.outcomes import Code
from lorafsm_journal.forms import form_of

_ORDERS: Mapping[str, type] = {kind.__name__: kind for kind in (*ORDERS, Settle)}
_ANSWERS: Mapping[str, type] = {kind.__name__: kind for kind in get_args(Answer)}
_CODES: Mapping[str, Code | AgentCode] = {code.value: code for kind in (Code, AgentCode) for code in kind}
_TEXT_FIELDS_OF_REFUSED = frozenset(fields_dict(Refused)) - {"code"}

LARGEST_ORDER = 64 << 10  # bytes
LARGEST_ANNOUNCEMENT = 64 << 20  # bytes: some 300,000 tensors


def write_order(order: EngineOrder | Settle) -> dict[str, Any]:
    """The JSON object of an order or a settle."""
    kind: Any = type(order)
    return {kind.__name__: form_of(kind).write(order, kind.__name__)}


def read_order(data: Any) -> EngineOrder | Settle:
    """The order in `data`; InvalidField names what is wrong with it."""
    name, body = _one(data, _ORDERS, "order")
    order: EngineOrder | Settle = form_of(_ORDERS[name]).read(body, name)
    return order


def write_answer(answer: Answer) -> dict[str, Any]:
    """The JSON object of an answer."""
    kind: Any = type(answer)
    if isinstance(answer, Refused):
        body = {name: getattr(answer, name) for name in sorted(_TEXT_FIELDS_OF_REFUSED)}
        return {"Refused": {**body, "code": answer.code.value}}
    return {kind.__name__: form_of(kind).write(answer, kind.__name__)}


def read_answer(data: Any) -> Answer:
    """The answer in `data`; InvalidField where it is none of this protocol's."""
    name, body = _one(data, _ANSWERS, "answer")
    if name != "Refused":
        answer: Answer = form_of(_ANSWERS[name]).read(body, name)
        return answer
    if not isinstance(body, dict) or body.keys() != _TEXT_FIELDS_OF_REFUSED | {"code"}:
        raise InvalidField("Refused", f"must have the fields code, {', '.join(sorted(_TEXT_FIELDS_OF_REFUSED))}")
    code = _CODES.get(body["code"])
    if code is None:
        raise InvalidField("Refused.code", f"{body['code']!r:.80} is no code of this protocol")
    refused = Refused(code=code, reason=str(body["reason"]), field=body["field"])
    return evolve(refused, **{name: body[name] for name in _TEXT_FIELDS_OF_REFUSED if name not in ("reason", "field")})


def read_json(raw: bytes, largest: int = LARGEST_ORDER) -> dict[str, Any]:
    """The JSON object in a request's body; InvalidField for anything else, and for one too large to be meant."""
    if len(raw) > largest:
        raise InvalidField("body", f"is larger than {largest} bytes")
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise InvalidField("body", "is not JSON") from error
    if type(data) is not dict:
        raise InvalidField("body", "must be a JSON object")
    return data


def _one(data: Any, classes: Mapping[str, type], what: str) -> tuple[str, Any]:
    if type(data) is not dict or len(data) != 1:
        raise InvalidField(what, "must be an object with one key, the name of its class")
    [(name, body)] = data.items()
    if name not in classes:
        raise InvalidField(what, f"{name!r:.80} is none of {', '.join(sorted(classes))}")
    return name, body

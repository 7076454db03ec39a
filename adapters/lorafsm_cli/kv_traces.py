"""Loaders for public request traces.  The files stay where they are: none is part of this project.

    mooncake  JSON lines {timestamp (ms), input_length, output_length, hash_ids}; blocks of 512 tokens; no sessions
    bailian   JSON lines {chat_id, parent_chat_id, timestamp (s), input_length, output_length, turn, hash_ids};
              blocks of 16 tokens; a chat and what descends from it are a session
    agent     JSON {id, block_size, requests: [{t (s), in, out, hash_ids, think_time}]}: one session, a list of them,
              one in a line, or a folder of such files

Equal hash ids mean equal prefixes. What a request generated has no ids of its own: it shows up in the next prompt.
None of the formats knows a close: with `close`, each session is closed after its last request.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lorafsm.errors import InvalidField
from lorafsm.identity import SessionKey
from lorafsm.kv.replay import Close, Event, Request, Trace

FORMATS = ("mooncake", "bailian", "agent")
_MOONCAKE_BLOCK, _BAILIAN_BLOCK = 512, 16


def load(path: Path, format_: str = "", *, close: bool = False) -> Trace:
    """Read a trace; the format is told by its fields if it is not named.  Raises InvalidField naming the field."""
    records = list(_records(path))
    if not records:
        raise InvalidField("trace", f"{path} holds no record")
    name = format_ or _format_of(records[0][1])
    if name not in _READERS:
        raise InvalidField("format", f"{name} is not known; take one of {', '.join(FORMATS)}")
    block, requests = _READERS[name](records)
    requests.sort(key=lambda request: request.at)
    return Trace(block, tuple(_closed(requests) if close else requests))


def _closed(requests: list[Request]) -> Iterator[Event]:
    last = {request.session: number for number, request in enumerate(requests)}
    for number, request in enumerate(requests):
        yield request
        if request.session is not None and last[request.session] == number:
            yield Close(request.at, request.session)


def _records(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every record with the place where it stands."""
    files = sorted(path.glob("*.json*")) if path.is_dir() else [path]
    for file in files:
        text = file.read_text()
        try:
            whole = json.loads(text)
        except json.JSONDecodeError:
            for number, line in enumerate(text.splitlines(), 1):
                if line.strip():
                    yield f"{file.name}:{number}", _object(f"{file.name}:{number}", line)
            continue
        for number, record in enumerate(whole if isinstance(whole, list) else [whole], 1):
            if not isinstance(record, dict):
                raise InvalidField("trace", f"{file.name}: record {number} is no JSON object")
            yield f"{file.name}: record {number}", record


def _object(place: str, line: str) -> Mapping[str, Any]:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise InvalidField("trace", f"{place} is no JSON: {error.msg}") from None
    if not isinstance(record, dict):
        raise InvalidField("trace", f"{place} is no JSON object")
    return record


def _format_of(record: Mapping[str, Any]) -> str:
    if "requests" in record:
        return "agent"
    return "bailian" if "chat_id" in record else "mooncake"


def _number(record: Mapping[str, Any], field: str, place: str) -> float:
    value = record.get(field)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
        raise InvalidField(field, f"{place}: must be a number, at least 0")
    return value


def _ids(record: Mapping[str, Any], place: str) -> tuple[int, ...]:
    ids = record.get("hash_ids")
    if not isinstance(ids, list) or any(type(item) is not int for item in ids):
        raise InvalidField("hash_ids", f"{place}: must be a list of integers")
    return tuple(ids)


Records = list[tuple[str, Mapping[str, Any]]]


def _mooncake(records: Records) -> tuple[int, list[Request]]:
    return _MOONCAKE_BLOCK, [
        Request(round(_number(record, "timestamp", place)), None, _ids(record, place), ()) for place, record in records
    ]


def _bailian(records: Records) -> tuple[int, list[Request]]:
    roots: dict[Any, int] = {}  # chat -> sequence of its session
    requests = []
    sessions = 0
    for place, record in records:
        if "chat_id" not in record or "parent_chat_id" not in record:
            raise InvalidField("chat_id", f"{place}: needs chat_id and parent_chat_id")
        root = roots.get(record["parent_chat_id"])
        if root is None:
            root, sessions = sessions, sessions + 1
        roots[record["chat_id"]] = root
        at = round(_number(record, "timestamp", place) * 1000)
        requests.append(Request(at, SessionKey("bailian", "trace", root), _ids(record, place), ()))
    return _BAILIAN_BLOCK, requests


def _agent(records: Records) -> tuple[int, list[Request]]:
    blocks = {int(_number(record, "block_size", place)) for place, record in records}
    if len(blocks) != 1 or 0 in blocks:
        raise InvalidField("block_size", f"must be one for all sessions, at least 1, not {sorted(blocks)}")
    requests = []
    for sequence, (place, record) in enumerate(records):
        turns = record.get("requests")
        if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
            raise InvalidField("requests", f"{place}: must be a list of objects")
        for number, turn in enumerate(turns, 1):
            where = f"{place}, request {number}"
            at = round(_number(turn, "t", where) * 1000)
            requests.append(Request(at, SessionKey("agent", "trace", sequence), _ids(turn, where), ()))
    return blocks.pop(), requests


_READERS: Mapping[str, Callable[[Records], tuple[int, list[Request]]]] = {
    "mooncake": _mooncake,
    "bailian": _bailian,
    "agent": _agent,
}

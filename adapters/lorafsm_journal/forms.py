"""The JSON form of each type that a record's field may have, read and written by the same rule.

Supported: str, int, bool, None, string enums, Literal of strings, attrs classes, tuple, frozenset, immutables.Map
(an object where its keys are strings, else sorted pairs), unions of attrs classes (an object of one key, the name
of the class), and other unions that their JSON can tell apart.  A type outside this list is a programming
error and raises TypeError when its form is asked for; a value outside its type raises Undecodable with its path.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from enum import Enum
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import attrs
from immutables import Map

from lorafsm.holders import Holders
from lorafsm_journal.errors import Undecodable

_SCALARS: frozenset[type] = frozenset({str, int, bool, type(None)})


@attrs.frozen
class Form:
    """How one type lies in JSON.  Both functions take the value and its path, and raise Undecodable."""

    json_type: type | None  # what json.loads gives for it; None: a union
    write: Callable[[Any, str], Any]
    read: Callable[[Any, str], Any]
    takes: Callable[[Any], bool]  # whether a Python value is of this type, judged at the top only


@cache
def form_of(kind: Any) -> Form:
    """The form of a type; TypeError for a type that has none."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _union(kind)
    if origin is tuple:
        return _tuple(kind)
    if origin is frozenset:
        return _frozenset(kind)
    if origin is Map:
        return _map(kind)
    if origin is Literal:
        return _literal(get_args(kind))
    if kind in _SCALARS:
        return _scalar(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum(kind)
    if kind is Holders:
        return _holders()
    if isinstance(kind, type) and attrs.has(kind):
        return _record(kind)
    raise TypeError(f"{kind!r} has no form in the journal; add one to lorafsm_journal.forms")


def record_names(kind: type) -> list[str]:
    """The fields of a record that are written."""
    return [field.name for field in attrs.fields(kind) if field.init]


def is_tagged(kind: Any) -> bool:
    """Whether a union is one of records only, and so written with the name of the class."""
    return all(isinstance(arg, type) and attrs.has(arg) for arg in get_args(kind))


def own_form(kind: type) -> bool:
    """Whether a record is written otherwise than field by field."""
    return kind is Holders


def _expect(value: Any, kind: type, path: str) -> Any:
    if type(value) is not kind:
        raise Undecodable(path, f"must be {kind.__name__}, not {type(value).__name__}")
    return value


def _scalar(kind: type) -> Form:
    def same(value: Any, path: str) -> Any:
        return _expect(value, kind, path)

    return Form(kind, same, same, lambda value: type(value) is kind)


def _literal(allowed: tuple[Any, ...]) -> Form:
    def same(value: Any, path: str) -> Any:
        if _expect(value, str, path) not in allowed:
            raise Undecodable(path, f"must be one of {', '.join(allowed)}")
        return value

    return Form(str, same, same, lambda value: type(value) is str)


def _enum(kind: type[Enum]) -> Form:
    members = {member.value: member for member in kind}

    def read(value: Any, path: str) -> Any:
        if _expect(value, str, path) not in members:
            raise Undecodable(path, f"must be a {kind.__name__}, not {value!r:.80}")
        return members[value]

    return Form(str, lambda value, path: _expect(value, kind, path).value, read, lambda value: type(value) is kind)


def _record(kind: type) -> Form:
    hints = get_type_hints(kind)
    names = record_names(kind)

    def form(name: str) -> Form:
        return form_of(hints[name])  # late: a record may hold its own kind

    def write(value: Any, path: str) -> Any:
        _expect(value, kind, path)
        return {name: form(name).write(getattr(value, name), f"{path}.{name}") for name in names}

    def read(value: Any, path: str) -> Any:
        _expect(value, dict, path)
        if lacking := [name for name in names if name not in value]:
            raise Undecodable(path, f"lacks the fields {', '.join(lacking)} of {kind.__name__}")
        if foreign := sorted(value.keys() - set(names)):
            raise Undecodable(path, f"has fields that {kind.__name__} has not: {', '.join(foreign)}")
        return kind(**{name: form(name).read(value[name], f"{path}.{name}") for name in names})

    return Form(dict, write, read, lambda value: type(value) is kind)


def _tuple(kind: Any) -> Form:
    args = get_args(kind)
    repeated = form_of(args[0]) if len(args) == 2 and args[1] is Ellipsis else None
    fixed = [] if repeated else [form_of(arg) for arg in args]

    def forms(value: Any, path: str) -> list[Form]:
        if repeated is not None:
            return [repeated] * len(value)
        if len(value) != len(fixed):
            raise Undecodable(path, f"must have {len(fixed)} items, not {len(value)}")
        return fixed

    def write(value: Any, path: str) -> Any:
        items = forms(_expect(value, tuple, path), path)
        return [f.write(item, f"{path}[{i}]") for i, (f, item) in enumerate(zip(items, value, strict=True))]

    def read(value: Any, path: str) -> Any:
        items = forms(_expect(value, list, path), path)
        return tuple(f.read(item, f"{path}[{i}]") for i, (f, item) in enumerate(zip(items, value, strict=True)))

    return Form(list, write, read, lambda value: type(value) is tuple)


def _frozenset(kind: Any) -> Form:
    [arg] = get_args(kind)
    item = form_of(arg)

    def write(value: Any, path: str) -> Any:
        return sorted((item.write(v, f"{path}[]") for v in _expect(value, frozenset, path)), key=repr)

    def read(value: Any, path: str) -> Any:
        items = [item.read(v, f"{path}[{i}]") for i, v in enumerate(_expect(value, list, path))]
        if len(found := frozenset(items)) != len(items):
            raise Undecodable(path, "has an item twice")
        return found

    return Form(list, write, read, lambda value: type(value) is frozenset)


def _map(kind: Any) -> Form:
    key, arg = get_args(kind)
    item = form_of(arg)
    if key is not str:
        return _pairs(form_of(key), item)

    def write(value: Any, path: str) -> Any:
        pairs = _expect(value, Map, path).items()
        return {_expect(k, str, path): item.write(v, f"{path}[{k!r:.80}]") for k, v in pairs}

    def read(value: Any, path: str) -> Any:
        return Map({k: item.read(v, f"{path}[{k!r:.80}]") for k, v in _expect(value, dict, path).items()})

    return Form(dict, write, read, lambda value: type(value) is Map)


def _pairs(key: Form, item: Form) -> Form:
    def write(value: Any, path: str) -> Any:
        pairs = sorted(_expect(value, Map, path).items(), key=lambda pair: pair[0])
        return [[key.write(k, f"{path}[]"), item.write(v, f"{path}[{k!s:.80}]")] for k, v in pairs]

    def read(value: Any, path: str) -> Any:
        found: Map[Any, Any] = Map()
        for i, pair in enumerate(_expect(value, list, path)):
            if len(_expect(pair, list, f"{path}[{i}]")) != 2:
                raise Undecodable(f"{path}[{i}]", "must be a pair")
            found = found.set(key.read(pair[0], f"{path}[{i}]"), item.read(pair[1], f"{path}[{i}]"))
        if len(found) != len(value):
            raise Undecodable(path, "has a key twice")
        return found

    return Form(list, write, read, lambda value: type(value) is Map)


def _holders() -> Form:
    """Of the holders only the entries: count and occupied blocks follow from them, and the latter is a number of
    thousands of digits."""
    blocks = form_of(get_type_hints(Holders)["blocks"])

    def write(value: Any, path: str) -> Any:
        held = _expect(value, Holders, path)
        return [_expect(held.appended, int, path), blocks.write(held.blocks, f"{path}.blocks")]

    def read(value: Any, path: str) -> Any:
        if len(_expect(value, list, path)) != 2:
            raise Undecodable(path, "must be a pair of the next position and the blocks")
        held = blocks.read(value[1], f"{path}.blocks")
        if any(number < 0 or not entries for number, entries in held.items()):
            raise Undecodable(f"{path}.blocks", "has an empty block")
        occupied = bytearray(max(held, default=0) // 8 + 1)
        for number in held:
            occupied[number // 8] |= 1 << number % 8
        count = sum(map(len, held.values()))
        return Holders(count, _expect(value[0], int, path), held, int.from_bytes(occupied, "little"))

    return Form(list, write, read, lambda value: type(value) is Holders)


def _tagged(kind: Any) -> Form:
    classes = {arg.__name__: arg for arg in get_args(kind)}

    def write(value: Any, path: str) -> Any:
        name = type(value).__name__
        if classes.get(name) is not type(value):
            raise Undecodable(path, f"must be one of {', '.join(classes)}, not {name}")
        return {name: form_of(classes[name]).write(value, f"{path}.{name}")}

    def read(value: Any, path: str) -> Any:
        if len(_expect(value, dict, path)) != 1 or (name := next(iter(value))) not in classes:
            raise Undecodable(path, f"must be an object with one key of {', '.join(classes)}")
        return form_of(classes[name]).read(value[name], f"{path}.{name}")

    return Form(dict, write, read, lambda value: type(value) in classes.values())


def _union(kind: Any) -> Form:
    if is_tagged(kind):
        return _tagged(kind)
    forms = [form_of(arg) for arg in get_args(kind)]
    by_json = {form.json_type: form for form in forms}
    if None in by_json or len(by_json) != len(forms):
        raise TypeError(f"{kind!r}: JSON cannot tell its alternatives apart")
    names = " or ".join(getattr(arg, "__name__", str(arg)) for arg in get_args(kind))

    def write(value: Any, path: str) -> Any:
        for form in forms:
            if form.takes(value):
                return form.write(value, path)
        raise Undecodable(path, f"must be {names}, not {type(value).__name__}")

    def read(value: Any, path: str) -> Any:
        if type(value) not in by_json:
            raise Undecodable(path, f"must be {names}, not {type(value).__name__}")
        return by_json[type(value)].read(value, path)

    return Form(None, write, read, lambda value: any(form.takes(value) for form in forms))

"""Fast writers and readers of the forms: one function per record, made from its fields as attrs makes `__init__`.

`lorafsm_journal.forms` says what the text of a value is and names what is wrong with one; the functions here
do the same in a tenth of the time, and on anything they do not expect raise Mismatch, whereupon the forms are
asked.  A test holds both to the same text.  Nothing from outside is in the source that is compiled: class and
field names are the project's own.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable
from enum import Enum
from functools import cache
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, TypeAlias, Union, get_args, get_origin, get_type_hints

import attrs
from immutables import Map

from lorafsm_journal.forms import form_of, is_tagged, own_form, record_names

Writer: TypeAlias = Callable[[Any], str]
Reader: TypeAlias = Callable[[Any], Any]


class Mismatch(Exception):
    """Not what the fast path expects."""


@cache
def writer_of(kind: Any) -> Writer:
    """Value to canonical JSON text."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _write_union(kind, args)
    if origin is tuple and args[-1] is Ellipsis:
        return _write_items(writer_of(args[0]))
    if origin is tuple:
        return _write_fixed([writer_of(arg) for arg in args])
    if origin is Map:
        return _write_map(args[0], writer_of(args[0]), writer_of(args[1]))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _write_enum({member: quoted(member.value) for member in kind}, kind)
    if isinstance(kind, type) and attrs.has(kind) and not own_form(kind):
        return _write_record(kind)
    if kind in _WRITE:
        return _WRITE[kind]
    return _write_slowly(kind)


@cache
def reader_of(kind: Any) -> Reader:
    """What json.loads gives to a value; strict, but that a text is canonical is for the caller to see."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _read_union(kind, args)
    if origin is tuple and args[-1] is Ellipsis:
        return _read_items(reader_of(args[0]))
    if origin is tuple:
        return _read_fixed([reader_of(arg) for arg in args])
    if origin is Map:
        return _read_map(args[0], reader_of(args[0]), reader_of(args[1]))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _read_enum({member.value: member for member in kind})
    if isinstance(kind, type) and attrs.has(kind) and not own_form(kind):
        return _read_record(kind)
    if kind in _SCALARS:
        return _read_scalar(kind)
    return lambda data: form_of(kind).read(data, "")


_SCALARS = (int, str, bool, type(None))


def _expect(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise Mismatch
    return value


_WRITE: dict[Any, Writer] = {
    int: lambda value: f"{_expect(value, int)}",
    str: lambda value: quoted(_expect(value, str)),
    bool: lambda value: "true" if _expect(value, bool) else "false",
    type(None): lambda value: "null" if value is None else _expect(value, type(None)),
}


def _write_slowly(kind: Any) -> Writer:
    form = form_of(kind)
    return lambda value: json.dumps(form.write(value, ""), sort_keys=True, separators=(",", ":"), allow_nan=False)


def _read_scalar(kind: type) -> Reader:
    def read(data: Any) -> Any:
        if type(data) is not kind:
            raise Mismatch
        return data

    return read


# Records: straight-line source, scalars inline, everything else one call


def _write_record(kind: type) -> Writer:
    hints = get_type_hints(kind)
    names = sorted(record_names(kind))
    scope: dict[str, Any] = {"kind": kind, "quoted": quoted, "Mismatch": Mismatch}
    tests, parts = ["type(v) is not kind"], []
    for n, name in enumerate(names):
        inline = {int: f"{{a{n}}}", str: f"{{quoted(a{n})}}", bool: f"{{'true' if a{n} else 'false'}}"}
        if hints[name] in inline:
            tests.append(f"type(a{n} := v.{name}) is not {hints[name].__name__}")
            parts.append(f'"{name}":{inline[hints[name]]}')
        else:
            scope[f"w{n}"] = writer_of(hints[name])
            parts.append(f'"{name}":{{w{n}(v.{name})}}')
    body = f"f'''{{{{{','.join(parts)}}}}}'''"
    return _made(f"def made(v):\n if {' or '.join(tests)}: raise Mismatch\n return {body}", scope)


def _read_record(kind: type) -> Reader:
    hints = get_type_hints(kind)
    names = record_names(kind)
    scope: dict[str, Any] = {"kind": kind, "Mismatch": Mismatch}
    tests, arguments = [f"type(d) is not dict or len(d) != {len(names)}"], []
    for n, name in enumerate(names):
        if hints[name] in (int, str, bool):
            tests.append(f"type(a{n} := d['{name}']) is not {hints[name].__name__}")
            arguments.append(f"{name}=a{n}")
        else:
            scope[f"r{n}"] = reader_of(hints[name])
            arguments.append(f"{name}=r{n}(d['{name}'])")
    return _made(f"def made(d):\n if {' or '.join(tests)}: raise Mismatch\n return kind({','.join(arguments)})", scope)


def _made(source: str, scope: dict[str, Any]) -> Callable[[Any], Any]:
    exec(source, scope)  # noqa: S102
    made: Callable[[Any], Any] = scope["made"]
    return made


# Enums and unions


def _write_enum(texts: dict[Any, str], kind: type) -> Writer:
    def write(value: Any) -> str:
        if type(value) is not kind:
            raise Mismatch
        return texts[value]

    return write


def _read_enum(members: dict[str, Any]) -> Reader:
    def read(data: Any) -> Any:
        if type(data) is not str:
            raise Mismatch
        return members[data]

    return read


def _write_union(kind: Any, args: tuple[Any, ...]) -> Writer:
    if is_tagged(kind):
        tagged = {arg: (f'{{"{arg.__name__}":', writer_of(arg)) for arg in args}

        def write_tagged(value: Any) -> str:
            head, write = tagged[type(value)]
            return f"{head}{write(value)}}}"

        return write_tagged
    if len(args) == 2 and type(None) in args:
        [write_it] = [writer_of(arg) for arg in args if arg is not type(None)]
        return lambda value: "null" if value is None else write_it(value)
    return _write_slowly(kind)


def _read_union(kind: Any, args: tuple[Any, ...]) -> Reader:
    if is_tagged(kind):
        tagged = {arg.__name__: reader_of(arg) for arg in args}

        def read_tagged(data: Any) -> Any:
            if type(data) is not dict or len(data) != 1:
                raise Mismatch
            [(name, fields)] = data.items()
            return tagged[name](fields)

        return read_tagged
    if len(args) == 2 and type(None) in args:
        [read_it] = [reader_of(arg) for arg in args if arg is not type(None)]
        return lambda data: None if data is None else read_it(data)
    return lambda data: form_of(kind).read(data, "")


# Containers


def _write_items(write: Writer) -> Writer:
    return lambda value: f"[{','.join([write(item) for item in _expect(value, tuple)])}]"


def _read_items(read: Reader) -> Reader:
    return lambda data: tuple([read(item) for item in _expect(data, list)])


def _write_fixed(writers: list[Writer]) -> Writer:
    def write(value: Any) -> str:
        items = zip(writers, _expect(value, tuple), strict=True)
        return f"[{','.join([w(item) for w, item in items])}]"

    return write


def _read_fixed(readers: list[Reader]) -> Reader:
    return lambda data: tuple([r(item) for r, item in zip(readers, _expect(data, list), strict=True)])


def _write_map(key: Any, write_key: Writer, write: Writer) -> Writer:
    if key is str:
        return lambda value: (
            "{" + ",".join([f"{write_key(k)}:{write(v)}" for k, v in sorted(_expect(value, Map).items())]) + "}"
        )

    def pairs(value: Any) -> str:
        ordered = sorted(_expect(value, Map).items(), key=lambda pair: pair[0])
        return f"[{','.join([f'[{write_key(k)},{write(v)}]' for k, v in ordered])}]"

    return pairs


def _read_map(key: Any, read_key: Reader, read: Reader) -> Reader:
    if key is str:
        return lambda data: Map({k: read(v) for k, v in _expect(data, dict).items()})

    def pairs(data: Any) -> Any:
        found = Map([(read_key(k), read(v)) for k, v in _expect(data, list)])
        if len(found) != len(data):
            raise Mismatch
        return found

    return pairs

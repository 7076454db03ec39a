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
    if _plain_record(kind):
        return _write_record(kind)
    if kind in _WRITE:
        return _WRITE[kind]
    return _write_slowly(kind)


@cache
def tagged_writer_of(kind: type) -> Writer:
    """The same of a record, within an object of one key, the name of its class."""
    if _plain_record(kind):
        return _write_record(kind, kind.__name__)
    head, write = f'{{"{kind.__name__}":', writer_of(kind)
    return lambda value: f"{head}{write(value)}}}"


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
    if _plain_record(kind):
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


# Records: straight-line source, scalars and the records in them inline, everything else one call


class _Source:
    """The source of one function: the tests that a value must pass, and the names that it uses."""

    def __init__(self) -> None:
        self.scope: dict[str, Any] = {"quoted": quoted, "Mismatch": Mismatch}
        self.tests: list[str] = []
        self._count = 0

    def name(self, letter: str, value: Any = None) -> str:
        """A name that is not used yet, for `value` if there is one."""
        self._count += 1
        name = f"{letter}{self._count}"
        if value is not None:
            self.scope[name] = value
        return name

    def expect(self, source: str, kind: type) -> str:
        """The variable that holds what `source` gives, once it was seen to be of this type."""
        name = self.name("a")
        type_name = kind.__name__ if kind in (*_SCALARS, dict) else self.name("k", kind)
        self.tests.append(f"type({name} := {source}) is not {type_name}")
        return name

    def made(self, result: str) -> Callable[[Any], Any]:
        """The function of `v` that raises Mismatch unless all tests pass."""
        exec(f"def made(v):\n if {' or '.join(self.tests)}: raise Mismatch\n return {result}", self.scope)  # noqa: S102
        made: Callable[[Any], Any] = self.scope["made"]
        return made


def _plain_record(kind: Any) -> bool:
    return isinstance(kind, type) and attrs.has(kind) and not own_form(kind)


def _write_record(kind: type, tag: str = "") -> Writer:
    source = _Source()
    parts = _written(source, "v", kind)
    return source.made(f"f'''{{{{\"{tag}\":{parts}}}}}'''" if tag else f"f'''{parts}'''")


def _written(source: _Source, value: str, kind: type) -> str:
    """What stands in an f-string for the record that the expression `value` gives."""
    hints, parts = get_type_hints(kind), []
    record = source.expect(value, kind)
    for name in sorted(record_names(kind)):
        hint, field = hints[name], f"{record}.{name}"
        if hint is int:
            text = f"{{{source.expect(field, int)}}}"
        elif hint is str:
            text = f"{{quoted({source.expect(field, str)})}}"
        elif hint is bool:
            text = f"{{'true' if {source.expect(field, bool)} else 'false'}}"
        elif _plain_record(hint):
            text = _written(source, field, hint)
        else:
            text = f"{{{source.name('w', writer_of(hint))}({field})}}"
        parts.append(f'"{name}":{text}')
    return f"{{{{{','.join(parts)}}}}}"


def _read_record(kind: type) -> Reader:
    source = _Source()
    return source.made(_read_into(source, "v", kind))


def _read_into(source: _Source, value: str, kind: type) -> str:
    """The call that makes the record of what the expression `value` gives."""
    hints, arguments = get_type_hints(kind), []
    data, names = source.expect(value, dict), record_names(kind)
    source.tests.append(f"len({data}) != {len(names)}")
    for name in names:
        hint, field = hints[name], f"{data}['{name}']"
        if hint in (int, str, bool):
            arguments.append(f"{name}={source.expect(field, hint)}")
        elif _plain_record(hint):
            arguments.append(f"{name}={_read_into(source, field, hint)}")
        else:
            arguments.append(f"{name}={source.name('r', reader_of(hint))}({field})")
    return f"{source.name('k', kind)}({','.join(arguments)})"


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
        tagged = {arg: tagged_writer_of(arg) for arg in args}
        return lambda value: tagged[type(value)](value)
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

"""Events and outcomes as canonical JSON: the one place where the journal's text is written and read.

A value is an object with one key, the name of its class, over an object of its fields:

    {"Commit":{"expected_revision":0,"key":{"epoch":"e1","version_id":1},"token":"t1"}}

Keys are sorted and no field is optional, so a value has one text, and any other text of it is refused.  Reading
is strict: the class must be known, every field there and of its exact type (a bool is no int, a string no enum
member unless it is one), nothing added.  No pickle, no import by name: only the classes of the unions below can
come out.  What does not fit raises Undecodable with the path of the field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar, get_args

from lorafsm.events import Event
from lorafsm.outcomes import Outcome
from lorafsm.records import Config, Registry
from lorafsm_journal.compiled import Mismatch, Reader, Writer, reader_of, tagged_writer_of
from lorafsm_journal.errors import Undecodable
from lorafsm_journal.forms import form_of

EVENTS: Mapping[str, type] = {cls.__name__: cls for cls in get_args(Event)}
OUTCOMES: Mapping[str, type] = {cls.__name__: cls for cls in get_args(Outcome)}

T = TypeVar("T")
_UNEXPECTED = (Mismatch, KeyError, ValueError, TypeError, AttributeError, RecursionError)


class _Family(Generic[T]):
    """The classes of one kind of value.  The fast way first; where it fails, the forms say what is wrong and where."""

    def __init__(self, what: str, classes: Mapping[str, type]) -> None:
        self._what = what
        self._classes = classes
        self._writers: dict[type, Writer] = {}  # compiled when first asked for
        self._readers: dict[str, Reader] = {}

    def encode(self, value: T) -> str:
        """The canonical text."""
        write = self._writers.get(type(value)) or self._writer(type(value))
        try:
            return write(value)
        except _UNEXPECTED:
            return self._encode_by_form(value)

    def encode_all(self, values: Sequence[T]) -> list[str]:
        """As `encode` of each, faster."""
        writers = self._writers
        try:
            return [writers[type(value)](value) for value in values]
        except _UNEXPECTED:
            return [self.encode(value) for value in values]

    def decode(self, text: str) -> T:
        """The value that `text` is the canonical form of."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Undecodable(self._what, f"is not JSON: {error}") from error
        value = self._read(data)
        if self.encode(value) != text:
            raise Undecodable(self._what, "is not in canonical form; the journal never wrote this text")
        return value

    def decode_all(self, texts: Sequence[str]) -> list[T] | None:
        """As `decode` of each, faster; None if any cannot be decoded: `decode` says which and why."""
        try:
            data = json.loads(f"[{','.join(texts)}]")
            values = [self._read(item) for item in data]
        except (*_UNEXPECTED, Undecodable):
            return None
        return values if self.encode_all(values) == list(texts) else None

    def _read(self, data: Any) -> T:
        if type(data) is not dict or len(data) != 1:
            raise Undecodable(self._what, "must be an object with one key, the name of its class")
        [(name, fields)] = data.items()
        read = self._readers.get(name) or self._reader(name)
        try:
            value: T = read(fields)
        except _UNEXPECTED:
            value = form_of(self._classes[name]).read(fields, name)
        return value

    def _writer(self, cls: type) -> Writer:
        name = cls.__name__
        if self._classes.get(name) is not cls:
            raise Undecodable(self._what, f"{name} is no class of this protocol's {self._what}s")
        self._writers[cls] = tagged_writer_of(cls)
        return self._writers[cls]

    def _reader(self, name: str) -> Reader:
        if name not in self._classes:
            raise Undecodable(self._what, f"{name!r:.80} is no class of this protocol's {self._what}s; who wrote it?")
        self._readers[name] = reader_of(self._classes[name])
        return self._readers[name]

    def _encode_by_form(self, value: T) -> str:
        name = type(value).__name__
        kind: Any = type(value)
        data = {name: form_of(kind).write(value, name)}
        try:
            return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
        except ValueError as error:  # an int of more digits than Python writes
            raise Undecodable(self._what, f"cannot be written as JSON: {error}") from error


_EVENT: _Family[Event] = _Family("event", EVENTS)
_OUTCOME: _Family[Outcome] = _Family("outcome", OUTCOMES)
_CONFIG: _Family[Config] = _Family("config", {Config.__name__: Config})
_REGISTRY: _Family[Registry] = _Family("registry", {Registry.__name__: Registry})

encode_event, encode_events = _EVENT.encode, _EVENT.encode_all
decode_event, decode_events = _EVENT.decode, _EVENT.decode_all
encode_outcome, encode_outcomes = _OUTCOME.encode, _OUTCOME.encode_all
decode_outcome, decode_outcomes = _OUTCOME.decode, _OUTCOME.decode_all
encode_config, decode_config = _CONFIG.encode, _CONFIG.decode
encode_registry, decode_registry = _REGISTRY.encode, _REGISTRY.decode

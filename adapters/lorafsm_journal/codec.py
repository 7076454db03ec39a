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
from collections.abc import Mapping
from typing import Any, get_args

from lorafsm.events import Event
from lorafsm.outcomes import Outcome
from lorafsm.records import Config, Registry
from lorafsm_journal.compiled import Mismatch, reader_of, writer_of
from lorafsm_journal.errors import Undecodable
from lorafsm_journal.forms import form_of

EVENTS: Mapping[str, type] = {cls.__name__: cls for cls in get_args(Event)}
OUTCOMES: Mapping[str, type] = {cls.__name__: cls for cls in get_args(Outcome)}
_CONFIGS: Mapping[str, type] = {Config.__name__: Config}
_REGISTRIES: Mapping[str, type] = {Registry.__name__: Registry}


def encode_event(event: Event) -> str:
    """The canonical text of an event."""
    return _encode(event, EVENTS, "event")


def decode_event(text: str) -> Event:
    """The event that `text` is the canonical form of."""
    event: Event = _decode(text, EVENTS, "event")
    return event


def encode_outcome(outcome: Outcome) -> str:
    """The canonical text of an outcome."""
    return _encode(outcome, OUTCOMES, "outcome")


def decode_outcome(text: str) -> Outcome:
    """The outcome that `text` is the canonical form of."""
    outcome: Outcome = _decode(text, OUTCOMES, "outcome")
    return outcome


def encode_config(config: Config) -> str:
    """The canonical text of a registry's config."""
    return _encode(config, _CONFIGS, "config")


def decode_config(text: str) -> Config:
    """The config that `text` is the canonical form of."""
    config: Config = _decode(text, _CONFIGS, "config")
    return config


def encode_registry(registry: Registry) -> str:
    """The canonical text of a whole state."""
    return _encode(registry, _REGISTRIES, "registry")


def decode_registry(text: str) -> Registry:
    """The state that `text` is the canonical form of."""
    registry: Registry = _decode(text, _REGISTRIES, "registry")
    return registry


_UNEXPECTED = (Mismatch, KeyError, ValueError, TypeError, AttributeError, RecursionError)


def _encode(value: object, classes: Mapping[str, type], what: str) -> str:
    cls: Any = type(value)
    name = cls.__name__
    if classes.get(name) is not cls:
        raise Undecodable(what, f"{name} is no class of this protocol's {what}s")
    try:
        return f'{{"{name}":{writer_of(cls)(value)}}}'
    except _UNEXPECTED:
        pass  # the form below says what is wrong and where
    data = {name: form_of(cls).write(value, name)}
    try:
        return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except ValueError as error:  # an int of more digits than Python writes
        raise Undecodable(what, f"cannot be written as JSON: {error}") from error


def _decode(text: str, classes: Mapping[str, type], what: str) -> Any:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Undecodable(what, f"is not JSON: {error}") from error
    if type(data) is not dict or len(data) != 1:
        raise Undecodable(what, "must be an object with one key, the name of its class")
    [(name, fields)] = data.items()
    if name not in classes:
        raise Undecodable(what, f"{name!r:.80} is no class of this protocol's {what}s; who wrote it?")
    try:
        value = reader_of(classes[name])(fields)
    except _UNEXPECTED:
        value = form_of(classes[name]).read(fields, name)  # says what is wrong and where
    if _encode(value, classes, what) != text:
        raise Undecodable(what, "is not in canonical form; the journal never wrote this text")
    return value

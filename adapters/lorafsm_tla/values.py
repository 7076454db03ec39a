"""Read what TLC prints: values, states, and the dump of a whole graph.

A value becomes plain JSON in one canonical form, whatever way TLC chose to print it: a set is a sorted list; a
record, a function and a tuple (a function on 1..n) are objects, their keys written as text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from attrs import frozen

Plain: TypeAlias = Any
State: TypeAlias = tuple[tuple[str, str], ...]
"""(variable, its value as canonical JSON), in the order of the variables' names."""

_TOKEN = re.compile(r'\s*(<<|>>|\|->|:>|@@|/\\|"(?:[^"\\]|\\.)*"|-?\d+|\w+|[][{}(),=])')
_NODE = re.compile(r'^(-?\d+) \[label="(.*)"\];?$')
_EDGE = re.compile(r'^(-?\d+) -> (-?\d+) \[label="(\w*)"')


def text_of(value: Plain) -> str:
    """The one text of a plain value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def plain_set(values: Iterator[Plain] | list[Plain]) -> list[Plain]:
    """A set, as the list that stands for it."""
    return sorted(values, key=text_of)


class _Reader:
    def __init__(self, text: str) -> None:
        self.tokens = list(_tokens(text))
        self.at = 0

    def peek(self) -> str | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def take(self, wanted: str | None = None) -> str:
        if self.at >= len(self.tokens):
            raise ValueError(f"a TLA+ value ends where {wanted or 'more'} was expected")
        word = self.tokens[self.at]
        if wanted is not None and word != wanted:
            raise ValueError(f"expected {wanted!r} in a TLA+ value, found {word!r}")
        self.at += 1
        return word

    def value(self) -> Plain:
        word = self.take()
        if word == "{":
            return plain_set(list(self.items("}")))
        if word == "<<":
            return {str(index): item for index, item in enumerate(self.items(">>"), 1)}
        if word == "[":
            return dict(self.fields())
        if word == "(":
            return dict(self.pairs())
        if word.startswith('"'):
            return json.loads(word)
        if word in ("TRUE", "FALSE"):
            return word == "TRUE"
        return int(word) if re.fullmatch(r"-?\d+", word) else word

    def items(self, close: str) -> Iterator[Plain]:
        while self.peek() != close:
            yield self.value()
            if self.peek() == ",":
                self.take()
        self.take(close)

    def fields(self) -> Iterator[tuple[str, Plain]]:
        while self.peek() != "]":
            name = self.take()
            self.take("|->")
            yield name, self.value()
            if self.peek() == ",":
                self.take()
        self.take("]")

    def pairs(self) -> Iterator[tuple[str, Plain]]:
        while True:
            key = self.value()
            self.take(":>")
            yield key if isinstance(key, str) else text_of(key), self.value()
            if self.take() == ")":
                return


def _tokens(text: str) -> Iterator[str]:
    position, text = 0, text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"no TLA+ value: {text[position : position + 40]!r}")
        yield match[1]
        position = match.end()


def read_value(text: str) -> Plain:
    """One value as TLC prints it; raises ValueError for anything else."""
    reader = _Reader(text)
    value = reader.value()
    if reader.peek() is not None:
        raise ValueError(f"something follows a TLA+ value: {reader.peek()!r}")
    return value


def tla_text(value: Plain) -> str:
    """A plain value as a TLA+ expression.  A list is a set; an object whose keys are all numbers is a function."""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, list):
        return "{" + ", ".join(map(tla_text, value)) + "}"
    if isinstance(value, Mapping):
        if not value:
            return "<<>>"
        if all(re.fullmatch(r"-?\d+", key) for key in value):
            return "(" + " @@ ".join(f"{key} :> {tla_text(item)}" for key, item in value.items()) + ")"
        if all(re.fullmatch(r"[A-Za-z_]\w*", key) for key in value):
            return "[" + ", ".join(f"{key} |-> {tla_text(item)}" for key, item in value.items()) + "]"
        return "(" + " @@ ".join(f"{json.dumps(key)} :> {tla_text(item)}" for key, item in value.items()) + ")"
    raise TypeError(f"{type(value).__name__} has no TLA+ form here")


@frozen
class Graph:
    """Initial states, and for each state where each action leads.  Steps that change nothing are left out."""

    initial: frozenset[State]
    steps: Mapping[State, frozenset[tuple[str, State]]]

    @property
    def transitions(self) -> int:
        """(state, action, state)."""
        return sum(map(len, self.steps.values()))


def state_of(values: Mapping[str, Plain]) -> State:
    """The state with these values of its variables."""
    return tuple((name, text_of(values[name])) for name in sorted(values))


def read_dump(path: Path) -> Graph:
    """The graph in a file that TLC wrote with `-dump dot,actionlabels`."""
    texts: dict[str, str] = {}
    states: dict[str, State] = {}
    initial: set[State] = set()
    edges: list[tuple[str, str, str]] = []

    def canonical(text: str) -> str:
        known = texts.get(text)
        if known is None:
            known = texts[text] = text_of(read_value(text))
        return known

    with path.open() as lines:
        for line in lines:
            if edge := _EDGE.match(line):
                edges.append((edge[1], edge[3], edge[2]))
            elif " [label=" in line and (node := _NODE.match(line.rstrip().replace(",style = filled]", "]"))):
                label = node[2].replace("\\\\", "\\").replace("\\n", "\n").replace('\\"', '"')
                variables = (part.split(" = ", 1) for part in ("\n" + label).split("\n/\\ ") if part.strip())
                state = tuple(sorted((name.strip(), canonical(value)) for name, value in variables))
                states[node[1]] = state
                if "style = filled" in line:
                    initial.add(state)
    steps: dict[State, set[tuple[str, State]]] = {state: set() for state in states.values()}
    for source, action, target in edges:
        if source != target:
            steps[states[source]].add((action.removeprefix("MC"), states[target]))
    return Graph(frozenset(initial), {state: frozenset(out) for state, out in steps.items()})

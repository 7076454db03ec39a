"""A whole graph as a small, canonical file, and the shallowest difference between two graphs.

The file is gzip over lines of JSON: the variables; for each variable its values; the states as indices into them,
the initial ones first marked; for each state its steps as [action, state].  States lie in the order of their
texts, so the same graph is the same file.
"""

from __future__ import annotations

import gzip
import json
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path

from attrs import frozen

from lorafsm_tla.values import Graph, State

LIMIT = 1 << 20


def encoded(graph: Graph) -> bytes:
    """The graph as the contents of its file."""
    states = sorted(graph.steps)
    index = {state: number for number, state in enumerate(states)}
    variables = [name for name, _ in states[0]]
    values = [sorted({state[column][1] for state in states}) for column in range(len(variables))]
    places = [{text: place for place, text in enumerate(column)} for column in values]
    actions = sorted({action for out in graph.steps.values() for action, _ in out})
    number_of = {action: number for number, action in enumerate(actions)}
    lines = [
        json.dumps({"variables": variables, "actions": actions, "initial": sorted(index[s] for s in graph.initial)}),
        *(json.dumps(column) for column in values),
        *(json.dumps([places[c][text] for c, (_, text) in enumerate(s)], separators=(",", ":")) for s in states),
        *(
            json.dumps(sorted([number_of[a], index[t]] for a, t in graph.steps[s]), separators=(",", ":"))
            for s in states
        ),
    ]
    return gzip.compress("\n".join(lines).encode(), 9, mtime=0)


def decoded(data: bytes) -> Graph:
    """The graph that `encoded` wrote."""
    head, *lines = gzip.decompress(data).decode().split("\n")
    facts = json.loads(head)
    variables, actions = facts["variables"], facts["actions"]
    values = [json.loads(line) for line in lines[: len(variables)]]
    rows = lines[len(variables) :]
    half = len(rows) // 2
    states: list[State] = [
        tuple((variables[c], values[c][place]) for c, place in enumerate(json.loads(row))) for row in rows[:half]
    ]
    steps = {
        state: frozenset((actions[a], states[t]) for a, t in json.loads(row))
        for state, row in zip(states, rows[half:], strict=True)
    }
    return Graph(frozenset(states[i] for i in facts["initial"]), steps)


def read_golden(path: Path) -> Graph:
    """The committed graph of a model."""
    return decoded(path.read_bytes())


@frozen
class Difference:
    """Where two graphs part for the first time: the actions that lead there, and what only one of them does there."""

    path: tuple[str, ...]
    state: State
    only_left: tuple[tuple[str, State], ...]
    only_right: tuple[tuple[str, State], ...]

    def told(self, left: str, right: str) -> str:
        """The difference in lines for a reader."""
        lines = [f"after {' -> '.join(self.path) or 'the initial state'}:"]
        lines += [f"  {name} = {value}" for name, value in self.state]
        for side, steps in ((left, self.only_left), (right, self.only_right)):
            for action, target in steps[:5]:
                lines.append(f"only {side}: {action}")
                lines += [f"    {n} = {v}" for (n, v), (_, was) in zip(target, self.state, strict=True) if v != was]
            if len(steps) > 5:
                lines.append(f"only {side}: {len(steps) - 5} more")
        return "\n".join(lines)


def first_difference(left: Graph, right: Graph) -> Difference | None:
    """The difference nearest to an initial state, or None: the graphs are equal."""
    if left.initial != right.initial:
        [one, *_] = (left.initial ^ right.initial) or left.initial
        return Difference(
            (),
            one,
            tuple(("Init", s) for s in sorted(left.initial - right.initial)),
            tuple(("Init", s) for s in sorted(right.initial - left.initial)),
        )
    came: dict[State, tuple[State, str] | None] = dict.fromkeys(sorted(left.initial))
    queue = deque(came)
    while queue:
        state = queue.popleft()
        here, there = left.steps[state], right.steps[state]
        if here != there:
            return Difference(_path(came, state), state, tuple(sorted(here - there)), tuple(sorted(there - here)))
        for action, target in sorted(here):
            if target not in came:
                came[target] = state, action
                queue.append(target)
    return None


def _path(came: Mapping[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    actions: list[str] = []
    while (origin := came[state]) is not None:
        state, action = origin
        actions.append(action)
    return tuple(reversed(actions))


def actions_of(graphs: Iterable[Graph]) -> frozenset[str]:
    """Every action that is taken somewhere."""
    return frozenset(action for graph in graphs for out in graph.steps.values() for action, _ in out)

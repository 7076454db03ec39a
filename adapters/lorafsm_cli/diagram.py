"""State diagrams of the lifecycles: Mermaid as text, SVG through Graphviz.

Both are drawn from the `transitions` machine of a table, and show the rows that change the state.  The files under
`spec/diagrams/` are written by `python -m lorafsm_cli.diagram`; a test says when they are stale, for which Graphviz is
not needed: each SVG carries the digest of the text that it was drawn from.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import Any

from attrs import frozen

from lorafsm_cli.tables import ABSENT, NAMES, Table, machine_of, read_table, spec_dir


@frozen
class Edge:
    """All events that lead from one state to another."""

    source: str
    dest: str
    events: tuple[str, ...]  # in the table's order; the events of other records are marked by a star


def edges_of(machine: Any) -> tuple[Edge, ...]:
    """The machine's changes of state, one edge per pair of states."""
    found: dict[tuple[str, str], list[str]] = {}
    for trigger, event in machine.events.items():
        for source, transitions in event.transitions.items():
            for transition in transitions:
                if transition.dest is not None and transition.dest != source:
                    labels = found.setdefault((source, transition.dest), [])
                    labels.append(trigger.replace(" of others", "*"))
    order = list(machine.states)
    pairs = sorted(found, key=lambda pair: (order.index(pair[0]), order.index(pair[1])))
    return tuple(Edge(source, dest, tuple(dict.fromkeys(found[source, dest]))) for source, dest in pairs)


def finals_of(machine: Any) -> tuple[str, ...]:
    """States that nothing leaves."""
    left = {edge.source for edge in edges_of(machine)}
    return tuple(state for state in machine.states if state not in left)


def mermaid(lifecycle: str) -> str:
    """A Mermaid stateDiagram of one lifecycle; an event with a star names another record than this one."""
    machine = machine_of(read_table(lifecycle))
    lines = ["stateDiagram-v2"]
    for edge in edges_of(machine):
        source = "[*]" if edge.source == ABSENT else edge.source
        lines.append(f"    {source} --> {edge.dest}: {', '.join(edge.events)}")
    lines += [f"    {state} --> [*]" for state in finals_of(machine)]
    return "\n".join(lines) + "\n"


def dot(lifecycle: str) -> str:
    """The same diagram in Graphviz's language."""
    machine = machine_of(read_table(lifecycle))
    finals = finals_of(machine)
    return "\n".join([f"digraph {lifecycle} {{", *_style(), *_nodes(machine, finals), *_arrows(machine), "}"]) + "\n"


def _style() -> Iterator[str]:
    yield '  graph [rankdir=TB nodesep=0.6 ranksep=0.55 bgcolor="white" pad=0.2]'
    yield (
        '  node [shape=box style="rounded,filled" fillcolor="#eef3fb" color="#33527a" fontname="Helvetica" '
        "fontsize=12 margin=0.18]"
    )
    yield '  edge [color="#5b6b7f" fontname="Helvetica" fontsize=10 fontcolor="#33414f" arrowsize=0.7]'


def _nodes(machine: Any, finals: tuple[str, ...]) -> Iterator[str]:
    for state in machine.states:
        if state == ABSENT:
            yield f'  "{state}" [shape=circle label="" width=0.16 fillcolor="#33414f" color="#33414f"]'
        elif state in finals:
            yield f'  "{state}" [peripheries=2 fillcolor="#f4f4ef"]'
        else:
            yield f'  "{state}"'


def _arrows(machine: Any) -> Iterator[str]:
    for edge in edges_of(machine):
        label = "\\l".join(edge.events) + "\\l"
        yield f'  "{edge.source}" -> "{edge.dest}" [label="{label}"]'


def digest_of(text: str) -> str:
    """What an SVG says of the text that it was drawn from."""
    return hashlib.sha256(text.encode()).hexdigest()


def svg(lifecycle: str) -> str:
    """The diagram as SVG; RuntimeError where Graphviz is missing."""
    program = which("dot")
    if program is None:
        raise RuntimeError("drawing SVG needs Graphviz: install the package that brings `dot`, then run this again")
    text = dot(lifecycle)
    drawn = subprocess.run([program, "-Tsvg"], input=text, capture_output=True, text=True, check=True).stdout
    start = drawn.index("<svg")
    return f"<!-- {lifecycle}: drawn from {digest_of(text)} -->\n{drawn[start:]}"


def page(table: Table) -> str:
    """A page with the Mermaid diagram, the states' meanings, and a link to the picture."""
    name = table.lifecycle
    states = [f"* `{state}`: {words}" for state, words in table.states.items() if state != ABSENT]
    return "\n".join(
        [
            f"# {name}",
            "",
            f"Drawn from [`{name}.toml`](../{name}.toml) by `python -m lorafsm_cli.diagram`; [picture]({name}.svg).",
            "A star marks an event that names another record.",
            "",
            "```mermaid",
            mermaid(name).rstrip(),
            "```",
            "",
            *states,
            "",
        ]
    )


def write_all(where: Path) -> tuple[Path, ...]:
    """Write a page and a picture of every lifecycle into `where/diagrams`; the paths written."""
    folder = where / "diagrams"
    folder.mkdir(exist_ok=True)
    written = []
    for name in NAMES:
        for suffix, text in ((".md", page(read_table(name))), (".svg", svg(name))):
            path = folder / f"{name}{suffix}"
            path.write_text(text, encoding="utf-8")
            written.append(path)
    return tuple(written)


if __name__ == "__main__":
    for path in write_all(spec_dir()):
        print(path)

"""What a benchmark says: figures with a name and a unit, goals for some of them, a table and a JSON file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from math import inf
from pathlib import Path

from attrs import asdict, frozen
from rich.table import Table
from rich.text import Text


@frozen
class Figure:
    """One measured number.  `peer` names what it is compared with; `ratio` is value / peer_value."""

    name: str
    value: float
    unit: str
    peer: str = ""  # "": it stands alone
    peer_value: float | None = None

    @property
    def ratio(self) -> float | None:
        """How many times the peer's value; below 1: less than the peer."""
        return self.value / self.peer_value if self.peer_value else None


@frozen
class Goal:
    """The largest value, or the largest ratio, that is good enough; with `at_least` the smallest."""

    at_most: float = inf
    of_ratio: bool = False
    at_least: float = -inf

    def met_by(self, figure: Figure) -> bool:
        """Whether the figure is within the goal."""
        judged = figure.ratio if self.of_ratio else figure.value
        return judged is not None and self.at_least <= judged <= self.at_most


def write_json(path: Path, figures: Iterable[Figure], *, keep: bool) -> None:
    """Write the figures as a list of {name, value, unit, peer, peer_value, ratio}.

    With `keep`, figures of other names that the file already holds stay: so a part of the benchmarks may run alone.
    """
    rows = [{**asdict(figure), "peer": figure.peer or None, "ratio": figure.ratio} for figure in figures]
    names = {row["name"] for row in rows}
    if keep and path.exists():
        rows = [row for row in json.loads(path.read_text()) if row["name"] not in names] + rows
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows, indent=1) + "\n")


def as_table(figures: Iterable[Figure], goals: Mapping[str, Goal]) -> Table:
    """The figures for a reader, with what became of each goal."""
    table = Table("name", "value", "unit", "peer", "peer's value", "ratio", "goal")
    for column in (table.columns[1], table.columns[4], table.columns[5]):
        column.justify = "right"
    for figure in figures:
        table.add_row(
            figure.name,
            _short(figure.value),
            figure.unit,
            figure.peer,
            _short(figure.peer_value),
            _short(figure.ratio),
            _verdict(figure, goals.get(figure.name)),
        )
    return table


def _verdict(figure: Figure, goal: Goal | None) -> Text:
    if goal is None:
        return Text("")
    met = goal.met_by(figure)
    what = "ratio " if goal.of_ratio else ""
    limit = f"≤ {_short(goal.at_most)}" if goal.at_most < inf else f"≥ {_short(goal.at_least)}"
    return Text(f"{what}{limit}: {'met' if met else 'missed'}", "green" if met else "bold red")


def _short(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"

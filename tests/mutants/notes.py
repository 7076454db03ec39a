"""What is known of mutants: who saw each in the last whole run, and which are no change at all."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
README = HERE.parents[1] / "tla" / "README.md"
BEGIN, END = "<!-- mutants -->", "<!-- end: mutants -->"
Notes = dict[str, str]
"""The killer of each mutant, by id; empty: it is equivalent."""


def read_notes(part: str) -> Notes:
    """The killers of the last whole run."""
    path = HERE / "killers.json"
    return json.loads(path.read_text()).get(part, {}) if path.is_file() else {}


def equivalent(part: str) -> dict[str, str]:
    """The mutants that change nothing, and why not."""
    entries = tomllib.loads((HERE / "equivalents.toml").read_text()).get(part, [])
    return {name: entry["why"] for entry in entries for name in entry["mutants"]}


def table() -> str:
    """The last whole run as a table in Markdown."""
    if not read_notes("core") and not read_notes("spec"):
        return "No whole run is noted yet."
    lines = ["| part | kind | mutants | seen | equivalent |", "|---|---|---:|---:|---:|"]
    for part in ("core", "spec"):
        notes, excused = read_notes(part), equivalent(part)
        if not notes:
            continue
        kinds = Counter(kind_of(name) for name in notes)
        same = Counter(kind_of(name) for name in notes if name in excused)
        for kind, count in sorted(kinds.items()):
            lines.append(f"| {part} | {kind} | {count} | {count - same[kind]} | {same[kind]} |")
        total, none = sum(kinds.values()), sum(same.values())
        lines.append(f"| {part} | together | {total} | {total - none} | {none} |")
    return "\n".join(lines)


def kind_of(name: str) -> str:
    """The kind of a mutant, from its id."""
    return name.split(": ")[1]


def written(results: Path) -> None:
    """Note the results of a whole run, and put the table into tla/README.md."""
    notes = {}
    for part in ("core", "spec"):
        path = results / f"{part}.json"
        notes[part] = json.loads(path.read_text()) if path.is_file() else read_notes(part)
    (HERE / "killers.json").write_text(json.dumps(notes, indent=0, sort_keys=True) + "\n")
    before, found, rest = README.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    if not found or not after:
        raise SystemExit(f"{README} lacks {BEGIN} or {END}, between which the table stands")
    README.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after}")

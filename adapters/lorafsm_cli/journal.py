"""`lorafsm journal`: whether a journal is whole, what is in it, and making it smaller."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from attrs import asdict
from rich.console import Console
from rich.table import Table

from lorafsm_cli.one_line import OneLineGroup
from lorafsm_journal import Journal, Level, cut
from lorafsm_journal.recovery import read_row
from lorafsm_journal.view import View

app = typer.Typer(cls=OneLineGroup, help="Look at a registry's journal, and make it smaller.", rich_markup_mode=None)

File = Annotated[Path, typer.Argument(help="Journal file of a registry.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout and nothing else.")]


@app.command()
def verify(journal: File, as_json: Json = False) -> None:
    """Read and replay every row, and hold every snapshot against the replay; the writer may live."""
    with Journal.read(journal) as reader:
        found = reader.verify()
    facts = {
        "journal": str(journal),
        "ok": True,
        "epoch": found.registry.epoch,
        "base": found.base,
        "rows": found.rows,
        "accepted": found.accepted,
        "refused": found.refused,
        "snapshots": list(found.snapshots),
    }
    _say(
        facts,
        f"{journal}: rows {found.base + 1} to {found.rows} are what was written ({found.accepted} accepted, "
        f"{found.refused} refused) and are answered the same; snapshots after rows {_listed(found.snapshots)} equal it",
        as_json,
    )


@app.command()
def show(
    journal: File,
    last: Annotated[int, typer.Option(min=0, help="So many of the last rows.")] = 20,
    as_json: Json = False,
) -> None:
    """What a journal is, and its last rows; tokens are not shown.  The writer may live."""
    with View(journal) as view:
        rows = [read_row(view, texts) for texts in view.last(last)]
        facts: dict[str, Any] = {
            "journal": str(journal),
            "epoch": view.about.epoch,
            "config": asdict(view.about.config),
            "writer": view.head.writer,
            "base": view.about.base,
            "rows": view.head.number,
            "snapshots": sorted(snapshot.number for snapshot in view.snapshots()),
        }
    facts["last"] = [
        {
            "row": row.number,
            "event": type(row.event).__name__,
            "now": getattr(row.event, "now", 0),
            "outcome": type(row.outcome).__name__,
            "code": row.outcome.code,
            "reason": getattr(row.outcome, "reason", ""),
        }
        for row in rows
    ]
    if as_json:
        _say(facts, "", as_json)
        return
    table = Table("row", "event", "now", "answer", title=f"{journal}: epoch {facts['epoch']}", title_justify="left")
    for row in facts["last"]:
        answer = f"{row['code']}: {row['reason']}" if row["outcome"] == "Refusal" else row["outcome"]
        table.add_row(str(row["row"]), row["event"], str(row["now"]), answer)
    Console().print(table)
    typer.echo(
        f"rows {facts['base'] + 1} to {facts['rows']}, writer {facts['writer']}, "
        f"snapshots after rows {_listed(facts['snapshots'])}"
    )


@app.command()
def compact(
    journal: File,
    epochs: Annotated[Path | None, typer.Option(help="File of epochs used, where journals share one.")] = None,
    trust_snapshot: Annotated[
        bool, typer.Option("--trust-snapshot", help="Do not replay first: let the latest good snapshot be the state.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Replay everything, then let a snapshot stand for all rows; no writer may live.  The history is gone then."""
    with Journal.read(journal) as reader:
        config, epoch = reader.config, reader.epoch
    with Journal.open(journal, config, epoch, Level.POWER, epochs) as writer:
        dropped = writer.compact(writer.recover() if trust_snapshot else writer.verify().registry)
        facts = {"journal": str(journal), "dropped": dropped, "base": len(writer)}
    _say(facts, f"{journal}: {dropped} rows dropped; a snapshot stands for rows 1 to {facts['base']}", as_json)


@app.command("cut")
def cut_command(
    journal: File,
    row: Annotated[int, typer.Option("--from", min=1, help="The first damaged row, as `verify` names it.")],
    to: Annotated[Path, typer.Option(help="New journal file for the rows before it; the damaged one stays.")],
    drop_following: Annotated[
        bool, typer.Option("--drop-following", help="Lose the rows after it, which were acknowledged.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Copy the rows before the damage to a new journal; no writer may live."""
    done = cut(journal, row, to, drop_following=drop_following)
    facts = {"journal": str(journal), "to": str(to), "kept": done.kept, "lost": done.lost, "damage": done.damage}
    _say(facts, f"{to}: rows up to {done.kept}; {done.lost} rows, which were acknowledged, are lost", as_json)


def _say(facts: dict[str, Any], sentence: str, as_json: bool) -> None:
    from lorafsm_cli.main import print_json

    print_json(facts) if as_json else typer.echo(sentence)


def _listed(numbers: Any) -> str:
    return ", ".join(map(str, numbers)) or "none"

"""The command `lorafsm`."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from lorafsm_cli.journal import app as journal_app
from lorafsm_cli.kv import app as kv_app
from lorafsm_cli.one_line import CliError, OneLineGroup

app = typer.Typer(
    cls=OneLineGroup,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
    help="Publish, bind and reclaim LoRA versions on live inference engines.",
)

app.add_typer(journal_app, name="journal")
app.add_typer(kv_app, name="kv")

Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout and nothing else.")]


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(f"lorafsm {installed_version('lorafsm')}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Say the version and exit.")
    ] = False,
) -> None:
    """Publish, bind and reclaim LoRA versions on live inference engines."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for report.json, report.html, the journal and the logs.")],
    engines: Annotated[int, typer.Option(min=2, max=16, help="How many SGLang engines to start.")] = 2,
    transport: Annotated[
        str, typer.Option(help="torch: buckets over torch.distributed; store: engines read the artifact store.")
    ] = "torch",
    registry: Annotated[
        str, typer.Option(help="ray: an actor of a Ray cluster of its own; local: in this process; left out: ray.")
    ] = "",
    as_json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress on stderr.")] = False,
) -> None:
    """The main job on real engines: publish, bind, reclaim and abort while sessions generate."""
    from lorafsm_cli.demo import run

    if out.exists() and not out.is_dir():
        raise CliError(f"--out: {out} is a file; name a folder")
    report = run(out, engines, transport, registry, quiet=quiet, keep_stdout_clean=as_json)
    if as_json:
        print_json(report)
    else:
        from lorafsm_cli.demo import show

        show(report, out, Console())
    if not report["ok"]:
        raise typer.Exit(1)


@app.command()
def experiment(
    out: Annotated[Path, typer.Option(help="Folder for report.json, report.html, journals and logs.")],
    profile: Annotated[str, typer.Option(help="cpu: a tiny model, gloo; cuda: a model by path, NCCL.")] = "cpu",
    plan: Annotated[Path | None, typer.Option(help="A plan; left out: the profile's own.")] = None,
    sections: Annotated[str, typer.Option(help="Some of numeric,kv,online,comparison; left out: all.")] = "",
    publications: Annotated[int, typer.Option(min=0, help="In a row, in place of the plan's; 500: a soak.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check all, print the plan, start nothing.")] = False,
    as_json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress on stderr.")] = False,
) -> None:
    """The acceptance run by a fixed plan: numbers, KV isolation, online publication, one report."""
    from lorafsm_cli.experiment import run, show, show_dry

    if profile not in ("cpu", "cuda"):
        raise CliError(f"--profile: {profile} is not known; take cpu or cuda")
    found = run(
        profile,
        plan,
        out,
        dry=dry_run,
        quiet=quiet,
        keep_stdout_clean=as_json,
        sections=sections,
        publications=publications,
    )
    if as_json:
        print_json(found)
    elif dry_run:
        show_dry(found, Console())
    else:
        show(found, out, Console())
    if not found["ok"]:
        raise typer.Exit(1)


@app.command()
def status(
    journal: Annotated[
        Path | None, typer.Option(help="Journal file of a registry; may be in use by its writer.")
    ] = None,
    registry: Annotated[str, typer.Option(help="Name of a registry that runs in a Ray cluster.")] = "",
    address: Annotated[
        str, typer.Option(help="The cluster, with --registry; left out: the one that Ray finds.")
    ] = "auto",
    watch: Annotated[bool, typer.Option("--watch", help="With --registry: draw it anew until interrupted.")] = False,
    as_json: Json = False,
) -> None:
    """Who holds what, what is under way, and what the next reserve waits for, of a journal or a running registry."""
    if bool(registry) == (journal is not None):
        raise CliError("name a --journal, or a running --registry")
    if journal is not None:
        _status_of_journal(journal, as_json)
        return
    from lorafsm_cli.live_status import connected, drawn, stream, watched

    client, console = connected(registry, address), Console()
    if watch:
        stream(client) if as_json else watched(client, console)
    elif as_json:
        print_json(client.live().as_dict())
    else:
        console.print(drawn(client.live(), console))


def _status_of_journal(journal: Path, as_json: bool) -> None:
    from lorafsm.status import status as status_of
    from lorafsm_cli.status_tables import show
    from lorafsm_journal import Journal

    with Journal.read(journal) as reader:
        found, rows = status_of(reader.recover()), len(reader)
    if as_json:
        print_json({**found.as_dict(), "journal": str(journal), "journal_rows": rows})
    else:
        show(found, f"{rows} rows of {journal}; ages count to its latest event", Console())


@app.command()
def diagram(
    lifecycle: Annotated[str, typer.Argument(help="version, attempt, target, session, ... ; left out: all.")] = "",
    format_: Annotated[str, typer.Option("--format", help="Only mermaid.")] = "mermaid",
    as_json: Json = False,
) -> None:
    """State diagrams of the lifecycles, drawn from the tables of spec/."""
    from lorafsm_cli.lifecycles import diagrams

    if format_ != "mermaid":
        raise CliError(f"--format: {format_} is not known; take mermaid")
    drawn = diagrams(lifecycle)
    if as_json:
        print_json(drawn)
    elif lifecycle:
        typer.echo(drawn[lifecycle])
    else:
        typer.echo("\n".join(f"%% {name}\n{text.strip()}\n" for name, text in drawn.items()).rstrip())


trace = typer.Typer(cls=OneLineGroup, help="Check journals against the formal specification.", rich_markup_mode=None)
app.add_typer(trace, name="trace")


@trace.command("check")
def trace_check(
    journal: Annotated[Path, typer.Argument(help="A journal file; its writer may live.")],
    as_json: Json = False,
) -> None:
    """Whether TLC accepts every row of a journal, state by state, as a behaviour of LoraRegistry.tla (needs Java)."""
    from lorafsm_tla.jar import java, tla2tools
    from lorafsm_tla.trace import check_journal

    java(), tla2tools()  # say what is missing before anything starts
    said = check_journal(journal)
    print_json({"journal": str(journal), "accepted": True, "said": said}) if as_json else typer.echo(said)


@app.command()
def explore(
    box: Annotated[str, typer.Option(help="Name of a box; left out: every box that is searched to its end.")] = "",
    max_states: Annotated[int, typer.Option(min=1, help="Give a box up at so many states.")] = 2_000_000,
    simulate: Annotated[int, typer.Option(min=0, help="So many random walks instead of a search.")] = 0,
    seed: Annotated[int, typer.Option(help="Of the random walks.")] = 1,
    weak: Annotated[str, typer.Option(help="Show how a weak variant of the protocol is caught.")] = "",
    as_list: Annotated[bool, typer.Option("--list", help="Name the boxes and search none.")] = False,
    as_json: Json = False,
) -> None:
    """Visit every state of a small world, of the registry or of the whole system, and check the invariants in each."""
    from lorafsm_cli.explore_boxes import chosen, names, search, show, wander, weakened

    if as_list:
        print_json(names()) if as_json else typer.echo("\n".join(names()))
        return
    if weak:
        caught = weakened(weak)
        print_json(caught) if as_json else typer.echo(caught["page"] or f"{weak} is not caught in its box")
        raise typer.Exit(0 if caught["caught"] else 1)
    boxes = chosen(box)
    results = list(wander(boxes, simulate, seed) if simulate else search(boxes, max_states))
    if as_json:
        print_json(results)
    else:
        show(results, Console())
    if not all(result["ok"] for result in results):
        raise typer.Exit(1)

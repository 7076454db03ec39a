"""`lorafsm kv`: a trace of requests through the session-aware cache policy, on a virtual clock."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from attrs import asdict, fields
from rich.console import Console
from rich.table import Table

from lorafsm.errors import InvalidField
from lorafsm.kv import CacheConfig, Policy, SessionCache
from lorafsm.kv.replay import Belady, Infinite, Pool, Report, Trace, replay
from lorafsm_cli.kv_generate import Agentic, agentic
from lorafsm_cli.kv_traces import load
from lorafsm_cli.one_line import CliError

if TYPE_CHECKING:
    from collections.abc import Mapping

GENERATED = "agentic"

app = typer.Typer(help="The session-aware, version-aware KV cache policy.", rich_markup_mode=None)


@app.callback()
def root() -> None:
    """The session-aware, version-aware KV cache policy."""


@app.command("replay")
def replay_command(
    trace: Annotated[str, typer.Argument(help="File or folder of a trace, or agentic[:seed=1,leak=0.3,...].")],
    pool: Annotated[int, typer.Option(min=1, help="Blocks that the pool holds.")],
    policy: Annotated[Policy, typer.Option(help="Base policy, within one class and number of refs.")] = Policy.LRU,
    sessions: Annotated[bool, typer.Option(help="Whether sessions protect their KV.")] = True,
    ttl: Annotated[
        int, typer.Option(min=0, help="ms without a request after which a session expires; 0: never.")
    ] = 60_000,
    branches: Annotated[int, typer.Option(min=1, help="Branches that a session protects at a time.")] = 2,
    format_: Annotated[str, typer.Option("--format", help="mooncake, bailian or agent; left out: by its fields.")] = "",
    close: Annotated[bool, typer.Option("--close", help="Close a file's sessions after their last request.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the hit rate over the trace into this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout and nothing else.")] = False,
) -> None:
    """Replay a trace; say what it hit, what had to be computed again, and how far the best possible is."""
    from lorafsm_cli.main import print_json

    read = trace_of(trace, format_, close=close)
    config = CacheConfig(policy=policy, sessions=sessions, ttl=ttl, branches=branches)
    reports = {
        "ours": replay(read, Pool(SessionCache(config), pool)),
        "belady": replay(read, Belady(read, pool)),
        "infinite": replay(read, Infinite()),
    }
    if plot is not None:
        draw(plot, reports, f"{trace}: pool of {pool:,} blocks")
    found = summary(reports)
    if as_json:
        print_json({"trace": trace, "pool": pool, "block": read.block, **found})
    else:
        show(found, Console())


def trace_of(name: str, format_: str = "", *, close: bool = False) -> Trace:
    """The trace of a file or folder, or a generated one."""
    if name == GENERATED or name.startswith(f"{GENERATED}:"):
        return agentic(shape_of(name.partition(":")[2]))
    path = Path(name)
    if not path.exists():
        raise CliError(f"{name}: no such file; name a trace, or {GENERATED}")
    return load(path, format_, close=close)


def shape_of(text: str) -> Agentic:
    """`seed=1,leak=0.3` as the shape of a generated trace."""
    kinds: Mapping[str, type[int] | type[float]] = {
        field.name: float if isinstance(field.default, float) else int for field in fields(Agentic)
    }
    chosen: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if name not in kinds:
            raise InvalidField("trace", f"{GENERATED} has no {name}; take {', '.join(kinds)}")
        try:
            chosen[name] = kinds[name](value)
        except ValueError:
            raise InvalidField(name, f"must be {'a number' if kinds[name] is float else 'an integer'}") from None
    return Agentic(**chosen)


def summary(reports: Mapping[str, Report]) -> dict[str, Any]:
    """The figures of a replay, and their distance to the offline optimum and to a pool without end."""
    ours = reports["ours"]
    rate = ours.sessions.hit_rate
    return {
        "requests": ours.requests,
        "session_hit_rate": rate,
        "one_shot_hit_rate": ours.one_shot.hit_rate,
        "recomputed_tokens": ours.recomputed_tokens,
        "victims": ours.victims,
        "live_victims": ours.live_victims,
        "referenced_victims": ours.referenced_victims,
        "not_stored": ours.not_stored,
        "belady_hit_rate": reports["belady"].sessions.hit_rate,
        "infinite_hit_rate": reports["infinite"].sessions.hit_rate,
        "distance_to_belady": reports["belady"].sessions.hit_rate - rate,
        "distance_to_infinite": reports["infinite"].sessions.hit_rate - rate,
        "session_tokens": asdict(ours.sessions),
        "one_shot_tokens": asdict(ours.one_shot),
        "hit_rates": ours.hit_rates,
    }


def show(found: Mapping[str, Any], console: Console) -> None:
    """The same as a table."""
    table = Table("figure", "value", show_header=False)
    table.columns[1].justify = "right"
    for name, value in found.items():
        if isinstance(value, float):
            table.add_row(name.replace("_", " "), f"{value:.4f}")
        elif isinstance(value, int):
            table.add_row(name.replace("_", " "), f"{value:,}")
    console.print(table)


def draw(path: Path, reports: Mapping[str, Report], title: str) -> None:
    """The hit rate of session requests in ten equal parts of the trace."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise CliError("--plot needs matplotlib: pip install 'lorafsm[cli]'") from None
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name, report in reports.items():
        axes.plot(range(1, 11), report.hit_rates, marker="o", label=name)
    axes.set(title=title, xlabel="tenth of the trace", ylabel="token hit rate of session requests", ylim=(0, 1))
    axes.legend()
    figure.savefig(path)

"""`lorafsm status --registry`: the same page of a registry that runs, with its last events; once or again and again."""

from __future__ import annotations

import json
import socket
import sys
import time
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live as Screen
from rich.text import Text

from lorafsm_cli.one_line import CliError
from lorafsm_cli.status_tables import duration, show, titled

if TYPE_CHECKING:
    from lorafsm_ray import BlockingClient, Live

_REFRESH_S = 1.0  # ages move without any event
_PATIENCE_S = 10.0


def stream(client: BlockingClient) -> None:
    """One JSON document a line, now and after every change, until interrupted."""
    while True:
        live = client.live()
        sys.stdout.write(json.dumps(live.as_dict(), ensure_ascii=False, allow_nan=False) + "\n")
        sys.stdout.flush()
        while client.changed(live.accepted, 60.0) == live.accepted:
            pass


def watched(client: BlockingClient, console: Console) -> None:
    """Draw the page anew each second until interrupted; an outage is shown and waited out."""
    from lorafsm_asyncio.client import RegistryUnavailable

    last: RenderableType = drawn(client.live(), console)
    with Screen(last, console=console, screen=console.is_terminal, auto_refresh=False) as screen:
        while True:
            try:
                last = drawn(client.live(), console)
                screen.update(last, refresh=True)
                time.sleep(_REFRESH_S)
            except RegistryUnavailable as error:
                screen.update(Group(Text(str(error), "bold red"), last), refresh=True)


def connected(name: str, address: str) -> BlockingClient:
    """A client for the registry of this name, in the cluster that this process is in or else the one at `address`."""
    try:
        import ray

        from lorafsm_ray import Patience, connect_blocking
    except ImportError as error:
        raise CliError(f"--registry needs the extra lorafsm[ray]: {error}") from error
    if not ray.is_initialized():
        _require_listener(address)
        try:
            ray.init(address=address, log_to_driver=False, configure_logging=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise CliError(f"--address: no Ray cluster at {address}: {error}") from error
    return connect_blocking(name, Patience(deadline_s=_PATIENCE_S))


def _require_listener(address: str) -> None:
    """Ray would try for minutes to reach an address where nobody listens."""
    host, colon, port = address.rpartition(":")
    if "://" in address or not colon or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE_S).close()
    except (OSError, OverflowError) as error:
        raise CliError(f"--address: no Ray cluster at {address}: {error}") from error


def drawn(live: Live, console: Console) -> RenderableType:
    """The page: the status as of a journal, then who asks for what."""
    source = (
        f"registry {live.name}, pid {live.pid} on {live.node}, up {duration(live.status.now - live.since)}; "
        f"{live.rows} rows of {live.journal} (level {live.level})"
    )
    with console.capture() as capture:
        show(live.status, source, console)
    events = titled(f"Last {len(live.last)} events, the newest first", "before", "event", "outcome")
    for happened in reversed(live.last):
        colour = "" if happened.code in ("OK", "ALREADY_CLOSED") else "yellow"
        ago = duration(max(0, live.status.now - happened.at))
        events.add_row(ago, happened.event, Text(happened.code, colour))
    notes = [Text("Requests in flight are not here: each engine counts its own.", "dim")]
    if live.hook_errors:
        notes.append(Text(f"on_event raised {live.hook_errors} times", "bold red"))
    return Group(Text.from_ansi(capture.get()), events, *notes)

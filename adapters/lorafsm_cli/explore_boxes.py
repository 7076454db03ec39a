"""`lorafsm explore`: the explorer of the core, by the name of a box."""

from __future__ import annotations

from typing import Any

from lorafsm_cli.one_line import CliError


def run(box: str) -> dict[str, Any]:
    """Explore one box, or all; raises CliError while this lorafsm has no explorer."""
    raise CliError(f"explore: this lorafsm has no explorer yet (box {box or 'all'})")

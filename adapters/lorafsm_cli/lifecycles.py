"""Which lifecycles can be drawn."""

from __future__ import annotations

from lorafsm_cli.one_line import CliError

LIFECYCLES = ("version", "attempt", "target", "owner", "session", "reclaim", "unload", "repair", "engine")


def diagrams(lifecycle: str = "") -> dict[str, str]:
    """Mermaid text of one lifecycle, or of all, by name; raises CliError for a name that is none."""
    if lifecycle and lifecycle not in LIFECYCLES:
        raise CliError(f"LIFECYCLE: {lifecycle} is none; take one of {', '.join(LIFECYCLES)}")
    try:
        from lorafsm_cli.diagram import mermaid
    except ModuleNotFoundError as missing:
        raise CliError(
            f"lorafsm diagram needs {missing.name}; run: pip install 'lorafsm[cli]'  (in a checkout: make venv)"
        ) from missing
    return {name: mermaid(name) for name in ([lifecycle] if lifecycle else LIFECYCLES)}

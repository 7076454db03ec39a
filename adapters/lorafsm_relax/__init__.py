"""The hooks that put lorafsm into Relax, each callable in a few lines (README.md shows each place before and after).

Importing this module imports nothing else of lorafsm: with the switch off, the old path is what it was (M17).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from lorafsm_relax.switch import versioned_enabled

_WHERE = {
    "VersionedShard": "shard",
    "VersionedUpdate": "update",
    "PublicationFatal": "update",
    "add_arguments": "arguments",
    "check_arguments": "arguments",
    "config_of": "arguments",
    "deployment_of": "arguments",
    "fill_arguments": "arguments",
    "guarded_engines": "fleet",
    "guarded_seats": "fleet",
    "run_services": "fleet",
    "post_once": "generate",
    "sample_fields": "generate",
    "versioned_attempt": "shard",
    "versioned_payload": "generate",
    "versioned_publication": "publication",
    "wait_for_engines": "fleet",
}

__all__ = ["versioned_enabled", *sorted(_WHERE)]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)

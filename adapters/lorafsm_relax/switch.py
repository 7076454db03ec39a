"""The switch.  Imports nothing, so that asking costs nothing where it is off."""

from __future__ import annotations

from typing import Any


def versioned_enabled(args: Any) -> bool:
    """Whether `--enable-versioned-lora-publication` was given.

    What it needs besides is checked once, at the start (`check_arguments`): a switch that is on and does nothing is
    an error there, not a silent fallback here.
    """
    return bool(getattr(args, "enable_versioned_lora_publication", False))

"""A guard inside SGLang's own process: managed versions are served exactly or not at all.

This module imports httpx and attrs only; what runs inside SGLang is imported there, by `plugin`.
"""

from lorafsm_sglang.guard.attestation import Attestation, AttestationError
from lorafsm_sglang.guard.client import GuardedEngine
from lorafsm_sglang.guard.settings import GuardSettings, guard_environment, settings_from, write_token

__all__ = [
    "Attestation",
    "AttestationError",
    "GuardSettings",
    "GuardedEngine",
    "guard_environment",
    "settings_from",
    "write_token",
]

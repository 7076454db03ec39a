"""The proof that an engine is guarded, which a publisher asks for before it trusts the engine with a version.

SGLang only logs a plugin that fails.  So the absence of this proof is the sign, and everything in it is judged by
the publisher again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from lorafsm.errors import LoraFsmError
from lorafsm.identity import fault_in_count, fault_in_digest, fault_in_identifier
from lorafsm_sglang.guard.configuration import faults_in
from lorafsm_sglang.guard.versions import GUARD_VERSION, SUPPORTED


class AttestationError(LoraFsmError):
    """The engine did not prove that it is guarded (ENGINE_UNGUARDED); publish nothing on it."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__("ENGINE_UNGUARDED", message, field)

    def __reduce__(self) -> tuple[type[AttestationError], tuple[str, str | None]]:
        return type(self), (self.message, self.field)


@frozen(kw_only=True)
class Attestation:
    """What a guarded engine says of itself: versions, who it is, what its versions rest on."""

    guard_version: str
    sglang_version: str
    engine: str
    epoch: str
    incarnation: int
    base_fingerprint: str
    capacity: int
    unmanaged: bool
    configuration: Mapping[str, Any]


def judge(data: Any) -> Attestation:
    """The attestation in an engine's answer; AttestationError naming the first thing that is not proved."""
    if type(data) is not dict:
        raise AttestationError("the answer is no attestation")
    lacking = [name for name in (*Attestation.__annotations__, "active", "faults", "self_test") if name not in data]
    if lacking:
        raise AttestationError("is missing", lacking[0])
    if data["guard_version"] != GUARD_VERSION:
        raise AttestationError(f"is {data['guard_version']!r:.40}, not {GUARD_VERSION}", "guard_version")
    if data["sglang_version"] not in SUPPORTED:
        raise AttestationError(f"{data['sglang_version']!r:.40} is not supported", "sglang_version")
    if data["self_test"]:
        raise AttestationError(f"{data['self_test'][0]!s:.200}", "self_test")
    if data["active"] is not True or data["faults"]:
        raise AttestationError(f"the guard is not active: {'; '.join(map(str, data['faults'])):.400}", "active")
    checks = (
        ("engine", fault_in_identifier(data["engine"])),
        ("incarnation", fault_in_count(data["incarnation"])),
        ("base_fingerprint", fault_in_digest(data["base_fingerprint"])),
        ("capacity", fault_in_count(data["capacity"])),
    )
    for name, fault in checks:
        if fault:
            raise AttestationError(fault, name)
    if type(data["configuration"]) is not dict:
        raise AttestationError("must be an object", "configuration")
    capacity, unmanaged = data["capacity"], data["unmanaged"] is True
    if faults := faults_in(data["configuration"], capacity=capacity, unmanaged=unmanaged):
        raise AttestationError(faults[0], "configuration")
    return Attestation(**{name: data[name] for name in Attestation.__annotations__})

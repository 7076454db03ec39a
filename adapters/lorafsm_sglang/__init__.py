"""SGLang behind lorafsm: start an engine, talk to it over HTTP, and prove what it was asked to do.

Importing this package needs httpx and attrs only; SGLang and torch live in the engine's own process.
"""

from lorafsm_sglang.access_log import AccessLogError, control_calls, log_size
from lorafsm_sglang.generation import Arrival, Generation
from lorafsm_sglang.port import EnginePort, EngineStatus, Resident
from lorafsm_sglang.process import EngineProcess, EngineStartError, EngineStopError, wait_all_ready
from lorafsm_sglang.replies import OK, Refused, Reply, Unknown, UnknownKind
from lorafsm_sglang.requests import Logprobs, RequestFieldError, Sampling

__all__ = [
    "OK",
    "AccessLogError",
    "Arrival",
    "EnginePort",
    "EngineProcess",
    "EngineStartError",
    "EngineStatus",
    "EngineStopError",
    "Generation",
    "Logprobs",
    "Refused",
    "Reply",
    "RequestFieldError",
    "Resident",
    "Sampling",
    "Unknown",
    "UnknownKind",
    "control_calls",
    "log_size",
    "wait_all_ready",
]

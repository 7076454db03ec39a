"""What the executor must do on the engine, in this order, each once; its result comes back as the event named here.

An action that is carried out twice is a bug of the executor; the agent never asks twice (I8), but for the
read-only `CountRequests` and `TakeListing`.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from attrs import frozen

from lorafsm.identity import VersionKey


@frozen
class PostReceive:
    """Join the collective of this bucket into the number's stash, on its own thread -> BucketFinished (rule 6)."""

    number: int
    bucket: int


@frozen
class AbortCommunicator:
    """Nobody will complete the posted receive: abort the group; the receive then ends -> BucketFinished."""

    number: int


@frozen
class DropStash:
    """Free the buckets of this number; no result."""

    number: int


@frozen
class StartLoad:
    """Verify the manifest against `digest`, then load fresh and pinned under `lora_name` -> LoadFinished."""

    number: int
    lora_name: str
    key: VersionKey
    digest: str
    source: Literal["stash", "store"]


@frozen
class Probe:
    """Prove that exactly this version answers -> ProbeFinished."""

    number: int
    lora_name: str


@frozen
class Unregister:
    """Let the engine admit no request under this name any more -> Unregistered."""

    lora_name: str


@frozen
class CountRequests:
    """Read the engine's own count of requests, waiting for zero up to a deadline -> Counted."""

    lora_name: str


@frozen
class PhysicalUnload:
    """Unload, then observe -> UnloadFinished.  `number` is the load that it undoes; 0: a stranger's."""

    lora_name: str
    number: int


@frozen
class TakeListing:
    """List the names that the engine holds in memory, and note the agent's seq when that is done -> Listed."""


@frozen
class AskQuarantine:
    """Tell the registry that this engine broke a promise (rule 13); no result."""

    incarnation: int
    reason: str


Action: TypeAlias = (
    PostReceive
    | AbortCommunicator
    | DropStash
    | StartLoad
    | Probe
    | Unregister
    | CountRequests
    | PhysicalUnload
    | TakeListing
    | AskQuarantine
)

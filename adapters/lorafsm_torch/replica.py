"""One engine host's own copy of the versions that its engine is to load, taken from the shared store."""

from __future__ import annotations

from pathlib import Path

from lorafsm.identity import VersionKey
from lorafsm_torch.store import ArtifactStore


class Replica:
    """Copies of versions under `root`, each proved when it is made and again before an engine reads it."""

    def __init__(self, shared: ArtifactStore, root: Path | str) -> None:
        self._shared = shared
        self._own = ArtifactStore(root)

    def fetch(self, key: VersionKey, digest: str) -> None:
        """Copy the version here, every byte checked; ArtifactError where it is missing or damaged."""
        self._own.put(key, self._shared.get(key, digest))

    def check(self, lora_name: str, digest: str) -> Path:
        """The folder to load, after every byte was checked; ArtifactError names the file or tensor that is wrong."""
        self._own.verify(lora_name, digest)
        return self._own.path(lora_name)

    def folder(self, lora_name: str) -> Path:
        """Where the copy lies, there or not."""
        return self._own.path(lora_name)

    def discard(self, lora_name: str) -> None:
        """Remove the copy; it may be damaged, or gone already."""
        self._own.delete(lora_name)

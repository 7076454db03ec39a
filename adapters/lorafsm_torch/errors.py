"""What can go wrong with a snapshot, a stored version or an adapter folder; every code says whose turn it is."""

from __future__ import annotations

from enum import StrEnum

from lorafsm.errors import LoraFsmError


class ArtifactCode(StrEnum):
    """Why an artifact is refused."""

    ARTIFACT_INVALID = "ARTIFACT_INVALID"  # a folder is not what it should be; `field` names the file or tensor
    ARTIFACT_MISSING = "ARTIFACT_MISSING"  # the store does not hold this version
    SNAPSHOT_CHANGED = "SNAPSHOT_CHANGED"  # bytes of a frozen snapshot changed; `field` names the tensor
    STORE_UNWRITABLE = "STORE_UNWRITABLE"  # permissions, a full disk, a root that is no folder
    VERSION_CONFLICT = "VERSION_CONFLICT"  # the key is stored with other contents (RFC 3.1)


class ArtifactError(LoraFsmError):
    """A refusal of this package; `code` is one of `ArtifactCode`, `field` a file, a tensor or a parameter."""


def invalid(field: str, message: str) -> ArtifactError:
    """The refusal of a folder, by the file or tensor that is wrong."""
    return ArtifactError(ArtifactCode.ARTIFACT_INVALID, message, field)

"""What can go wrong with snapshots, stored versions, adapter folders and transfers; a code says whose turn it is."""

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


class TransferCode(StrEnum):
    """Why a transfer, or a step of one, did not happen.  All but the last five are found before any collective."""

    NOT_A_TARGET = "NOT_A_TARGET"  # the announcement does not name this engine
    ENGINE_RESTARTED = "ENGINE_RESTARTED"  # it names another incarnation of this engine
    GROUP_SIZE = "GROUP_SIZE"  # source and engines are not the ranks that were announced
    PLAN_MISMATCH = "PLAN_MISMATCH"  # buckets, shapes or dtypes differ from what was begun
    DIGEST_MISMATCH = "DIGEST_MISMATCH"  # the contents differ from what was begun; `field` names the tensor
    OPERATION_CONFLICT = "OPERATION_CONFLICT"  # the number stands for another announcement here
    NO_RESOURCES = "NO_RESOURCES"  # no memory for the stash on this host
    NOT_PREPARED = "NOT_PREPARED"  # nothing is known of this number; begin first
    OUT_OF_ORDER = "OUT_OF_ORDER"  # not the next bucket, or one that was sent before
    ARM_REFUSED = "ARM_REFUSED"  # an engine did not arm; nothing was sent; `field` names it
    GROUP_FAILED = "GROUP_FAILED"  # the group did not form: somebody died, or did not come before the deadline
    BROADCAST_FAILED = "BROADCAST_FAILED"  # somebody died in the collective; the group is gone
    DEADLINE = "DEADLINE"  # somebody is silent in the collective; the group is gone
    NOT_RECEIVED = "NOT_RECEIVED"  # an engine did not acknowledge a bucket; `field` names it
    ABORTED = "ABORTED"  # the attempt was given up meanwhile


class ArtifactError(LoraFsmError):
    """A refusal of this package; `code` is one of `ArtifactCode`, `field` a file, a tensor or a parameter."""


class TransferError(LoraFsmError):
    """A transfer that cannot go on; `code` is one of `TransferCode`, `field` an engine, a tensor or an argument."""


def invalid(field: str, message: str) -> ArtifactError:
    """The refusal of a folder, by the file or tensor that is wrong."""
    return ArtifactError(ArtifactCode.ARTIFACT_INVALID, message, field)

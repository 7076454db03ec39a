"""`manifest.json` of a stored version: one text for one manifest, checked by writing it again."""

from __future__ import annotations

import json
from typing import Any

from lorafsm.errors import InvalidField
from lorafsm.manifest import Manifest, TensorEntry, canonical_json, make_manifest
from lorafsm_torch.errors import invalid
from lorafsm_torch.folder import parse_json

MANIFEST_FILE = "manifest.json"

_FORMAT = "lorafsm/manifest/v1"


def render_manifest(manifest: Manifest, lora_name: str) -> bytes:
    """The file's bytes: canonical JSON of name, digest, config and tensors, and a line end."""
    document = {
        "format": _FORMAT,
        "lora_name": lora_name,
        "digest": manifest.digest(),
        "config": config_of(manifest),
        "tensors": [
            {"name": t.name, "dtype": t.dtype, "shape": list(t.shape), "sha256": t.sha256} for t in manifest.tensors
        ],
    }
    return f"{canonical_json(document)}\n".encode()


def parse_manifest(data: bytes, lora_name: str) -> Manifest:
    """The manifest in the bytes of the file of version `lora_name`; refuses (ARTIFACT_INVALID) any other form."""
    document = parse_json(data, MANIFEST_FILE)
    try:
        entries = [TensorEntry(t["name"], t["dtype"], tuple(t["shape"]), t["sha256"]) for t in document["tensors"]]
        manifest = make_manifest(entries, document["config"])
        again = render_manifest(manifest, lora_name)
    except InvalidField as error:
        raise invalid(f"{MANIFEST_FILE}: {error.field}", error.message) from error
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise invalid(MANIFEST_FILE, f"is not a manifest of this store ({error!r:.120})") from error
    if again != data:
        raise invalid(MANIFEST_FILE, f"is not the canonical one of {lora_name}; delete the version and put it again")
    return manifest


def config_of(manifest: Manifest) -> dict[str, Any]:
    """The serving config of a manifest as plain JSON values."""
    config: dict[str, Any] = json.loads(manifest.config_json)
    return config

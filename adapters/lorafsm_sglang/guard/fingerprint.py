"""The fingerprint of what every managed version of an engine rests on: base weights, tokenizer, config."""

from __future__ import annotations

import hashlib
from pathlib import Path

_CHUNK = 4 << 20  # bytes
_LENGTH = 8  # bytes of a length


def base_fingerprint(model: Path | str) -> str:
    """SHA-256 over the files of the model's folder: names, lengths, contents.  OSError where it is no folder."""
    h = hashlib.sha256()
    for file in sorted(path for path in Path(model).iterdir() if path.is_file()):
        _frame(h, file.name.encode())
        h.update(file.stat().st_size.to_bytes(_LENGTH, "big"))
        with file.open("rb") as data:
            while chunk := data.read(_CHUNK):
                h.update(chunk)
    return h.hexdigest()


def after_base_change(fingerprint: str, route: str, weight_version: str | None) -> str:
    """The fingerprint after the base weights were replaced: equal where the same changes were made in this order."""
    h = hashlib.sha256()
    for part in (fingerprint, route, weight_version or ""):
        _frame(h, part.encode())
    return h.hexdigest()


def _frame(h: hashlib._Hash, data: bytes) -> None:
    h.update(len(data).to_bytes(_LENGTH, "big"))
    h.update(data)

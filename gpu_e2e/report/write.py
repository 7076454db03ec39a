"""report.json and report.html, each written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_e2e.report.html import render


def write(report: Mapping[str, Any], out: Path) -> tuple[Path, Path]:
    """Write both files into `out`; returns their paths.  A number that is not finite raises ValueError."""
    texts = {
        "report.json": json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False) + "\n",
        "report.html": render(report),
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        unfinished = out / f".{name}.part"
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(out / name)
    return out / "report.json", out / "report.html"

"""Pictures and percentile rows of the online section: distributions with and without publication, occupancy.

`measures` of the section: name (request latency, TTFT, token gap) -> {"publishing": [ms...], "quiet": [ms...]};
`occupancy`: [[s, managed versions]...].
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from gpu_e2e.experiment.windows import percentiles

_KINDS = {"quiet": "#858a94", "publishing": "#d8961a"}
_SHOWN = ("count", "p50", "p95", "p99", "max")


def percentile_rows(measures: Mapping[str, Mapping[str, Sequence[float]]]) -> list[dict[str, Any]]:
    """One row a measure and kind, in ms; a kind without a value says "not run"."""
    rows = []
    for name, kinds in measures.items():
        for kind in _KINDS:
            found: Mapping[str, Any] = percentiles(kinds.get(kind, ())) or {}
            rows.append({"measure, ms": name, "while": kind, **{key: found.get(key, "not run") for key in _SHOWN}})
    return rows


def distributions(measures: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """One CDF a measure, both kinds in it, as SVG markup; empty without values."""
    shown = {name: kinds for name, kinds in measures.items() if any(kinds.values())}
    if not shown:
        return ""
    figure = Figure(figsize=(4 * len(shown), 3), layout="constrained")
    for index, (name, kinds) in enumerate(shown.items(), 1):
        axes = figure.add_subplot(1, len(shown), index)
        for kind, colour in _KINDS.items():
            if values := kinds.get(kind):
                axes.ecdf(values, color=colour, label=kind)
        axes.set(title=name, xlabel="ms", ylabel="share of them", xscale="log")
        axes.legend(frameon=False)
    return _svg(figure)


def occupancy(steps: Sequence[Sequence[float]]) -> str:
    """Managed versions over time as SVG markup; empty without a step."""
    if not steps:
        return ""
    figure = Figure(figsize=(10, 2), layout="constrained")
    axes = figure.add_subplot()
    axes.step([at for at, _ in steps], [count for _, count in steps], where="post", color="#2f6bd8")
    axes.axhline(2, color="#c5303a", linestyle=":", label="capacity")
    axes.set(xlabel="s", ylabel="managed versions", ylim=(0, 3))
    axes.legend(frameon=False)
    return _svg(figure)


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    # The same values give the same bytes: no date, no random ids; letters stay letters.
    with mpl.rc_context({"svg.hashsalt": "lorafsm", "svg.fonttype": "none"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    whole = text.getvalue()
    return whole[whole.index("<svg") :]

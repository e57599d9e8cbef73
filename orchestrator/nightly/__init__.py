"""Nightly runs of a fixed benchmark, and the verdict on each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.nightly._limits import MEASURES, Bounds, Limits, Threshold
from orchestrator.nightly._record import CellKey, NightRecord, Shape
from orchestrator.nightly._verdict import Finding, Verdict

if TYPE_CHECKING:
    from orchestrator.nightly._judge import judge

__all__ = [
    "MEASURES",
    "Bounds",
    "CellKey",
    "Finding",
    "Limits",
    "NightRecord",
    "Shape",
    "Threshold",
    "Verdict",
    "judge",
]


def __getattr__(name: str) -> Any:
    """Import ``judge`` when it is first asked for: commands that judge nothing need no SciPy."""
    if name != "judge":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from orchestrator.nightly._judge import judge

    return judge

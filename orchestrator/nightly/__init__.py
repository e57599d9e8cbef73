"""Nightly runs of a fixed benchmark, and the verdict on each."""

from __future__ import annotations

from orchestrator.nightly._judge import judge
from orchestrator.nightly._limits import MEASURES, Bounds, Limits, Threshold
from orchestrator.nightly._record import CellKey, NightRecord, Shape
from orchestrator.nightly._verdict import Finding, Verdict

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

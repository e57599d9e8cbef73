"""Nightly runs of a fixed benchmark, and the verdict on each."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from orchestrator.nightly._limits import MEASURES, Bounds, Limits, Threshold
from orchestrator.nightly._record import CellKey, NightRecord, Shape
from orchestrator.nightly._verdict import Finding, Verdict

if TYPE_CHECKING:
    from orchestrator.nightly._book import Acceptance, Book, Night
    from orchestrator.nightly._clock import Schedule, make_schedule
    from orchestrator.nightly._config import Nightly, benchmark_file, load_nightly
    from orchestrator.nightly._install import (
        Installation,
        install,
        installation,
        preview,
        uninstall,
    )
    from orchestrator.nightly._judge import judge
    from orchestrator.nightly._kubernetes import KubernetesOptions
    from orchestrator.nightly._lock import BusyError
    from orchestrator.nightly._publish import publish_failure
    from orchestrator.nightly._ray_job import submit_night
    from orchestrator.nightly._run import NightOutcome, run_night
    from orchestrator.nightly._summary import figure, headline
    from orchestrator.nightly._trend import plotted, series_of, sparkline, to_csv

__all__ = [
    "MEASURES",
    "Acceptance",
    "Book",
    "Bounds",
    "BusyError",
    "CellKey",
    "Finding",
    "Installation",
    "KubernetesOptions",
    "Limits",
    "Night",
    "NightOutcome",
    "NightRecord",
    "Nightly",
    "Schedule",
    "Shape",
    "Threshold",
    "Verdict",
    "benchmark_file",
    "figure",
    "headline",
    "install",
    "installation",
    "judge",
    "load_nightly",
    "make_schedule",
    "plotted",
    "preview",
    "publish_failure",
    "run_night",
    "series_of",
    "sparkline",
    "submit_night",
    "to_csv",
    "uninstall",
]

# Imported when first used: a command that judges nothing needs no SciPy, one that runs nothing no
# torch.
_HOMES = {
    "_book": ("Acceptance", "Book", "Night"),
    "_clock": ("Schedule", "make_schedule"),
    "_config": ("Nightly", "benchmark_file", "load_nightly"),
    "_install": ("Installation", "install", "installation", "preview", "uninstall"),
    "_judge": ("judge",),
    "_kubernetes": ("KubernetesOptions",),
    "_lock": ("BusyError",),
    "_publish": ("publish_failure",),
    "_ray_job": ("submit_night",),
    "_run": ("NightOutcome", "run_night"),
    "_summary": ("figure", "headline"),
    "_trend": ("plotted", "series_of", "sparkline", "to_csv"),
}
_LAZY = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name from its module when it is first asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)

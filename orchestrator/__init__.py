"""Sweeps over calibration methods: specification, search, tracking, selection and tables."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.run import SweepOutcome, run_sweep
    from orchestrator.selection import BestConfig, best_config, comparison_table
    from orchestrator.spec import SweepSpec, load_sweep

__all__ = [
    "BestConfig",
    "SweepOutcome",
    "SweepSpec",
    "best_config",
    "comparison_table",
    "load_sweep",
    "run_sweep",
]

# Imported when first used: `calsweep --help` must not wait for torch and MLflow.
_HOMES = {
    "BestConfig": "selection",
    "SweepOutcome": "run",
    "SweepSpec": "spec",
    "best_config": "selection",
    "comparison_table": "selection",
    "load_sweep": "spec",
    "run_sweep": "run",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"orchestrator.{_HOMES[name]}"), name)

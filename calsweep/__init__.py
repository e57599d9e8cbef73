"""calsweep, as users import it: sweeps, losses, calibrators, metrics, and bases of one's own.

    from calsweep import build_loss, load_sweep, run_sweep

Each name is documented where it is written; ``help(calsweep.run_sweep)`` shows it.
"""

from importlib import import_module
from typing import Any

# Imported when first used: `import calsweep` must not wait for torch and MLflow.
_NAMES = {
    "orchestrator.replay": ["ReplaySettings", "replay"],
    "orchestrator.running.run": ["SweepOutcome", "run_sweep"],
    "orchestrator.sweep.spec": ["SweepSpec", "load_sweep"],
    "orchestrator.sweep.tracking_uri": ["TRACKERS"],
    "orchestrator.tables.make": ["comparison_table"],
    "orchestrator.tables.table": ["ComparisonTable"],
    "orchestrator.tracking": ["Change"],
    "orchestrator.tracking.best": ["BestConfig", "best_config"],
    "orchestrator.tracking.tracker": [
        "Experiment",
        "RefusedError",
        "Run",
        "RunQuery",
        "Tracker",
        "UnreachableError",
    ],
    "trainables.augmentations": ["AUGMENTATIONS", "Augmentation"],
    "trainables.calibrators": [
        "CALIBRATORS",
        "OBJECTIVES",
        "Calibrator",
        "FitReport",
        "FitWarning",
        "Objective",
        "RowTerms",
        "build_calibrator",
        "build_objective",
        "cross_fit",
        "fit_temperature",
        "load_calibrator",
        "save_calibrator",
    ],
    "trainables.common.errors": ["InputError"],
    "trainables.common.fields": ["choice", "count", "fitted", "flag", "number"],
    "trainables.data": [
        "SOURCES",
        "DatasetInfo",
        "ImageShape",
        "Images",
        "PreparedData",
        "Reader",
        "RowArrays",
        "Rows",
        "SourceStatus",
    ],
    "trainables.data.suites": ["SUITES", "Part", "Suite", "SuiteData"],
    "trainables.losses": [
        "LOSSES",
        "Loss",
        "ReducedLoss",
        "RowLoss",
        "build_loss",
        "loss_aside",
    ],
    "trainables.metrics": [
        "METRICS",
        "Metric",
        "calibration_report",
        "estimated_error",
        "evaluation_report",
        "noise_floor",
        "reliability_diagram",
    ],
    "trainables.models": ["Network", "build_model", "model_names", "register_model"],
    "trainables.plugins": ["load_plugins"],
    "trainables.refinements": ["REFINEMENTS", "Refinement", "build_refinement"],
    "trainables.schemes": ["SCHEMES", "Scheme"],
    "trainables.stages.export": ["load_chain"],
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'calsweep' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(_HOMES)

from calsweep._notebook import Sweep, SweepResult, sweep
from orchestrator.replay import ReplaySettings, replay
from orchestrator.running.run import SweepOutcome, run_sweep
from orchestrator.sweep.spec import SweepSpec, load_sweep
from orchestrator.tables.make import comparison_table
from orchestrator.tables.table import ComparisonTable
from orchestrator.tracking.best import BestConfig, best_config
from trainables.calibrators import (
    CALIBRATORS,
    OBJECTIVES,
    FitReport,
    FitWarning,
    build_calibrator,
    build_objective,
    cross_fit,
    load_calibrator,
    save_calibrator,
)
from trainables.charts.reliability import reliability_diagram
from trainables.common.errors import InputError
from trainables.data import SOURCES
from trainables.data.suites import SUITES
from trainables.losses import LOSSES, build_loss
from trainables.metrics import (
    METRICS,
    calibration_report,
    estimated_error,
    evaluation_report,
    noise_floor,
)
from trainables.models import build_model, model_names
from trainables.plugins import load_plugins
from trainables.refinements import REFINEMENTS, build_refinement
from trainables.stages.export import load_chain

__all__ = [
    "CALIBRATORS",
    "LOSSES",
    "METRICS",
    "OBJECTIVES",
    "REFINEMENTS",
    "SOURCES",
    "SUITES",
    "BestConfig",
    "ComparisonTable",
    "FitReport",
    "FitWarning",
    "InputError",
    "ReplaySettings",
    "Sweep",
    "SweepOutcome",
    "SweepResult",
    "SweepSpec",
    "best_config",
    "build_calibrator",
    "build_loss",
    "build_model",
    "build_objective",
    "build_refinement",
    "calibration_report",
    "comparison_table",
    "cross_fit",
    "estimated_error",
    "evaluation_report",
    "load_calibrator",
    "load_chain",
    "load_plugins",
    "load_sweep",
    "model_names",
    "noise_floor",
    "reliability_diagram",
    "replay",
    "run_sweep",
    "save_calibrator",
    "sweep",
]

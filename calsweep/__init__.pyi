from orchestrator.executors import Executor
from orchestrator.executors.in_process import InProcess
from orchestrator.replay import ReplaySettings, replay
from orchestrator.running.run import SweepOutcome, run_sweep
from orchestrator.sweep.executors import EXECUTORS
from orchestrator.sweep.spec import SweepSpec, load_sweep
from orchestrator.sweep.tracking_uri import TRACKERS
from orchestrator.tables.make import comparison_table
from orchestrator.tables.table import ComparisonTable
from orchestrator.tracking import Change
from orchestrator.tracking.best import BestConfig, best_config
from orchestrator.tracking.tracker import (
    Experiment,
    RefusedError,
    Run,
    RunQuery,
    Tracker,
    UnreachableError,
)
from trainables.augmentations import AUGMENTATIONS, Augmentation
from trainables.calibrators import (
    CALIBRATORS,
    OBJECTIVES,
    Calibrator,
    FitReport,
    FitWarning,
    Objective,
    RowTerms,
    build_calibrator,
    build_objective,
    cross_fit,
    fit_temperature,
    load_calibrator,
    save_calibrator,
)
from trainables.charts.reliability import reliability_diagram
from trainables.common.errors import InputError
from trainables.common.fields import choice, count, fitted, flag, number
from trainables.data import (
    SOURCES,
    DatasetInfo,
    Images,
    ImageShape,
    PreparedData,
    Reader,
    RowArrays,
    Rows,
    SourceStatus,
)
from trainables.data.suites import SUITES, Part, Suite, SuiteData
from trainables.losses import LOSSES, Loss, ReducedLoss, RowLoss, build_loss, loss_aside
from trainables.metrics import (
    METRICS,
    Metric,
    calibration_report,
    estimated_error,
    evaluation_report,
    noise_floor,
)
from trainables.models import Network, build_model, model_names, register_model
from trainables.plugins import load_plugins
from trainables.refinements import REFINEMENTS, Refinement, build_refinement
from trainables.schemes import SCHEMES, Scheme
from trainables.stages.export import load_chain

__all__ = [
    "AUGMENTATIONS",
    "CALIBRATORS",
    "EXECUTORS",
    "LOSSES",
    "METRICS",
    "OBJECTIVES",
    "REFINEMENTS",
    "SCHEMES",
    "SOURCES",
    "SUITES",
    "TRACKERS",
    "Augmentation",
    "BestConfig",
    "Calibrator",
    "Change",
    "ComparisonTable",
    "DatasetInfo",
    "Executor",
    "Experiment",
    "FitReport",
    "FitWarning",
    "ImageShape",
    "Images",
    "InProcess",
    "InputError",
    "Loss",
    "Metric",
    "Network",
    "Objective",
    "Part",
    "PreparedData",
    "Reader",
    "ReducedLoss",
    "Refinement",
    "RefusedError",
    "ReplaySettings",
    "RowArrays",
    "RowLoss",
    "RowTerms",
    "Rows",
    "Run",
    "RunQuery",
    "Scheme",
    "SourceStatus",
    "Suite",
    "SuiteData",
    "SweepOutcome",
    "SweepSpec",
    "Tracker",
    "UnreachableError",
    "best_config",
    "build_calibrator",
    "build_loss",
    "build_model",
    "build_objective",
    "build_refinement",
    "calibration_report",
    "choice",
    "comparison_table",
    "count",
    "cross_fit",
    "estimated_error",
    "evaluation_report",
    "fit_temperature",
    "fitted",
    "flag",
    "load_calibrator",
    "load_chain",
    "load_plugins",
    "load_sweep",
    "loss_aside",
    "model_names",
    "noise_floor",
    "number",
    "register_model",
    "reliability_diagram",
    "replay",
    "run_sweep",
    "save_calibrator",
]

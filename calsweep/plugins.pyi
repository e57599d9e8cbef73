from orchestrator.executors import Executor
from orchestrator.executors.in_process import InProcess
from orchestrator.sweep.executors import EXECUTORS
from orchestrator.sweep.spec import SweepSpec
from orchestrator.sweep.tracking_uri import TRACKERS
from orchestrator.tracking import Change
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
    Objective,
    RowTerms,
    fit_temperature,
)
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
from trainables.losses import LOSSES, Loss, ReducedLoss, RowLoss, loss_aside
from trainables.metrics import METRICS, Metric
from trainables.models import Network, register_model
from trainables.refinements import REFINEMENTS, FittedRefinement, Refinement
from trainables.schemes import SCHEMES, Scheme

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
    "Calibrator",
    "Change",
    "DatasetInfo",
    "Executor",
    "Experiment",
    "FitReport",
    "FittedRefinement",
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
    "SweepSpec",
    "Tracker",
    "UnreachableError",
    "choice",
    "count",
    "fit_temperature",
    "fitted",
    "flag",
    "loss_aside",
    "number",
    "register_model",
]

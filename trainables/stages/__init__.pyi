from .base import (
    StageRequest,
    StageRun,
    TaskData,
    ValidationRows,
    check_part,
    objective_terms,
    open_stage,
    stage_precision,
    validation_rows,
    with_objective,
)
from .calibrate import CalibrateStage
from .given import GivenStage
from .networks import LastPass, evaluate_on_test, evaluate_suite, pooled, predictor, suite_key
from .refine import RefineStage
from .train import TrainStage

__all__ = [
    "CalibrateStage",
    "GivenStage",
    "LastPass",
    "RefineStage",
    "StageRequest",
    "StageRun",
    "TaskData",
    "TrainStage",
    "ValidationRows",
    "check_part",
    "evaluate_on_test",
    "evaluate_suite",
    "objective_terms",
    "open_stage",
    "pooled",
    "predictor",
    "stage_precision",
    "suite_key",
    "validation_rows",
    "with_objective",
]

"""The stages of a trial: train or given, refine, calibrate; and the one look at test data.

Every stage is a ``StageRun``: it advances epoch by epoch, can be interrupted and resumed, and ends
in an artifact that other stages build on. Nothing here knows Ray, MLflow or Optuna.
"""

from trainables.stages.base import (
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
from trainables.stages.calibrate import CalibrateStage
from trainables.stages.given import GivenStage
from trainables.stages.networks import (
    LastPass,
    evaluate_on_test,
    evaluate_suite,
    pooled,
    predictor,
    suite_key,
)
from trainables.stages.refine import RefineStage
from trainables.stages.train import TrainStage

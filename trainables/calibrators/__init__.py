"""Post-hoc calibrators, one file each: logits to log-probabilities, fitted on held-out rows."""

from trainables.calibrators._base import (
    CALIBRATORS,
    Calibrator,
    FitReport,
    FitWarning,
    build_calibrator,
    calibrator_from_recipe,
    check_rows,
    is_calibrator,
    parse_calibrator,
)
from trainables.calibrators._crossfit import cross_fit, fold_calibrators, nll_after_ts_terms
from trainables.calibrators._storage import load_calibrator, save_calibrator
from trainables.calibrators._temperature import fit_temperature
from trainables.calibrators.objectives import OBJECTIVES, Objective, RowTerms, build_objective

from ._base import Calibrator, FitReport, FitWarning, check_rows
from ._crossfit import cross_fit, fold_calibrators, nll_after_ts_terms, stratified_folds
from ._registry import (
    CALIBRATORS,
    build_calibrator,
    calibrator_from_recipe,
    is_calibrator,
    parse_calibrator,
)
from ._storage import load_calibrator, save_calibrator
from ._temperature import fit_temperature
from .objectives import OBJECTIVES, Objective, RowTerms, build_objective

__all__ = [
    "CALIBRATORS",
    "OBJECTIVES",
    "Calibrator",
    "FitReport",
    "FitWarning",
    "Objective",
    "RowTerms",
    "build_calibrator",
    "build_objective",
    "calibrator_from_recipe",
    "check_rows",
    "cross_fit",
    "fit_temperature",
    "fold_calibrators",
    "is_calibrator",
    "load_calibrator",
    "nll_after_ts_terms",
    "parse_calibrator",
    "save_calibrator",
    "stratified_folds",
]

"""Measures of accuracy and calibration; ``calibration_report`` gives them all at once.

``evaluation_report`` adds the debiased and the smooth error, and the noise floors.
"""

from trainables.metrics._adaptive import adaptive_ece, classwise_adaptive_ece
from trainables.metrics._debiased import debiased_ece
from trainables.metrics._diagram import reliability_diagram
from trainables.metrics._evaluation import evaluation_report
from trainables.metrics._floor import FLOORED, NoiseFloor, noise_floor, noise_floors
from trainables.metrics._reliability import ReliabilityCurve, reliability_curve
from trainables.metrics._report import METRICS, calibration_report
from trainables.metrics._risk_coverage import RiskCoverageCurve, risk_coverage_curve
from trainables.metrics._smooth import smooth_ece
from trainables.metrics._stacked import calibration_reports

__all__ = [
    "FLOORED",
    "METRICS",
    "NoiseFloor",
    "ReliabilityCurve",
    "RiskCoverageCurve",
    "adaptive_ece",
    "calibration_report",
    "calibration_reports",
    "classwise_adaptive_ece",
    "debiased_ece",
    "evaluation_report",
    "noise_floor",
    "noise_floors",
    "reliability_curve",
    "reliability_diagram",
    "risk_coverage_curve",
    "smooth_ece",
]

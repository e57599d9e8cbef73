"""Measures of accuracy and calibration; ``calibration_report`` gives them all at once."""

from trainables.metrics._adaptive import adaptive_ece, classwise_adaptive_ece
from trainables.metrics._diagram import reliability_diagram
from trainables.metrics._reliability import ReliabilityCurve, reliability_curve
from trainables.metrics._report import METRICS, calibration_report

__all__ = [
    "METRICS",
    "ReliabilityCurve",
    "adaptive_ece",
    "calibration_report",
    "classwise_adaptive_ece",
    "reliability_curve",
    "reliability_diagram",
]

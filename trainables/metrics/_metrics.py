"""The properties of each metric, once; this module and ``METRICS`` at the door load no torch."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, Self


@dataclass(frozen=True)
class Metric:
    """Properties of a metric beside its computation, which ``_report`` finds by its name.

    Attributes:
        name: What reports, journals and tables call it.
        label: What headings call it.
        source: Which report has it: ``report`` for ``calibration_report``, ``test`` for
            evaluations beside it, ``pixels`` for those of pixels alone, ``suite`` for a suite,
            which computes it itself, ``search`` for validation rows alone, where it is asked for.
        better: ``higher``, ``lower``, or ``neither``, where no cell is marked as best.
        percent: Whether it is a fraction of something and shown as a percentage.
        digits: Decimals that are shown.
        bounds: Lowest and highest value it can take.
        binned: Whether it depends on the number of bins.
        floored: Whether it has a noise floor, which is a metric of its own.
        relative: Smallest difference that matters between nights, as a fraction of the usual
            value.
        absolute: Smallest difference that matters between nights, in the metric's own unit; no
            night is judged by a metric with both at 0.
        version: Raise it when the same predictions get another value: stored evaluations are then
            computed again.
    """

    name: str
    label: str
    source: Literal["report", "test", "pixels", "suite", "search"] = "report"
    better: Literal["higher", "lower", "neither"] = "lower"
    percent: bool = True
    digits: int = 2
    bounds: tuple[float, float] = (0.0, 1.0)
    binned: bool = False
    floored: bool = False
    relative: float = 0.0
    absolute: float = 0.0
    version: int = 1

    @property
    def is_objective(self) -> bool:
        """Whether a search may minimise it on validation data."""
        return self.source != "suite" and self.better == "lower"

    @property
    def is_judged(self) -> bool:
        """Whether a night can be judged by it."""
        return self.relative > 0 or self.absolute > 0

    def floor(self) -> Self:
        """Return the metric that is this one's noise floor."""
        return replace(
            self,
            name=f"{self.name}_floor",
            label=f"{self.label} floor",
            source="test",
            better="neither",
            floored=False,
            relative=0.0,
            absolute=0.0,
        )


_ERROR = Metric("", "", binned=True, relative=0.10, absolute=0.001)
# The class-wise errors shrink with the number of classes.
_CLASSWISE = replace(_ERROR, digits=3, absolute=0.0002)
# Brier and NLL are no fractions of anything, so they are shown as they are.
_SCORE = Metric("", "", percent=False, digits=4, relative=0.05)
_REPORTED = (
    Metric("acc", "Acc", better="higher", absolute=0.005),
    replace(_SCORE, name="nll", label="NLL", bounds=(0.0, math.inf), absolute=0.002),
    replace(_SCORE, name="brier", label="Brier", bounds=(0.0, 2.0), absolute=0.001),
    replace(_ERROR, name="ece", label="ECE", floored=True),
    replace(_ERROR, name="aece", label="AECE", floored=True),
    replace(_CLASSWISE, name="cwece", label="cwECE", floored=True),
    replace(_CLASSWISE, name="cwaece", label="cwAECE"),
    replace(_ERROR, name="mce", label="MCE", relative=0.25, absolute=0.01),
)
_ALL = (
    *_REPORTED,
    # By chance it may be slightly below 0.
    Metric("debiased_ece", "debiased ECE", source="test", bounds=(-1.0, 1.0), binned=True),
    Metric("smooth_ece", "smooth ECE", source="test"),
    *(metric.floor() for metric in _REPORTED if metric.floored),
    Metric("miou", "mIoU", source="pixels", better="higher", absolute=0.005),
    # Of one class, as CLASS/iou.
    Metric("iou", "IoU", source="pixels", better="higher"),
    # The NLL that a temperature would leave: see ``trainables.calibrators.nll_after_ts_terms``.
    Metric(
        "nll_after_ts",
        "NLL after TS",
        source="search",
        percent=False,
        digits=4,
        bounds=(0.0, math.inf),
    ),
    Metric("auroc", "AUROC", source="suite", better="higher", absolute=0.005),
    Metric("fpr95", "FPR95", source="suite", absolute=0.01),
)

METRICS: Mapping[str, Metric] = {metric.name: metric for metric in _ALL}
"""Every metric by name, in the order of tables."""

REPORTED = tuple(metric.name for metric in _REPORTED)
"""The keys of ``calibration_report``, in its order."""

FLOORED = tuple(metric.name for metric in _REPORTED if metric.floored)
"""Metrics that have a noise floor."""


def metrics_digest(*sources: str) -> str:
    """Return what stands for all metrics of some sources: a SHA-256 of their names and versions.

    Args:
        *sources: Some of ``report``, ``test``, ``pixels`` and ``suite``.
    """
    versions = {name: found.version for name, found in METRICS.items() if found.source in sources}
    return hashlib.sha256(json.dumps(versions, sort_keys=True).encode()).hexdigest()

"""The properties of each metric; importing ``METRICS`` does not import torch."""

from __future__ import annotations

import hashlib
import inspect
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, TypeVar

from trainables.common.fields import check_choice
from trainables.common.html import html_table
from trainables.common.registry import Catalogue

if TYPE_CHECKING:
    from torch import Tensor

    Compute: TypeAlias = Callable[[Tensor, Tensor], Tensor]
C = TypeVar("C", bound="Compute")
Better: TypeAlias = Literal["higher", "lower", "neither"]
BETTER: tuple[Better, ...] = ("higher", "lower", "neither")


@dataclass(frozen=True)
class Metric:
    """Properties of a metric.

    Attributes:
        name: The name in reports, journals and tables.
        label: The name in headings.
        source: Which report has it: ``report`` for ``calibration_report``, ``test`` for other
            metrics of evaluations, ``pixels`` for pixels only, ``suite`` if a suite computes it,
            ``search`` for validation rows on request, ``plugin`` if a plugin computes it from
            validation and test rows, ``rows`` if it is computed from stored rows on request and
            not part of a stored evaluation.
        better: ``higher``, ``lower``, or ``neither`` (then no cell is marked as best).
        percent: Whether it is a fraction, shown as a percentage.
        digits: Number of decimals shown.
        bounds: Its lowest and highest possible value.
        binned: Whether it depends on the number of bins.
        floored: Whether it has a noise floor, which is a metric of its own.
        relative: Smallest relevant difference between nightly runs, as a fraction of the usual
            value.
        absolute: Smallest relevant difference between nightly runs, in the metric's own unit. If
            ``relative`` and ``absolute`` are 0, nightly runs are not judged by this metric.
        version: Increase it when the same predictions give another value, so that stored
            evaluations are computed again.
        compute: The function of a plugin's metric; see ``Metrics.register``.
    """

    name: str
    label: str
    source: Literal["report", "test", "pixels", "suite", "search", "plugin", "rows"] = "report"
    better: Better = "lower"
    percent: bool = True
    digits: int = 2
    bounds: tuple[float, float] = (0.0, 1.0)
    binned: bool = False
    floored: bool = False
    relative: float = 0.0
    absolute: float = 0.0
    version: int = 1
    compute: Compute | None = field(default=None, compare=False, repr=False)

    @property
    def is_objective(self) -> bool:
        """Return True if a search may minimise it on validation data."""
        return self.source != "suite" and self.better == "lower"

    @property
    def is_judged(self) -> bool:
        """Return True if nightly runs are judged by this metric."""
        return self.relative > 0 or self.absolute > 0

    def floor(self) -> Self:
        """Return the metric of this metric's noise floor."""
        return replace(
            self,
            name=f"{self.name}_floor",
            label=f"{self.label} floor",
            source="plugin" if self.source == "plugin" else "test",
            better="neither",
            floored=False,
            relative=0.0,
            absolute=0.0,
            compute=None,
        )


_ERROR = Metric("", "", binned=True, relative=0.10, absolute=0.001)
# The class-wise errors shrink with the number of classes.
_CLASSWISE = replace(_ERROR, digits=3, absolute=0.0002)
# Brier and NLL are not fractions, so they are not shown as percentages.
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
SETS = tuple(f"{kind}_{level}" for kind in ("lac", "aps", "raps") for level in (90, 95))
"""Conformal sets by name: the score and the level in percent."""


def of_sets(metric: str) -> bool:
    """Return True for metrics of conformal sets, whose thresholds are fitted on other rows."""
    return metric.rpartition("_")[0] in SETS


_SHARE = Metric("", "", source="rows")
_PART = replace(_SHARE, percent=False, digits=4)
_TESTED = replace(_SHARE, better="neither", percent=False, digits=6)


def _of_sets(name: str) -> tuple[Metric, ...]:
    label = name.upper().replace("_", " ")
    return (
        replace(_SHARE, name=f"{name}_coverage", label=f"{label} coverage", better="neither"),
        replace(
            _PART, name=f"{name}_size", label=f"{label} size", digits=2, bounds=(0.0, math.inf)
        ),
        replace(_SHARE, name=f"{name}_worst", label=f"{label} worst class", better="higher"),
    )


_OF_ROWS = (
    replace(_SHARE, name="aurc", label="AURC", digits=3),
    replace(_SHARE, name="e_aurc", label="E-AURC", digits=3),
    replace(_SHARE, name="augrc", label="AUGRC", digits=3),
    *(replace(_SHARE, name=f"risk_{level}", label=f"risk at {level} %") for level in (80, 90, 95)),
    *(
        replace(_SHARE, name=f"coverage_{risk}", label=f"coverage at {risk} %", better="higher")
        for risk in (1, 5)
    ),
    replace(_SHARE, name="signed_ece", label="signed ECE", better="neither", bounds=(-1.0, 1.0)),
    replace(_SHARE, name="ece_over", label="ECE over", binned=True),
    replace(_SHARE, name="ece_under", label="ECE under", binned=True),
    replace(_PART, name="nll_refinement", label="NLL refinement", bounds=(0.0, math.inf)),
    replace(_PART, name="nll_calibration", label="NLL calibration", bounds=(-math.inf, math.inf)),
    replace(_PART, name="brier_refinement", label="Brier refinement", bounds=(0.0, 2.0)),
    replace(_PART, name="brier_calibration", label="Brier calibration", bounds=(-2.0, 2.0)),
    *(metric for name in SETS for metric in _of_sets(name)),
    # Debiasing may make it slightly negative.
    replace(_TESTED, name="l2_error", label="l2 error", better="lower", bounds=(-1.0, 1.0)),
    replace(_TESTED, name="l2_low", label="l2 low"),
    replace(_TESTED, name="l2_high", label="l2 high"),
    replace(_TESTED, name="l2_p", label="l2 p-value", digits=4),
)
_ALL = (
    *_REPORTED,
    # Debiasing may make it slightly negative.
    Metric("debiased_ece", "debiased ECE", source="test", bounds=(-1.0, 1.0), binned=True),
    Metric("smooth_ece", "smooth ECE", source="test"),
    *(metric.floor() for metric in _REPORTED if metric.floored),
    Metric("miou", "mIoU", source="pixels", better="higher", absolute=0.005),
    # The IoU of a single class, reported as CLASS/iou.
    Metric("iou", "IoU", source="pixels", better="higher"),
    # The NLL after temperature scaling: see ``trainables.calibrators.nll_after_ts_terms``.
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
    *_OF_ROWS,
)


SHOWN = ("label", "better", "percent", "digits", "floored")


class Metrics(Catalogue[Metric]):
    """Metrics by name: built-in ones, then those of active plugins and of stored sweeps."""

    def __init__(self, own: tuple[Metric, ...]) -> None:
        super().__init__("metric", "trainables.metrics")
        self._entries = {metric.name: metric for metric in own}
        self._declared: dict[str, Metric] = {}
        self._loaded = True

    def register(
        self,
        name: str,
        *,
        better: Better,
        label: str = "",
        percent: bool = True,
        digits: int = 2,
        bounds: tuple[float, float] = (0.0, 1.0),
        floored: bool = False,
    ) -> Callable[[C], C]:
        """Return a decorator that registers a plugin's function as a metric.

        The function takes probabilities (N, K), float64, and labels (N,), int64, on one device. It
        returns finite values: one per row, (N,), whose mean is the metric, or a scalar. Values per
        row let a search compute the exact uncertainty of differences. Intervals over test rows call
        it with resampled rows, in which a class may be missing.

        Args:
            name: The name in sweep files and tables; see ``Metric``.
            better: ``higher``, ``lower`` or ``neither``; a search minimises only ``lower``.
            label: By default the name.
            percent: Whether it is a fraction, shown as a percentage.
            digits: Number of decimals shown.
            bounds: Lowest and highest value.
            floored: Whether it is an error with an expected value above 0 even for calibrated
                models, so that tables and comparisons show its noise floor; see ``noise_floor``.

        Raises:
            ValueError: If ``better`` has another value.
            TypeError: If the decorated object is not a function.
        """
        check_choice(f"metric {name!r}: better", better, BETTER)

        def add(compute: C) -> C:
            if not callable(compute) or inspect.isclass(compute):
                raise TypeError(f"metric {name!r} must be a function of probs and labels")
            metric = Metric(
                name,
                label or name,
                source="plugin",
                better=better,
                percent=percent,
                digits=digits,
                bounds=bounds,
                floored=floored,
                compute=compute,
            )
            self.add(name, metric)
            return compute

        return add

    @property
    def plugged(self) -> list[Metric]:
        """Return the metrics of active plugins."""
        return [metric for metric, _ in self._plugged.values()]

    @property
    def measurable(self) -> list[str]:
        """Return the names of metrics computed from log-probabilities and labels alone.

        Noise floors and the p-value and interval of the calibration test are left out.
        """
        ours = (m for m in self._entries.values() if m.source in ("report", "test", "rows"))
        means = {"signed_ece", *(f"{name}_coverage" for name in SETS)}
        names = (
            m.name
            for m in (*ours, *self.plugged)
            if m.better != "neither" or m.compute or m.name in means
        )
        return list(dict.fromkeys(names))

    def own(self, name: str) -> Metric | None:
        """Return a built-in metric; None for source ``rows``: plugins may use such names."""
        found = super().own(name)
        return None if found is None or found.source == "rows" else found

    def columns(self, names: Iterable[str]) -> list[str]:
        """Return the names, among ``names``, of metrics that are computed from stored rows."""
        return [n for n in names if n in self._entries and self[n].source == "rows"]

    def described(self) -> dict[str, dict[str, Any]]:
        """Return the properties ``SHOWN`` of the metrics of plugins, by name, as plain values."""
        found = {metric.name: asdict(metric) for metric in self.plugged}
        return {name: {key: plain[key] for key in SHOWN} for name, plain in found.items()}

    def declare(self, described: Mapping[str, Mapping[str, Any]]) -> None:
        """Add the metrics of a stored sweep's plugins, which can be shown but not computed."""
        for name, plain in described.items():
            if name not in self._entries:
                shown = {key: plain[key] for key in SHOWN if key in plain}
                self._declared[name] = Metric(name, **{"label": name, **shown}, source="plugin")

    @contextmanager
    def only(self, described: Iterable[Mapping[str, Mapping[str, Any]]]) -> Iterator[None]:
        """Know in this block only built-in metrics and those that are described."""
        before = self._plugged, self._declared
        self._plugged, self._declared = {}, {}
        for each in described:
            self.declare(each)
        try:
            yield
        finally:
            self._plugged, self._declared = before

    def names(self) -> list[str]:
        """Return all names, in the order of tables."""
        known = {**self._entries, **self._plugged, **self._declared}
        return [name for own in known for name in self._with_floor(own)]

    def _repr_html_(self) -> str:
        return html_table((self.noun, "label"), ((each.name, each.label) for each in self.values()))

    def _with_floor(self, name: str) -> list[str]:
        floor = f"{name}_floor"
        return [name, floor] if self._is_floor(floor) else [name]

    def _is_floor(self, name: object) -> bool:
        """Return True for the noise floor of a plugin's metric."""
        own = name.removesuffix("_floor") if isinstance(name, str) else ""
        found = own != name and own not in self._entries and own in self
        return found and self[own].floored

    def values(self) -> list[Metric]:
        """Return all metrics, in the order of tables."""
        return [self[name] for name in self.names()]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self._declared or self._is_floor(name)

    def __getitem__(self, name: str) -> Metric:
        if name not in self._declared and not super().__contains__(name):
            return self[name.removesuffix("_floor")].floor()
        return super().__getitem__(name) if super().__contains__(name) else self._declared[name]

    def _maker(self, entry: Metric) -> Any:
        return entry.compute


METRICS = Metrics(_ALL)
"""Every metric by name."""

REPORTED = tuple(metric.name for metric in _REPORTED)
"""The keys of ``calibration_report``, in its order."""

FLOORED = tuple(metric.name for metric in _REPORTED if metric.floored)
"""Built-in metrics that have a noise floor."""


def metrics_digest(*sources: str) -> str:
    """Return a SHA-256 of the names and versions of all metrics of some sources.

    Args:
        *sources: Some of ``report``, ``test``, ``pixels`` and ``suite``.
    """
    versions = {own.name: own.version for own in METRICS.values() if own.source in sources}
    return hashlib.sha256(json.dumps(versions, sort_keys=True).encode()).hexdigest()

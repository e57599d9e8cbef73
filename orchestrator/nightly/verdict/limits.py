"""Define how metrics are judged: thresholds, hard limits and the rate of false alarms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from trainables.metrics import METRICS

FAMILIES = ("quality", "speed", "time", "memory")
"""Groups of cells; multiple testing is corrected within each group."""

STAGES = ("train", "refine", "calibrate")
"""Stages whose time, relative to the other stages, is judged as ``STAGE_time`` of the night."""


class Measure(NamedTuple):
    """How a metric is judged.

    Attributes:
        relative: Smallest difference that matters, as a fraction of the usual value.
        absolute: Smallest difference that matters, in the metric's unit. A difference must exceed
            both.
        ratio: Whether values are compared by ratio (times, speeds, sizes), using logarithms.
        best: Whether a night's value is that of its best seed instead of the mean. Other load on
            a machine can only make runs slower, so the best run varies least.
    """

    family: str
    higher: bool = False
    relative: float = 0.0
    absolute: float = 0.0
    ratio: bool = False
    best: bool = False

    def allows(self, value: float) -> bool:
        """Return True if a figure is finite, and above 0 where differences are ratios."""
        return (0.0 if self.ratio else -math.inf) < value < math.inf


MEASURES: Mapping[str, Measure] = {
    **{
        metric.name: Measure("quality", metric.better == "higher", metric.relative, metric.absolute)
        for metric in sorted(
            METRICS.values(), key=lambda found: (found.source == "suite", not found.percent)
        )
        if metric.is_judged
    },
    "images_per_second": Measure("speed", higher=True, relative=0.15, ratio=True, best=True),
    "wall_seconds": Measure("time", relative=0.18, ratio=True, best=True),
    "total_seconds": Measure("time", relative=0.18, ratio=True, best=True),
    "peak_memory": Measure("memory", relative=0.20, ratio=True),
    **{f"{stage}_time": Measure("time", relative=0.015, ratio=True) for stage in STAGES},
}
"""Every metric that can be judged, with its default thresholds."""


def measure_of(metric: str) -> Measure:
    """Return how a metric is judged; ``SUITE/METRIC`` is judged as ``METRIC``.

    Raises:
        ValueError: If the metric is unknown; the message lists the known ones.
    """
    name = metric.rsplit("/", 1)[-1]
    if name not in MEASURES:
        raise ValueError(f"metric={metric!r} is not one of {', '.join(MEASURES)}")
    return MEASURES[name]


class StrictModel(BaseModel):
    """A section of a file: immutable, exact types, no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Threshold(StrictModel):
    """Smallest difference that matters; see ``Measure``. Ratios take only a relative one."""

    relative: Annotated[float, Field(ge=0, lt=1)] = 0.0
    absolute: Annotated[float, Field(ge=0)] = 0.0

    @model_validator(mode="after")
    def _says_something(self) -> Threshold:
        if not (self.relative or self.absolute):
            raise ValueError("relative and absolute are both 0; set one above 0")
        return self


class Bounds(StrictModel):
    """Bounds of a figure that do not depend on earlier nights."""

    min: float | None = None
    max: float | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Bounds:
        if self.min is None and self.max is None:
            raise ValueError("expected min, max or both, got neither")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min={self.min} is above max={self.max}")
        return self


class Limits(StrictModel):
    """The ``limits`` of a nightly file.

    Attributes:
        window: Number of last good nights from which the control limits are computed.
        false_alarms: Accepted false alarms in 30 nights, over all cells together. It determines the
            width of the control limits.
        thresholds: Practical thresholds by metric; ``MEASURES`` has the defaults.
        hard: Bounds by metric; one night outside raises the alarm.
    """

    window: Annotated[int, Field(ge=5, le=365)] = 21
    false_alarms: Annotated[float, Field(gt=0, le=30)] = 0.25
    # `dict`, because pydantic 2.11 does not convert the values of a `Mapping`.
    thresholds: dict[str, Threshold] = {}
    hard: dict[str, Bounds] = {}

    @field_validator("thresholds", "hard")
    @classmethod
    def _known(cls, value: Mapping[str, object]) -> Mapping[str, object]:
        for metric in value:
            measure_of(metric)
        return value

    @field_validator("thresholds")
    @classmethod
    def _ratios_are_relative(cls, value: Mapping[str, Threshold]) -> Mapping[str, Threshold]:
        for metric, threshold in value.items():
            if measure_of(metric).ratio and (threshold.absolute or not threshold.relative):
                raise ValueError(f"{metric} takes a relative threshold, not an absolute one")
        return value

    def threshold(self, metric: str) -> Threshold:
        """Return the practical threshold of a metric; ``SUITE/METRIC`` falls back on ``METRIC``."""
        measure = measure_of(metric)
        for name in (metric, metric.rsplit("/", 1)[-1]):
            if name in self.thresholds:
                return self.thresholds[name]
        return Threshold(relative=measure.relative, absolute=measure.absolute)

    def bounds(self, metric: str) -> Bounds | None:
        """Return the hard limits of a metric, if any; ``SUITE/METRIC`` falls back on ``METRIC``."""
        return self.hard.get(metric) or self.hard.get(metric.rsplit("/", 1)[-1])

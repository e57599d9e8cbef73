"""How much worse is too much: thresholds, hard limits and the false alarms that are bearable."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from trainables.metrics import METRICS

FAMILIES = ("quality", "speed", "time", "memory")
"""Groups of cells that are judged separately, each with its own correction for their number."""

STAGES = ("train", "refine", "calibrate")
"""Stages whose time is judged relative to the others, as ``STAGE_time`` of the whole night."""


class Measure(NamedTuple):
    """How a metric is judged.

    Attributes:
        relative: Smallest difference that matters, as a fraction of the usual value.
        absolute: Smallest difference that matters, in the metric's own unit. A difference matters
            if it is larger than both.
        ratio: Whether differences are ratios (times, speeds, sizes), compared by their logarithms.
        best: Whether a night's value is that of its best seed, not the mean. Other work on a
            machine can only make a run slower, so the best of several runs varies least.
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
"""Every metric that can be judged, with the thresholds that hold if the file names none."""


def measure_of(metric: str) -> Measure:
    """Return how a metric is judged; ``SUITE/METRIC`` is judged as ``METRIC``.

    Raises:
        ValueError: If it is unknown; the text lists the known ones.
    """
    name = metric.rsplit("/", 1)[-1]
    if name not in MEASURES:
        raise ValueError(f"metric={metric!r} is not one of {', '.join(MEASURES)}")
    return MEASURES[name]


class StrictModel(BaseModel):
    """Keys of a file: no others, of exactly the types declared, never changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Threshold(StrictModel):
    """Smallest difference that matters, as ``Measure`` has it; no absolute one for a ratio."""

    relative: Annotated[float, Field(ge=0, lt=1)] = 0.0
    absolute: Annotated[float, Field(ge=0)] = 0.0

    @model_validator(mode="after")
    def _says_something(self) -> Threshold:
        if not (self.relative or self.absolute):
            raise ValueError("relative and absolute are both 0; one must be above")
        return self


class Bounds(StrictModel):
    """Values that a figure must never leave, whatever it was before."""

    min: float | None = None
    max: float | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Bounds:
        if self.min is None and self.max is None:
            raise ValueError("neither min nor max is given")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min={self.min} is above max={self.max}")
        return self


class Limits(StrictModel):
    """The ``limits`` of a nightly file.

    Attributes:
        window: Nights in a row that tonight is compared with.
        false_alarms: False alarms that are bearable in 30 nights, over all cells together; control
            limits are as wide as that takes.
        thresholds: Practical thresholds by metric, in place of those of ``MEASURES``.
        hard: Bounds by metric; one night outside raises the alarm.
    """

    window: Annotated[int, Field(ge=5, le=365)] = 21
    false_alarms: Annotated[float, Field(gt=0, le=30)] = 0.25
    # No `Mapping`: pydantic 2.11 leaves its values as they are.
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
        """Return the practical threshold of ``SUITE/METRIC``, else that of ``METRIC``."""
        measure = measure_of(metric)
        for name in (metric, metric.rsplit("/", 1)[-1]):
            if name in self.thresholds:
                return self.thresholds[name]
        return Threshold(relative=measure.relative, absolute=measure.absolute)

    def bounds(self, metric: str) -> Bounds | None:
        """Return the hard limits of ``SUITE/METRIC``, else of ``METRIC``, if there are any."""
        return self.hard.get(metric) or self.hard.get(metric.rsplit("/", 1)[-1])

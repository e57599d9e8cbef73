"""Measurements and verdict of one night, as plain values that can be stored and compared."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any, Literal, NamedTuple

from pydantic import TypeAdapter, ValidationError

Status = Literal["ok", "not comparable", "suspicious", "regression", "incomplete"]
Reason = Literal["failed", "missing", "unexpected", "not finite", "limit", "twin", "nights", "step"]

MISSING: tuple[Reason, ...] = ("failed", "missing", "unexpected")
"""Reasons of alarms about results that are missing or not in the nightly file."""


class CellKey(NamedTuple):
    """One series of the benchmark: a metric of a recipe on a task.

    Attributes:
        recipe, task: Such as ``mbls+ts`` and ``digits/convnet/digits``; both are ``*`` for a figure
            of the whole night.
        metric: A key of ``MEASURES``, such as ``ece`` or ``wall_seconds``, or ``SUITE/METRIC``;
            empty for all metrics of the recipe on the task.
    """

    recipe: str
    task: str
    metric: str = ""

    def __str__(self) -> str:
        """Return ``RECIPE on TASK: METRIC``, which ``parse`` reads."""
        pair = f"{self.recipe} on {self.task}"
        return f"{pair}: {self.metric}" if self.metric else pair

    @property
    def pair(self) -> tuple[str, str]:
        """Return recipe and task."""
        return self.recipe, self.task

    @classmethod
    def parse(cls, text: str) -> CellKey:
        """Read ``RECIPE on TASK: METRIC`` or ``RECIPE on TASK``; else raise ``ValueError``."""
        pair, _, metric = text.partition(": ")
        recipe, _, task = map(str.strip, pair.partition(" on "))
        if not (recipe and task):
            raise ValueError(f"cell={text!r} is not RECIPE on TASK: METRIC")
        return cls(recipe, task, metric.strip())


FINE, ALARM, COULD_NOT_RUN = 0, 3, 4
"""Exit codes of ``calsweep nightly run``."""
WHOLE_NIGHT = ("*", "*")
"""Recipe and task in the ``CellKey`` of a figure of the whole night."""


@dataclass(frozen=True)
class Shape:
    """All recipes, tasks, metrics and seeds that a night must have."""

    recipes: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()


@dataclass(frozen=True)
class Row:
    """The computation of a recipe on a task.

    Attributes:
        stage: Last stage, whose speed and memory are measured: ``train``, ``refine``,
            ``calibrate`` or ``given``; empty for the whole night.
        definition: Hash of task, parameters and search settings; for the whole night, of all its
            definitions and seeds. Only figures with the same definition are comparable.
    """

    stage: str
    definition: str


@dataclass(frozen=True)
class NightRecord:
    """One night of the benchmark.

    Attributes:
        night: Such as ``2026-11-21``.
        started: UNIX time, seconds.
        cells: Values of each cell by seed: fractions instead of percentages; images per second,
            seconds or bytes for costs.
        failed: Why a recipe has no figures on a task, by (recipe, task).
        environment: Possible causes of a change: hardware, library versions, ``code`` (commit),
            ``data DATASET`` (keys of the prepared data), ``benchmark`` (hash of its definition).
        rows: Computations by recipe and task; empty in records from before version 1.0.
    """

    night: str
    started: float
    cells: Mapping[CellKey, Mapping[int, float]] = field(default_factory=dict)
    failed: Mapping[tuple[str, str], str] = field(default_factory=dict)
    shape: Shape = Shape()
    environment: Mapping[str, str] = field(default_factory=dict)
    rows: Mapping[tuple[str, str], Row] = field(default_factory=dict)

    def comparable(self, other: NightRecord, pair: tuple[str, str]) -> bool:
        """Return True if both nights define a recipe and task in the same way.

        If a record lacks their definition, the definitions of the whole benchmark are compared.
        """
        if pair in self.rows and pair in other.rows:
            return self.rows[pair].definition == other.rows[pair].definition
        return self.environment.get("benchmark") == other.environment.get("benchmark")

    def mean(self, cell: CellKey) -> float | None:
        """Return a figure's mean over seeds, None if the night has no such figure."""
        values = self.cells.get(cell)
        return fmean(values.values()) if values else None

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``json.dumps``; see ``plain``."""
        cells = [{**key._asdict(), "values": values} for key, values in self.cells.items()]
        failed = [
            {"recipe": recipe, "task": task, "reason": reason}
            for (recipe, task), reason in self.failed.items()
        ]
        rows = [{"recipe": r, "task": t, **vars(row)} for (r, t), row in self.rows.items()]
        own = {"cells": cells, "failed": failed, "shape": vars(self.shape), "rows": rows}
        return plain({**vars(self), **own})

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> NightRecord:
        """Read the values of ``to_json``; raise an exception if any are missing or wrong."""
        cells = {
            CellKey(row["recipe"], row["task"], row["metric"]): {
                int(seed): float(value) for seed, value in row["values"].items()
            }
            for row in data["cells"]
        }
        failed = {(row["recipe"], row["task"]): row["reason"] for row in data["failed"]}
        shape = Shape(**{name: tuple(values) for name, values in data["shape"].items()})
        started, environment = float(data["started"]), dict(data["environment"])
        rows = {
            (row["recipe"], row["task"]): Row(row["stage"], row["definition"])
            for row in data.get("rows", ())
        }
        return cls(data["night"], started, cells, failed, shape, environment, rows)


@dataclass(frozen=True)
class Finding:
    """A cell that differs from earlier nights, or has a fault for which one night is enough.

    Attributes:
        cell: Without a metric if the finding is about all metrics of a recipe on a task.
        kind: ``hard`` (one night is enough) or ``soft`` (a difference from earlier nights that is
            larger than noise and the practical threshold).
        reason: Such as ``twin`` (the recipe has become equal to another one), ``nights`` (two
            nights in a row) or ``step`` (a step or a drift in the series).
        value: Tonight's figure, the mean or the best of the seeds, in the metric's unit; for
            ``STAGE_time``, the factor by which the stage became slower. None if there is no figure.
        expected: Figure expected from earlier nights, in the same unit.
        lower, upper: Control limits, or the hard limit; None if there is no limit on that side.
        threshold: Difference that matters in practice, in the same unit.
        chance: Probability that noise alone causes a difference this large; None for hard findings.
        nights: Number of earlier nights with which the cell was compared.
        since: First night of the difference; for hard findings except twins, the judged night.
        causes: Changes of hardware, libraries, code or data shortly before ``since`` (for a step,
            also shortly after), such as ``torch: 2.11.0 -> 2.12.0``.
    """

    cell: CellKey
    kind: Literal["hard", "soft"]
    reason: Reason
    text: str
    value: float | None = None
    expected: float | None = None
    lower: float | None = None
    upper: float | None = None
    threshold: float | None = None
    chance: float | None = None
    nights: int = 0
    since: str = ""
    causes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """The verdict on a night.

    Attributes:
        status: ``ok``; ``not comparable`` (the benchmark was redefined since the night before, and
            nothing else is wrong); ``suspicious`` (something is worse, for one night so far);
            ``regression`` (an alarm about figures); ``incomplete`` (all alarms are about results
            that are missing or not in the nightly file).
        alarms: Findings that raise the alarm, hard ones first.
        suspicions: Findings that will raise the alarm if the next night confirms them.
        improvements: Figures that were better for two nights in a row; they never raise an alarm.
    """

    night: str
    status: Status
    alarms: tuple[Finding, ...] = ()
    suspicions: tuple[Finding, ...] = ()
    improvements: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def findings(self) -> dict[str, tuple[Finding, ...]]:
        """The alarms, suspicions and improvements, by these names."""
        return {kind: getattr(self, kind) for kind in ("alarms", "suspicions", "improvements")}

    @property
    def raised(self) -> bool:
        """Whether there is an alarm: status ``regression`` or ``incomplete``."""
        return bool(self.alarms)

    @property
    def code(self) -> int:
        """The exit code of ``calsweep nightly run``."""
        return ALARM if self.raised else FINE

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``json.dumps``; see ``plain``."""
        return plain(asdict(self))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Verdict:
        """Read the values of ``to_json``; raise ``ValueError`` for others."""
        try:
            return _VERDICTS.validate_python(data)
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


_VERDICTS = TypeAdapter(Verdict)


def plain(value: Any) -> Any:
    """Return a value for ``json.dumps``; NaN and infinite numbers become text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    return [plain(entry) for entry in value] if isinstance(value, (list, tuple)) else value

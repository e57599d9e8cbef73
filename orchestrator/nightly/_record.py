"""What one night measured, as plain values that can be stored and compared."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = ["CellKey", "NightRecord", "Shape", "number_from_json", "number_to_json"]


class CellKey(NamedTuple):
    """One series of the benchmark: a metric of a recipe on a task.

    Attributes:
        recipe: Such as ``mbls+ts``; ``*`` for a figure of the whole night.
        task: Such as ``digits/convnet/digits``; ``*`` for a figure of the whole night.
        metric: A name that ``Limits`` knows, such as ``ece`` or ``wall_seconds``; empty for the
            pair of recipe and task as a whole.
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
        """Recipe and task."""
        return self.recipe, self.task

    @classmethod
    def parse(cls, text: str) -> CellKey:
        """Read ``RECIPE on TASK: METRIC``; without a metric, the pair as a whole.

        Raises:
            ValueError: If it is neither.
        """
        pair, _, metric = text.partition(": ")
        recipe, on, task = pair.partition(" on ")
        if not (on and recipe.strip() and task.strip()):
            raise ValueError(f"cell={text!r} is not RECIPE on TASK: METRIC")
        return cls(recipe.strip(), task.strip(), metric.strip())


@dataclass(frozen=True)
class Shape:
    """What the nightly file asks for; a night that holds anything else is alarmed.

    Attributes:
        recipes: Rows of the table.
        tasks: Column groups of the table.
        metrics: Figures that every recipe has on every task.
        seeds: Seeds that every such figure has.
    """

    recipes: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()


@dataclass(frozen=True)
class NightRecord:
    """One night of the benchmark.

    Attributes:
        night: Such as ``2026-11-21``; later nights sort after earlier ones.
        started: UNIX time, seconds.
        cells: Values by seed; fractions for quality, images a second, seconds, bytes.
        failed: Reason by recipe and task, for those that have no figures.
        shape: What the night should hold.
        environment: What may explain a change, by a readable name: hardware, library versions,
            ``code`` (commit), ``data DATASET`` (fingerprint), ``benchmark`` (hash of its file).
    """

    night: str
    started: float
    cells: Mapping[CellKey, Mapping[int, float]] = field(default_factory=dict)
    failed: Mapping[tuple[str, str], str] = field(default_factory=dict)
    shape: Shape = Shape()
    environment: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``json.dumps``; numbers that are not finite become text."""
        return {
            "night": self.night,
            "started": self.started,
            "cells": [
                {**key._asdict(), "values": {str(s): number_to_json(v) for s, v in values.items()}}
                for key, values in self.cells.items()
            ],
            "failed": [
                {"recipe": recipe, "task": task, "reason": reason}
                for (recipe, task), reason in self.failed.items()
            ],
            "shape": {name: list(getattr(self.shape, name)) for name in _SHAPE},
            "environment": dict(self.environment),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> NightRecord:
        """Return what ``to_json`` wrote.

        Raises:
            KeyError: If a part is missing.
            ValueError: If a number cannot be read.
        """
        return cls(
            night=data["night"],
            started=float(data["started"]),
            cells={
                CellKey(row["recipe"], row["task"], row["metric"]): {
                    int(seed): number_from_json(value) for seed, value in row["values"].items()
                }
                for row in data["cells"]
            },
            failed={(row["recipe"], row["task"]): row["reason"] for row in data["failed"]},
            shape=Shape(**{name: tuple(data["shape"][name]) for name in _SHAPE}),
            environment=dict(data["environment"]),
        )


_SHAPE = ("recipes", "tasks", "metrics", "seeds")


def number_to_json(value: float) -> float | str:
    """Return a number, or ``nan``, ``inf``, ``-inf`` as text: JSON has no names for them."""
    return float(value) if math.isfinite(value) else str(float(value))


def number_from_json(value: float | str) -> float:
    """Return what ``number_to_json`` wrote.

    Raises:
        ValueError: If it is no number.
    """
    return float(value)

"""The types behind a search space file, and their translation into Optuna distributions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

KINDS = ("methods", "refinements", "calibrators", "objectives")

Value = float | int | str | bool


class SpaceError(ValueError):
    """A search space, or a value meant for one, is wrong; the text names what, where and why."""


@dataclass(frozen=True)
class Parameter:
    """One hyper-parameter of a method, refinement, calibrator or fitting objective.

    Attributes:
        name: The field's name; also the constructor argument and the MLflow parameter.
        symbol: The letter that the paper writes, such as ``λ``.
        type: ``float``, ``int`` or ``categorical``.
        default: The published default, which every study tries first.
        source: Paper and place that the default and the range come from.
        low: Smallest value searched (``float`` and ``int``).
        high: Largest value searched (``float`` and ``int``).
        scale: ``linear`` or ``log``.
        choices: The values of a ``categorical``.
        defaults: Published defaults that hold for one ``dataset`` or ``dataset/model`` only.
        grid: The values that the paper itself tried, where it says so.
        search: Whether a sweep searches it; a parameter that is not searched keeps its default.
        note: Anything a reader of the table should know.
    """

    name: str
    symbol: str
    type: str
    default: Value
    source: str
    low: float | None = None
    high: float | None = None
    scale: str = "linear"
    choices: tuple[Value, ...] = ()
    defaults: Mapping[str, Value] = field(default_factory=dict)
    grid: tuple[Value, ...] = ()
    search: bool = True
    note: str = ""

    def __post_init__(self) -> None:
        """Check that the range makes sense and that every published value lies inside it."""
        if self.type not in ("float", "int", "categorical"):
            raise SpaceError(
                f"{self.name}: type {self.type!r} is not one of float, int, categorical"
            )
        if self.type == "categorical":
            if not self.choices:
                raise SpaceError(f"{self.name}: a categorical parameter needs choices")
        else:
            self._check_range()
        for value in (self.default, *self.defaults.values(), *self.grid):
            self.check(value)

    def _check_range(self) -> None:
        if self.low is None or self.high is None or not self.low <= self.high:
            raise SpaceError(f"{self.name}: needs low <= high, got {self.low!r} and {self.high!r}")
        if self.scale not in ("linear", "log"):
            raise SpaceError(f"{self.name}: scale {self.scale!r} is not one of linear, log")
        if self.scale == "log" and self.low <= 0:
            raise SpaceError(f"{self.name}: a log scale needs low > 0, got {self.low!r}")

    def check(self, value: Any) -> Value:
        """Return ``value`` as this parameter's type.

        Raises:
            SpaceError: If it has another type or lies outside the range; the text gives both.
        """
        if self.type == "categorical":
            for choice in self.choices:
                if choice == value and isinstance(choice, bool) == isinstance(value, bool):
                    return choice
            allowed = ", ".join(map(str, self.choices))
            raise SpaceError(f"{self.name}={value!r} is not one of {allowed}")
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            raise SpaceError(f"{self.name}={value!r} is not a finite number")
        if self.type == "int" and int(value) != value:
            raise SpaceError(f"{self.name}={value!r} is not a whole number")
        assert self.low is not None
        assert self.high is not None
        if not self.low <= value <= self.high:
            raise SpaceError(f"{self.name}={value!r} is outside [{self.low:g}, {self.high:g}]")
        return int(value) if self.type == "int" else float(value)

    def distribution(self) -> BaseDistribution:
        """Return the Optuna distribution that a sweep samples from."""
        if self.type == "categorical":
            return CategoricalDistribution(self.choices)
        assert self.low is not None
        assert self.high is not None
        log = self.scale == "log"
        if self.type == "int":
            return IntDistribution(int(self.low), int(self.high), log=log)
        return FloatDistribution(self.low, self.high, log=log)

    def default_for(self, dataset: str | None = None, model: str | None = None) -> Value:
        """Return the published default for a dataset and model, else for the dataset, else any."""
        for key in (f"{dataset}/{model}", str(dataset)):
            if key in self.defaults:
                return self.defaults[key]
        return self.default


@dataclass(frozen=True)
class SearchSpace:
    """Every parameter of one method, refinement, calibrator or fitting objective.

    Attributes:
        name: The name in recipes, such as ``mbls``.
        kind: One of ``KINDS``.
        title: The full name, for people.
        source: The paper.
        parameters: The parameters by name, in the file's order.
    """

    name: str
    kind: str
    title: str
    source: str
    parameters: Mapping[str, Parameter]

    def searched(self) -> dict[str, Parameter]:
        """Return the parameters that a sweep searches."""
        return {name: p for name, p in self.parameters.items() if p.search}

    def distributions(self) -> dict[str, BaseDistribution]:
        """Return the Optuna distribution of every searched parameter."""
        return {name: p.distribution() for name, p in self.searched().items()}

    def default_point(self, dataset: str | None = None, model: str | None = None) -> dict[str, Any]:
        """Return the published value of every parameter, searched or not."""
        return {name: p.default_for(dataset, model) for name, p in self.parameters.items()}

    def check_point(self, point: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``point`` with every value checked and cast.

        Raises:
            SpaceError: If a parameter is unknown or its value is not allowed.
        """
        return {name: self.parameter(name).check(value) for name, value in point.items()}

    def parameter(self, name: str) -> Parameter:
        """Return one parameter.

        Raises:
            SpaceError: If there is none of that name; the text lists those there are.
        """
        if name not in self.parameters:
            known = ", ".join(self.parameters) or "none"
            raise SpaceError(f"{self.name} has no parameter {name!r}; it has: {known}")
        return self.parameters[name]

"""The calibrators by name, and the parsing of their names in recipes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainables.calibrators.objectives import OBJECTIVES
from trainables.common.errors import InputError, known_names, listed_by
from trainables.common.registry import Registry
from trainables.common.stages import splits

if TYPE_CHECKING:
    from trainables.calibrators._base import Calibrator

CALIBRATORS: Registry[Calibrator] = Registry(
    "calibrator", "trainables.calibrators", "trainables.calibrators._base.Calibrator", "calibrators"
)
DEFAULT_OBJECTIVE = "ce"


def build_calibrator(
    name: str,
    objective: str | None = None,
    objective_parameters: Mapping[str, Any] | None = None,
    **parameters: Any,
) -> Calibrator:
    """Make a calibrator, for example ``build_calibrator("ts", objective="cls")``.

    Args:
        name: A name from ``CALIBRATORS.names()``.
        objective: A name from ``OBJECTIVES.names()``, for calibrators that take one (``ce`` if
            left out); None for the others.
        objective_parameters: Hyper-parameters of the objective, such as ``{"smoothing": 0.05}``.
        **parameters: Hyper-parameters of the calibrator itself.

    Raises:
        InputError: If a name is unknown, or the calibrator does not accept an objective.
        ValueError: If a value is out of its range.
    """
    calibrator = CALIBRATORS.build(name, **parameters)
    # Do not check its class, because importing that needs PyTorch.
    if set_objective := getattr(calibrator, "set_objective", None):
        set_objective(objective or DEFAULT_OBJECTIVE, **(objective_parameters or {}))
    elif objective is not None or objective_parameters:
        raise InputError(f"{name} accepts no fitting objective; {_with_objective()} do")
    return calibrator


def calibrator_from_recipe(text: str, parameters: Mapping[str, Any]) -> Calibrator:
    """Make the calibrator of a recipe, such as ``ts-ls``.

    Args:
        text: See ``parse_calibrator``, also for its errors.
        parameters: Hyper-parameters of the calibrator and of its fitting objective together.

    Raises:
        ValueError: If a value is out of its range.
    """
    name, objective = parse_calibrator(text)
    own = set(CALIBRATORS.parameter_names(name))
    if objective is None:
        return build_calibrator(name, **parameters)
    return build_calibrator(
        name,
        objective,
        {key: value for key, value in parameters.items() if key not in own},
        **{key: value for key, value in parameters.items() if key in own},
    )


def parse_calibrator(text: str) -> tuple[str, str | None]:
    """Split a recipe's calibrator, such as ``ts-cls``, into calibrator and fitting objective.

    Args:
        text: A calibrator's name, which may be followed by a hyphen and an objective.

    Returns:
        ``("ts", "cls")`` for ``ts-cls``, ``("ts", "ce")`` for ``ts``, ``("meta-acc", None)`` for
        calibrators without a choice of objective.

    Raises:
        InputError: If a name is unknown, or the calibrator accepts no objective.
    """
    if text in CALIBRATORS:
        return text, DEFAULT_OBJECTIVE if _takes_objective(text) else None
    split = next((split for split in splits(text) if split[0] in CALIBRATORS), None)
    if split is None:
        raise InputError(
            f"unknown calibrator {text!r}; {known_names(text, CALIBRATORS.names())}; "
            f"{_with_objective()} may be followed by -{', -'.join(OBJECTIVES.names())}; "
            f"{listed_by('calibrators')}"
        )
    name, objective = split
    if not _takes_objective(name):
        raise InputError(f"{text!r}: {name} accepts no fitting objective; {_with_objective()} do")
    OBJECTIVES.require(objective)
    return name, objective


def is_calibrator(text: str) -> bool:
    """Return True for the name of a calibrator, with or without an objective."""
    try:
        parse_calibrator(text)
    except InputError:
        return False
    return True


def _with_objective() -> str:
    return ", ".join(n for n in CALIBRATORS.names() if _takes_objective(n))


def _takes_objective(name: str) -> bool:
    return CALIBRATORS.outline(name).takes_objective

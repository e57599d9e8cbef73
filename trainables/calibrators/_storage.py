"""Keeps fitted calibrators on disk: the tensors as safetensors, all else as JSON beside them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from trainables.calibrators._base import Calibrator, FitReport
from trainables.calibrators._build import build_calibrator
from trainables.calibrators._temperature import TemperatureCalibrator
from trainables.errors import InputError

TENSORS, DESCRIPTION = "calibrator.safetensors", "calibrator.json"
FORMAT = 1


def save_calibrator(calibrator: Calibrator, folder: str | Path) -> Path:
    """Write a fitted calibrator into a folder, which is made if need be.

    Returns:
        The folder.

    Raises:
        InputError: If the calibrator is not fitted.
    """
    state = {name: tensor.contiguous() for name, tensor in calibrator.state_dict().items()}
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    save_file(state, place / TENSORS)
    text = json.dumps(describe(calibrator), indent=2, allow_nan=False)
    (place / DESCRIPTION).write_text(text + "\n", encoding="utf-8")
    return place


def load_calibrator(folder: str | Path) -> Calibrator:
    """Read a calibrator that ``save_calibrator`` wrote.

    Raises:
        InputError: If a file is missing, damaged or of another format.
    """
    place = Path(folder)
    fields = _read_description(place / DESCRIPTION)
    try:
        calibrator = build_calibrator(
            fields["name"],
            fields["objective"],
            fields["objective_parameters"],
            **fields["parameters"],
        )
        state = load_file(place / TENSORS)
        if isinstance(calibrator, TemperatureCalibrator):
            calibrator.objective.restore(fields["learned"])
        calibrator.report = FitReport(**_with_nan(fields["report"]))
        calibrator.load_state_dict(state)
    # What wrong types and values in the description raise, and a state of other shapes.
    except (
        AttributeError,
        KeyError,
        OSError,
        RuntimeError,
        SafetensorError,
        TypeError,
        ValueError,
    ) as error:
        raise InputError(f"{place}: not a saved calibrator ({error})") from error
    return calibrator


def describe(calibrator: Calibrator) -> dict[str, Any]:
    """Return everything about a fitted calibrator but its tensors, ready for JSON."""
    report = calibrator.report
    chosen = calibrator if isinstance(calibrator, TemperatureCalibrator) else None
    return {
        "format": FORMAT,
        "name": calibrator.name,
        "objective": chosen.objective_name if chosen else None,
        "objective_parameters": chosen.objective_parameters if chosen else {},
        "parameters": calibrator.parameters(),
        "num_classes": calibrator.num_classes,
        "summary": calibrator.summary(),
        "learned": chosen.objective.state() if chosen else {},
        "report": _without_nan(vars(report)) if report else {},
    }


def _read_description(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, RecursionError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as a saved calibrator ({error})") from error
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise InputError(f"{path}: not a saved calibrator of format {FORMAT}")
    return fields


def _without_nan(fields: dict[str, Any]) -> dict[str, Any]:
    return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in fields.items()}


def _with_nan(fields: dict[str, Any]) -> dict[str, Any]:
    return {k: math.nan if v is None else v for k, v in fields.items()}

"""Stores fitted calibrators on disk, as safetensors and JSON with checksums."""

import json
import math
import os
import shutil
import uuid
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from trainables.calibrators._base import Calibrator, FitReport, ObjectiveCalibrator
from trainables.calibrators._registry import build_calibrator
from trainables.common.errors import InputError, StorageError
from trainables.common.files import (
    MANIFEST,
    damage,
    inherit,
    place_folder,
    read_document,
    seal,
    sync,
)
from trainables.common.paths import local_path

TENSORS, DESCRIPTION = "calibrator.safetensors", "calibrator.json"
FORMAT = 2


def save_calibrator(calibrator: Calibrator, folder: str | Path) -> Path:
    """Write a fitted calibrator to a folder, which is created if missing; return its path.

    Files are replaced only after all were written, so that a full disk keeps the old ones.

    Raises:
        InputError: If the calibrator is not fitted.
        StorageError: If the folder cannot be written, for example on a full disk.
    """
    state = {name: tensor.contiguous() for name, tensor in calibrator.state_dict().items()}
    text = json.dumps(_described(calibrator), indent=2, allow_nan=False)
    place = Path(folder)
    draft = place.resolve().with_name(f"{place.resolve().name}.{uuid.uuid4().hex}.tmp")
    try:
        draft.mkdir(parents=True)
        save_file(state, draft / TENSORS)
        inherit(draft / TENSORS)
        (draft / DESCRIPTION).write_text(text + "\n", encoding="utf-8")
        seal(draft)
        _publish(draft, place)
    except (OSError, SafetensorError) as error:
        raise StorageError(f"cannot write calibrator {place}: {error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return place


def load_calibrator(folder: str | Path) -> Calibrator:
    """Read a calibrator of ``save_calibrator``.

    Raises:
        InputError: If a file is missing, damaged or has another format, or the calibrator's name is
            unknown.
    """
    place = local_path(folder, "calibrator")
    if not any((place / name).exists() for name in (MANIFEST, TENSORS, DESCRIPTION)):
        raise InputError(f"{place} has no calibrator; name a folder that has {DESCRIPTION}")
    if found := damage(place, (TENSORS, DESCRIPTION), alone=False):
        raise InputError(f"{place}: damaged calibrator ({found}); fit it again")
    fields = read_document(place / DESCRIPTION, "a saved calibrator", FORMAT)
    try:
        chosen = fields["objective"], fields["objective_parameters"]
        calibrator = build_calibrator(fields["name"], *chosen, **fields["parameters"])
        state = load_file(place / TENSORS)
        if isinstance(calibrator, ObjectiveCalibrator):
            calibrator.objective.restore(fields["learned"])
        report: dict[str, Any] = fields["report"]
        report = {key: math.nan if v is None else v for key, v in report.items()}
        calibrator.report = FitReport(**report)
        calibrator.load_state_dict(state)
    except Exception as error:  # Wrong types, values and shapes may raise anything.
        raise InputError(f"{place}: not a saved calibrator ({error})") from error
    return calibrator


def _publish(draft: Path, place: Path) -> None:
    """Move a draft to its place; an existing folder keeps its other files."""
    if not place.is_dir():
        place_folder(draft, place)
        return
    # Move the manifest first, so that an interruption leaves a detectable mismatch.
    for name in (MANIFEST, TENSORS, DESCRIPTION):
        sync(draft / name)
        os.replace(draft / name, place / name)
    sync(place)


def _described(calibrator: Calibrator) -> dict[str, Any]:
    """Return a fitted calibrator without its tensors, ready for JSON."""
    report = calibrator.report
    chosen = calibrator if isinstance(calibrator, ObjectiveCalibrator) else None
    return {
        "format": FORMAT,
        "name": calibrator.name,
        "objective": chosen.objective_name if chosen else None,
        "objective_parameters": chosen.objective_parameters if chosen else {},
        "parameters": calibrator.parameters(),
        "num_classes": calibrator.num_classes,
        "summary": calibrator.summary(),
        "learned": chosen.objective.state() if chosen else {},
        # JSON has no NaN, the only value for which v != v.
        "report": {k: v if v == v else None for k, v in vars(report).items()} if report else {},
    }

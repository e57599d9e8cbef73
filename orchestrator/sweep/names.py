"""Names of sweeps and studies, without importing PyTorch."""

import re

from trainables.common.stages import GIVEN

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
BASELINES = ("ce", GIVEN)  # Recipes of the accuracy guard: for trainings, for given logits.
LONGEST_NAME = 100  # File names contain the sweep's name and may have 255 bytes.


def is_sweep_name(name: str) -> bool:
    """Return True if a sweep may have this name."""
    return bool(NAME.fullmatch(name)) and len(name) <= LONGEST_NAME


def study_id(task: str, recipe: str) -> str:
    """Return the name of the study of a recipe on a task."""
    return f"{task}|{recipe}"

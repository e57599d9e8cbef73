"""What sweeps and studies are called: to ask for one takes no PyTorch."""

import re

from trainables.common.stages import GIVEN

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
BASELINES = ("ce", GIVEN)  # What the accuracy guard compares with: trainings, and given logits.
LONGEST_NAME = 100  # It is part of the names of files, which may have 255 bytes.


def is_sweep_name(name: str) -> bool:
    """Return True if a sweep may be called so."""
    return bool(NAME.fullmatch(name)) and len(name) <= LONGEST_NAME


def study_id(task: str, recipe: str) -> str:
    """Return the name of the study of a recipe on a task."""
    return f"{task}|{recipe}"

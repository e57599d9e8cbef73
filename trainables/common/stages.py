"""The stages of a trial, and references to their outcomes: to ask for one takes no PyTorch."""

from typing import NamedTuple

GIVEN = "given"  # The stage, and what a recipe calls it, whose logits need no training.
STAGES = ("train", "refine", "calibrate")  # In the order in which they build on each other.
EVERY_STAGE = (GIVEN, *STAGES)


class ArtifactRef(NamedTuple):
    """Names a stored outcome: the stage that computed it, and its ``stage_key``.

    Besides ``EVERY_STAGE`` there are ``features`` and ``evaluate``.
    """

    stage: str
    key: str

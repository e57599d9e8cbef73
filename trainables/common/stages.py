"""Names of stages, outcomes and calibrators: to read one takes no PyTorch."""

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


def splits(text: str) -> list[tuple[str, str]]:
    """Return the texts before and after each hyphen of a recipe's calibrator, the last first."""
    places = [place for place, sign in enumerate(text) if sign == "-"]
    return [(text[:place], text[place + 1 :]) for place in reversed(places)]

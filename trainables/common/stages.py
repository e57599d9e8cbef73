"""Names of stages, outcomes and calibrators; importing them needs no PyTorch."""

from typing import NamedTuple

GIVEN = "given"  # The stage of logits that need no training, and its name in recipes.
STAGES = ("train", "refine", "calibrate")  # Each stage builds on the previous one.
EVERY_STAGE = (GIVEN, *STAGES)


class ArtifactRef(NamedTuple):
    """The stage that computed a stored outcome, and its ``stage_key``.

    ``stage`` is one of ``EVERY_STAGE``, ``features`` or ``evaluate``.
    """

    stage: str
    key: str


def splits(text: str) -> list[tuple[str, str]]:
    """Return the texts before and after each hyphen of a recipe's calibrator, last hyphen first."""
    places = [place for place, sign in enumerate(text) if sign == "-"]
    return [(text[:place], text[place + 1 :]) for place in reversed(places)]

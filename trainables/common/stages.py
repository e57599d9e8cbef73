"""Names of stages, and of a calibrator and its objective: to read one takes no PyTorch."""

GIVEN = "given"  # The stage, and what a recipe calls it, whose logits need no training.
STAGES = ("train", "refine", "calibrate")  # In the order in which they build on each other.
EVERY_STAGE = (GIVEN, *STAGES)


def splits(text: str) -> list[tuple[str, str]]:
    """Return the texts before and after each hyphen of a recipe's calibrator, the last first."""
    places = [place for place, sign in enumerate(text) if sign == "-"]
    return [(text[:place], text[place + 1 :]) for place in reversed(places)]

"""The stages of a trial by name: to ask for one takes no PyTorch."""

GIVEN = "given"  # The stage, and what a recipe calls it, whose logits need no training.
STAGES = ("train", "refine", "calibrate")  # In the order in which they build on each other.
EVERY_STAGE = (GIVEN, *STAGES)

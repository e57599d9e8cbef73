"""What studies are called, apart from what plans them: to ask for one takes no PyTorch."""


def study_id(task: str, recipe: str) -> str:
    """Return the name of the study of a recipe on a task."""
    return f"{task}|{recipe}"


GIVEN = "given"
"""The model of tasks with logits, and the recipe of nothing; ``trainables.stages.GIVEN``."""

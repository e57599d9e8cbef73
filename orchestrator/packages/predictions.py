"""Files of predictions: the outputs of one trained configuration for test or validation rows."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from orchestrator.logits.files import write_arrays
from orchestrator.packages.package import TEST, Cell, Package
from trainables.common.archives import ArrayArchive
from trainables.common.errors import InputError
from trainables.common.later import Tensor, torch
from trainables.common.logit_rows import check_rows

NAMES = ("logits", "labels", "rows", "task", "recipe", "seed")


@dataclass(frozen=True, eq=False)
class RowPredictions:
    """The predictions of a recipe on a task, with one seed.

    Attributes:
        logits: (N, K) for N rows and K classes: log-probabilities for test rows, logits for
            validation rows.
        labels: (N,), int64.
        rows: Numbers of the rows in the source of the data, (N,), int64.
    """

    logits: Tensor
    labels: Tensor
    rows: Tensor
    task: str
    recipe: str
    seed: int

    def save(self, path: Path) -> None:
        """Write an ``.npz`` archive for NumPy and all commands that read logits."""
        write_arrays(path, {name: np.asarray(getattr(self, name)) for name in NAMES})

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file written by ``save``; check sizes first and refuse pickled objects."""
        archive = ArrayArchive(path)
        if set(archive.names) != set(NAMES):
            listing = ", ".join(archive.names)
            raise InputError(f"{path}: expected the arrays {', '.join(NAMES)}, got {listing}")
        found = {name: archive.read(name) for name in NAMES}
        logits = found["logits"]
        try:
            checked, labels = check_rows(logits, found["labels"])
        except (InputError, TypeError) as error:
            raise InputError(f"{path}: {error}") from error
        rows, seed = found["rows"], found["seed"]
        if rows.shape != tuple(labels.shape) or rows.dtype != np.int64:
            actual = f"{rows.dtype} with shape {rows.shape}"
            raise InputError(f"{path}: rows: expected one int64 number per label, got {actual}")
        if seed.shape or seed.dtype.kind not in "iu":
            actual = f"{seed.dtype} with shape {seed.shape}"
            raise InputError(f"{path}: seed: expected one integer, got {actual}")
        words = [found[name] for name in ("task", "recipe")]
        if any(word.shape or word.dtype.kind != "U" for word in words):
            raise InputError(f"{path}: task and recipe: expected one text each")
        task, recipe = map(str, words)
        return cls(checked, labels, torch.from_numpy(rows), task, recipe, int(seed))


def tested(package: Package, cell: Cell) -> RowPredictions:
    """Return the test predictions of a cell; ``InputError`` if its file has those of another."""
    study, trial = cell.study, cell.trial
    name = f"{TEST}/{trial.key}.npz"
    found = RowPredictions.read(package.folder / name)
    if (found.task, found.recipe, found.seed) != (study.task, study.recipe, trial.seed):
        actual = f"{found.recipe} on {found.task}, seed {found.seed}"
        raise InputError(f"{name}: expected predictions of {cell.title}, got those of {actual}")
    return found

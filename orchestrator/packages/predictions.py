"""Files of predictions: what one trained configuration says of each test or validation row."""

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
    """What the recipe of a table's cell predicts on one seed.

    Attributes:
        logits: Log-probabilities of test rows, (N, K), or logits of validation rows.
        labels: Of the same rows, (N,), int64.
        rows: Their numbers in the data set's part, (N,), int64.
        task, recipe, seed: Which cell it is.
    """

    logits: Tensor
    labels: Tensor
    rows: Tensor
    task: str
    recipe: str
    seed: int

    def save(self, path: Path) -> None:
        """Write an ``.npz`` archive that NumPy, and every command that takes logits, reads."""
        write_arrays(path, {name: np.asarray(getattr(self, name)) for name in NAMES})

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what ``save`` wrote; no pickled object is loaded, every size is checked first."""
        archive = ArrayArchive(path)
        if set(archive.names) != set(NAMES):
            listing = ", ".join(archive.names)
            raise InputError(f"{path}: holds {listing}; predictions are {', '.join(NAMES)}")
        found = {name: archive.read(name) for name in NAMES}
        logits = found["logits"]
        try:
            checked, labels = check_rows(logits, found["labels"])
        except (InputError, TypeError) as error:
            raise InputError(f"{path}: {error}") from error
        rows, seed = found["rows"], found["seed"]
        if rows.shape != tuple(labels.shape) or rows.dtype != np.int64:
            raise InputError(f"{path}: rows are {rows.dtype} {rows.shape}, not one int64 a label")
        if seed.shape or seed.dtype.kind not in "iu":
            raise InputError(f"{path}: seed is {seed.dtype} {seed.shape}, not one whole number")
        words = [found[name] for name in ("task", "recipe")]
        if any(word.shape or word.dtype.kind != "U" for word in words):
            raise InputError(f"{path}: task and recipe are one text each")
        task, recipe = map(str, words)
        return cls(checked, labels, torch.from_numpy(rows), task, recipe, int(seed))


def tested(package: Package, cell: Cell) -> RowPredictions:
    """Return the predictions behind a cell."""
    study, trial = cell.study, cell.trial
    name = f"{TEST}/{trial.key}.npz"
    found = RowPredictions.read(package.folder / name)
    told = (found.task, found.recipe, found.seed)
    if told != (study.task, study.recipe, trial.seed):
        raise InputError(f"{name} says it is of {told[1]} on {told[0]}, seed {told[2]}")
    return found

"""Labels in the forms that people keep them in, brought to numbers or names of classes."""

import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainables.common.errors import InputError

WHOLE = re.compile(r"[+-]?\d{1,18}(\.0*)?")
SHOWN = 3  # Names of classes in a note.


class DataNote(UserWarning):
    """How data were understood that could have been written more plainly."""


def note(place: Path | str, text: str) -> None:
    """Tell a person how something in a file was understood."""
    warnings.warn(f"{place}: {text}", DataNote, stacklevel=2)


def note_unused(folder: Path) -> None:
    """Tell that rows for validation lie beside ``train`` and ``test``, where nobody looks."""
    for path in sorted(folder.glob("val*")):
        note(folder, f"{path.name} is not used; validation is drawn from train")


def plain_labels(
    labels: np.ndarray, what: str, place: Path | str, classes: Sequence[str] = ()
) -> np.ndarray:
    """Return labels as whole numbers or as names, (N,); other forms stay as they are.

    One-hot rows (N, K), whole numbers written as floats or as text, and truth values become whole
    numbers; a note tells so, where they were no numbers yet. One-hot rows of named ``classes``
    become names, and so do truth values if there are classes named true and false.
    """
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.dtype.kind == "S":
        labels = np.char.decode(labels, "utf-8", "backslashreplace")
    if labels.dtype.kind == "O" and all(isinstance(label, str) for label in labels.flat):
        labels = labels.astype(str)
    if labels.ndim == 2 and labels.dtype.kind in "biuf" and _is_one_hot(labels):
        note(place, f"{what} is one-hot: the column of the 1 is taken as label")
        columns = labels.argmax(axis=1)
        return np.array(classes)[columns] if len(classes) == labels.shape[1] else columns
    if labels.ndim != 1:
        return labels
    if labels.dtype.kind == "U":
        labels = bare_names(labels, what, place)
    if labels.dtype.kind == "b":
        spelled = {name.lower(): name for name in classes}
        if {"true", "false"} <= spelled.keys():
            return np.where(labels, spelled["true"], spelled["false"])
        note(place, f"{what} holds true and false: taken as 1 and 0")
        return labels.astype(np.int64)
    if labels.dtype.kind == "f" and len(labels) and (np.mod(labels, 1) == 0).all():
        note(place, f"{what} is {labels.dtype}: its whole numbers are taken as labels")
        return labels.astype(np.int64)
    if labels.dtype.kind == "U" and len(labels) and all(map(WHOLE.fullmatch, labels.tolist())):
        return np.array([int(text.partition(".")[0]) for text in labels.tolist()])
    return labels


def bare_names(labels: np.ndarray, what: str, place: Path | str) -> np.ndarray:
    """Return names (N,) without blanks around them; a note tells so, an empty one is refused."""
    bare = np.char.strip(labels)
    if not (named := bare != "").all():
        raise InputError(f"{place}: {what} has no label in row {int((~named).argmax())}")
    blank = np.flatnonzero(bare != labels)
    if len(blank):
        count, shown = f"{len(blank):,} of {len(labels):,}", f"{str(labels[blank[0]])!r}"
        told = f"blanks around {count} labels are removed, such as {shown} in row {blank[0]}"
        note(place, f"{what}: {told}")
    return bare


def plain_values(labels: Sequence[int | float | str], what: str, place: Path | str) -> list[Any]:
    """Return labels of several types, as JSON has them, as whole numbers and names."""
    texts = [label for label in labels if isinstance(label, str)]
    others = [label for label in labels if not isinstance(label, str)]
    names = iter(bare_names(np.array(texts, str), what, place).tolist())
    numbers = iter(plain_labels(np.array(others), what, place).tolist())
    return [next(names if isinstance(label, str) else numbers) for label in labels]


def _is_one_hot(labels: np.ndarray) -> bool:
    return bool(((labels == 0) | (labels == 1)).all() and (labels.sum(axis=1) == 1).all())


def shown_names(names: Sequence[str]) -> str:
    """Return what the first numbers stand for, for a note."""
    first = ", ".join(f"{number} is {name!r}" for number, name in enumerate(names[:SHOWN]))
    return first + (", ..." if len(names) > SHOWN else "")

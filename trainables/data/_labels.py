"""Converts labels in usual forms, such as one-hot rows, to numbers or names of classes."""

import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainables.common.errors import InputError

WHOLE = re.compile(r"[+-]?\d{1,18}(\.0*)?")
SHOWN = 3  # Maximum number of class names in a note.


class DataNote(UserWarning):
    """A note for the user on a data set, such as on how ambiguous labels were read."""


def note(place: Path | str, text: str) -> None:
    """Show the user a ``DataNote`` about a file or a data set."""
    warnings.warn(f"{place}: {text}", DataNote, stacklevel=2)


def note_unused(folder: Path) -> None:
    """Note, for each file or folder ``val*`` in a folder, that it is not read."""
    for path in sorted(folder.glob("val*")):
        note(folder, f"{path.name} is not used; validation is drawn from train")


def plain_labels(
    labels: np.ndarray, what: str, place: Path | str, classes: Sequence[str] = ()
) -> np.ndarray:
    """Return labels as whole numbers or as names, (N,); leave unknown forms unchanged.

    One-hot rows (N, K) become the names in ``classes`` if there are K, else numbers of columns.
    Booleans become the classes named true and false if these exist, else 1 and 0. Floats, or texts,
    become integers if all are whole numbers. Blanks around names are removed; an empty name is an
    ``InputError``. Notes tell the user of one-hot rows, of booleans and floats that became numbers,
    and of removed blanks.
    """
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.dtype.kind == "S":
        labels = np.char.decode(labels, "utf-8", "backslashreplace")
    if labels.dtype.kind == "O" and all(isinstance(label, str) for label in labels.flat):
        labels = labels.astype(str)
    if labels.ndim == 2 and labels.dtype.kind in "biuf" and _is_one_hot(labels):
        note(place, f"{what} is one-hot: the column of the 1 is used as label")
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
        note(place, f"{what} has true and false: read as 1 and 0")
        return labels.astype(np.int64)
    if labels.dtype.kind == "f" and len(labels) and (np.mod(labels, 1) == 0).all():
        note(place, f"{what} is {labels.dtype}: its whole numbers are used as labels")
        return labels.astype(np.int64)
    if labels.dtype.kind == "U" and len(labels) and all(map(WHOLE.fullmatch, labels.tolist())):
        return np.array([int(text.partition(".")[0]) for text in labels.tolist()])
    return labels


def bare_names(labels: np.ndarray, what: str, place: Path | str) -> np.ndarray:
    """Return names (N,) without surrounding blanks, and note the change; refuse empty names."""
    bare = np.char.strip(labels)
    if not (named := bare != "").all():
        raise InputError(f"{place}: {what} has no label in row {int((~named).argmax())}")
    blank = np.flatnonzero(bare != labels)
    if len(blank):
        count, shown = f"{len(blank):,} of {len(labels):,}", f"{str(labels[blank[0]])!r}"
        text = f"removed the blanks around {count} labels, such as {shown} in row {blank[0]}"
        note(place, f"{what}: {text}")
    return bare


def plain_values(labels: Sequence[int | float | str], what: str, place: Path | str) -> list[Any]:
    """Return labels from JSON, which may mix types, as whole numbers and names."""
    texts = [label for label in labels if isinstance(label, str)]
    others = [label for label in labels if not isinstance(label, str)]
    names = iter(bare_names(np.array(texts, str), what, place).tolist())
    numbers = iter(plain_labels(np.array(others), what, place).tolist())
    return [next(names if isinstance(label, str) else numbers) for label in labels]


def _is_one_hot(labels: np.ndarray) -> bool:
    return bool(((labels == 0) | (labels == 1)).all() and (labels.sum(axis=1) == 1).all())


def shown_names(names: Sequence[str]) -> str:
    """Return the first classes for a note, for example ``0 is 'cat', 1 is 'dog', ...``."""
    first = ", ".join(f"{number} is {name!r}" for number, name in enumerate(names[:SHOWN]))
    return first + (", ..." if len(names) > SHOWN else "")

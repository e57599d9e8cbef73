"""Class names and label sets of data that users bring."""

from __future__ import annotations

import numpy as np

from trainables.errors import InputError


def class_names(where: str, train: np.ndarray) -> tuple[str, ...]:
    """Return the names ``0``, ``1`` ... up to the largest label of ``train`` (N,).

    Raises:
        InputError: If the labels skip a number: then they are codes, not class indices.
    """
    present = np.unique(train)
    gap = np.flatnonzero(present != np.arange(len(present)))
    if len(gap):
        raise InputError(
            f"{where}: y_train holds {present[gap[0]]} but no {gap[0]}; without the key 'classes', "
            "labels must be 0, 1, ... with none left out"
        )
    return tuple(map(str, range(len(present))))


def check_label_sets(
    where: str, train: np.ndarray, test: np.ndarray, classes: tuple[str, ...]
) -> None:
    """Check that every label names a class and that the test set knows no class training lacks.

    Raises:
        InputError: If not; the text starts with ``where``.
    """
    for key, labels in (("y_train", train), ("y_test", test)):
        strange = set(np.unique(labels).tolist()) - set(range(len(classes)))
        if strange:
            raise InputError(
                f"{where}: {key} holds {min(strange)}, allowed is 0 to {len(classes) - 1}"
            )
    unseen = sorted(set(np.unique(test).tolist()) - set(np.unique(train).tolist()))
    if unseen:
        raise InputError(
            f"{where}: test has class {classes[unseen[0]]!r} ({unseen[0]}), which train lacks"
        )

"""Converts labels, which are names or numbers of classes, to class numbers."""

from collections.abc import Container, Sequence
from typing import NamedTuple

import numpy as np

from trainables.common.errors import InputError
from trainables.common.logit_rows import from_one
from trainables.data._labels import WHOLE, note

LISTED = 8  # Maximum number of class names in a message.
LONGEST = 40  # Maximum number of characters of a label in a message.

Label = int | str


class LabelPart(NamedTuple):
    """The labels of one part of a data set.

    Attributes:
        labels: Numbers or names of classes.
        where: File and column of the labels, for messages.
        row: The word for a row, for messages.
        first: The number of the first row, for messages.
    """

    labels: Sequence[Label]
    where: str
    row: str = "row"
    first: int = 0


def whole_number(label: Label) -> int | None:
    """Return a label's whole number, such as 1 for ``1``, ``01`` and ``1.0``; None for a name."""
    if isinstance(label, str):
        return int(label.partition(".")[0]) if WHOLE.fullmatch(label) else None
    return label


def unnamed_classes(count: int) -> tuple[str, ...]:
    """Return the placeholders ``column 0``, ``column 1`` and so on for classes without names."""
    return tuple(f"column {number}" for number in range(count))


def number_labels(parts: Sequence[LabelPart], classes: Sequence[str]) -> list[np.ndarray]:
    """Return the labels of every part as numbers of classes, (N,) int64 each.

    Labels are names of classes, where ``1``, ``01`` and ``1.0`` are the same name unless several of
    them are classes. If some numbers are not names, all numbers count the classes from 0, unless
    ``_countable`` excludes this. A note tells the user how ambiguous numbers were read.

    Raises:
        InputError: If a label is not a class when it is read in this way.
    """
    classes = [name.strip() for name in classes]  # Labels are stripped as well.
    labels = [*dict.fromkeys(label for part in parts for label in part.labels)]
    values = {label: value for label in labels if (value := whole_number(label)) is not None}
    named = _named(labels, classes)
    counted = {label: value for label, value in values.items() if 0 <= value < len(classes)}
    found: dict[Label, int] = named
    by_name = values.keys() <= named.keys()
    if not by_name and values == counted and _countable(classes, values.keys() & named.keys()):
        found = {**named, **counted}
    if missing := [label for label in labels if label not in found]:
        raise InputError(_misfit(parts, classes, missing, values))
    if values == counted and values:
        _note_reading(parts[0].where, classes, values, named if by_name else None)
    return [np.array([found[label] for label in part.labels], np.int64) for part in parts]


def _named(labels: Sequence[Label], classes: Sequence[str]) -> dict[Label, int]:
    names: dict[Label | None, int] = {whole_number(name): k for k, name in enumerate(classes)}
    names |= {name: number for number, name in enumerate(classes)}
    names.pop(None, None)
    return {
        label: names[key]
        for label in labels
        if (key := label if label in names else whole_number(label)) in names
    }


def _countable(classes: Sequence[str], named: Container[Label]) -> bool:
    """Return True if numeric labels may count the classes from 0.

    ``named`` has the numeric labels that are names of classes. If there are any, such as 2 for the
    classes 0 and 2, all numbers are names. Classes named 1 to K are the exception, because most
    labels from 0 to K - 1 are then names too.
    """
    return not named or [*map(whole_number, classes)] == [*range(1, len(classes) + 1)]


def _misfit(
    parts: Sequence[LabelPart],
    classes: Sequence[str],
    missing: Sequence[Label],
    values: dict[Label, int],
) -> str:
    """Return the message for labels that cannot be read as classes."""
    neither = [k for k in missing if not 0 <= values.get(k, -1) < len(classes)]
    label = (neither or missing)[0]
    if label in values and all(whole_number(name) is None for name in classes):
        hint = from_one(min(values.values()), max(values.values()), len(classes))
        return f"{_place(parts, label)}; expected 0 to {len(classes) - 1}{hint}"
    text = f"{_place(parts, label)} is not a class; classes are {_listed(classes)}"
    large = [label for label, value in values.items() if value >= len(classes)]
    if neither or not large:
        return text
    return f"{text}; numbers that count from 0 must be below {len(classes)}, got {large[0]}"


def _place(parts: Sequence[LabelPart], label: Label) -> str:
    part = next(part for part in parts if label in part.labels)
    row = part.first + [*part.labels].index(label)
    shown = repr(label) if len(repr(label)) <= LONGEST else f"{label!r:.{LONGEST}}..."
    return f"{part.where}: {shown} in {part.row} {row}"


def _listed(classes: Sequence[str]) -> str:
    return ", ".join(map(repr, classes[:LISTED])) + (", ..." if len(classes) > LISTED else "")


def _note_reading(
    where: str, classes: Sequence[str], values: dict[Label, int], named: dict[Label, int] | None
) -> None:
    """Note how ambiguous numbers were read."""
    label, value = min(values.items(), key=lambda pair: pair[1])
    if named is not None:
        if any(named[label] != value for label, value in values.items()):
            text = f"label {label} is read as the class named {classes[named[label]]!r}"
            note(where, f"{text}, not as class {value} counted from 0")
        return
    if any(whole_number(name) is not None for name in classes):
        text = f"label {label} is read as class {classes[value]!r}"
        note(where, f"some labels are not names of classes, so labels count from 0: {text}")
    elif value > 0:
        text = f"label {label} is read as class {classes[value]!r}, counted from 0"
        note(where, f"no label is 0; {text}; if your labels count from 1, subtract 1 from them")

"""What is known of a data set beside its pixels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

AUGMENTATIONS = ("none", "crop-flip")


def check_classes(classes: tuple[str, ...]) -> None:
    """Raise ``ValueError`` unless there are two or more different names."""
    if len(classes) < 2 or len(set(classes)) != len(classes):
        raise ValueError(f"classes={classes!r} must be two or more different names")


@dataclass(frozen=True)
class DatasetInfo:
    """One data set's constants.

    Attributes:
        name: The name it is read by, such as ``cifar10`` or ``npz:my.npz``.
        classes: Class names; a label is an index into them.
        size: Height and width of the images, in pixels.
        channels: C.
        mean: Mean of each channel on the scale 0..1, subtracted before training.
        std: What each channel is then divided by.
        augmentation: What training uses unless told otherwise: ``none`` or ``crop-flip``.
        split_rule: Where training, validation and test data come from, for people.
        source: Where images and constants come from, for people.

    Raises:
        ValueError: If a value is out of range or the lengths do not belong together.
    """

    name: str
    classes: tuple[str, ...]
    size: tuple[int, int]
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmentation: str
    split_rule: str
    source: str

    def __post_init__(self) -> None:
        """Check every value."""
        check_classes(self.classes)
        if min(self.size) < 1 or self.channels < 1:
            raise ValueError(f"size={self.size}, channels={self.channels} must be at least 1")
        for key, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != self.channels:
                raise ValueError(f"{key}={values} must have {self.channels} entries")
        if min(self.std) <= 0:
            raise ValueError(f"std={self.std} is outside (0, inf)")
        if self.augmentation not in AUGMENTATIONS:
            allowed = ", ".join(AUGMENTATIONS)
            raise ValueError(f"augmentation={self.augmentation!r} is not one of {allowed}")

    @property
    def num_classes(self) -> int:
        """The number of classes, K."""
        return len(self.classes)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> DatasetInfo:
        """Undo ``to_dict``, also after a way through JSON."""
        values: dict[str, Any] = dict(fields)
        for key in ("classes", "size", "mean", "std"):
            values[key] = tuple(values[key])
        return cls(**values)

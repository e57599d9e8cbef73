"""Kinds of rows: the seam between a kind of data and all that uses data."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from trainables.common.registry import import_modules
from trainables.data._batches import Batcher
from trainables.data._rows import RowArrays, Rows


class InputShape(ABC):
    """What a network has to know of its inputs.

    Attributes:
        kind: Name of the kind of data, such as ``images``.
    """

    kind: ClassVar[str]

    @abstractmethod
    def blank(self, device: torch.device) -> Tensor:
        """Return one blank input, with a batch axis of one, as networks take it."""


class Pixels(NamedTuple):
    """Some labelled pixels of rows, spread over them.

    Attributes:
        labels: (S,), int64, in [0, K).
        rows: Row of each, (S,), int64, ascending.
        places: Its place in the row as stored, counted line by line, (S,), int64.
    """

    labels: Tensor
    rows: Tensor
    places: Tensor


class Inputs(ABC):
    """What the rows of a data set are; one subclass a kind of data, and nobody else knows it.

    A subclass is a frozen dataclass, ``class Texts(Inputs, kind="texts")``, whose fields are plain
    JSON values and tuples of them: they are stored with prepared data and exported chains.

    Attributes:
        kinds: Every kind by its name.
        kind: The name, also that of the files that hold rows.
        dtype: Of the values, as stored.
        trains: Whether networks are trained on the rows; else all of them may be held out.
        seen_as: Class of ``shape``, so that a network can be refused before data are read;
            ``InputShape`` if nobody says.
        views: Augmentations that batchers know; none if nobody says.
        augmentation: What training uses unless told otherwise; ``none`` for nothing.
    """

    kinds: ClassVar[dict[str, type["Inputs"]]] = {}
    kind: ClassVar[str]
    dtype: ClassVar[np.dtype]
    trains: ClassVar[bool] = True
    seen_as: ClassVar[type[InputShape]] = InputShape  # type: ignore[type-abstract]
    views: ClassVar[tuple[str, ...]] = ()
    augmentation: str

    def __init_subclass__(cls, kind: str) -> None:
        super().__init_subclass__()
        cls.kind = kind
        cls.kinds[kind] = cls

    @property
    @abstractmethod
    def row(self) -> tuple[int, ...]:
        """Return the shape of one row's values, as stored."""

    @property
    def given(self) -> tuple[np.dtype, tuple[int, ...]]:
        """Return the type and shape of one row's values as sources give them: as stored."""
        return self.dtype, self.row

    @property
    @abstractmethod
    def shape(self) -> InputShape:
        """Return what networks are told."""

    def fitted(self, train: Rows) -> "Inputs":
        """Return the inputs with constants learnt from training rows, such as a vocabulary."""
        return self

    def encode(self, values: np.ndarray) -> np.ndarray:
        """Return rows (N, ...) as stored, of rows as sources give them."""
        return values

    def check(self, values: np.ndarray) -> None:
        """Make sure that a network for such inputs can be given ``values`` (N, ...).

        Raises:
            ValueError: If not; the text gives their form and the allowed one.
        """
        if values.dtype != self.dtype or values.shape[1:] != self.row:
            allowed = f"{self.dtype} ({', '.join(map(str, ('N', *self.row)))})"
            raise ValueError(f"{self.kind} are {values.dtype} {values.shape}, allowed is {allowed}")

    def batcher(self, values: np.ndarray, device: torch.device | str = "cpu") -> Batcher:
        """Return what gives batches of ``values`` (N, ...), which must not change afterwards.

        Raises:
            ValueError: See ``check``.
        """
        self.check(values)
        return Batcher(values, device)

    def pixels(self, rows: RowArrays) -> Pixels | None:
        """Return the pixels whose predictions are stored; None where these are of whole rows."""
        return None


UNNAMED = "images"  # Manifests of this kind do not name it: they are older than the choice.


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
        inputs: What its rows are.
        split_rule: Where training, validation and test data come from, for people.
        source: Where rows and constants come from, for people.

    Raises:
        ValueError: If the classes are not two or more different names.
    """

    name: str
    classes: tuple[str, ...]
    inputs: Inputs
    split_rule: str
    source: str

    def __post_init__(self) -> None:
        check_classes(self.classes)

    @property
    def num_classes(self) -> int:
        """The number of classes, K."""
        return len(self.classes)

    def fitted(self, train: Rows) -> Self:
        """Return the constants with what their inputs learn from training rows."""
        return replace(self, inputs=self.inputs.fitted(train))

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, those of the inputs among them, ready for JSON."""
        kind = {} if self.inputs.kind == UNNAMED else {"kind": self.inputs.kind}
        return {
            "name": self.name,
            "classes": self.classes,
            **kind,
            **asdict(self.inputs),  # type: ignore[call-overload]
            "split_rule": self.split_rule,
            "source": self.source,
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Undo ``to_dict``, also after a way through JSON."""
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()
        }
        own = {key: values.pop(key) for key in ("name", "classes", "split_rule", "source")}
        kind = str(values.pop("kind", UNNAMED))
        if kind not in Inputs.kinds:
            # Its module is imported when a data set is looked up, which nobody has done yet.
            import_modules("trainables.data")
        return cls(inputs=Inputs.kinds[kind](**values), **own)

"""Kinds of rows, and batches of them on the device that trains: all that knows a kind of data."""

from __future__ import annotations

import itertools
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from trainables.common.devices import concrete, fits
from trainables.common.fields import check_choice
from trainables.common.later import Generator, Tensor, torch
from trainables.common.pulse import beat
from trainables.common.registry import import_modules
from trainables.data._rows import RowArrays, Rows

AHEAD = 2  # Batches that are read while another one is used.


def move(values: Tensor, device: torch.device) -> Tensor:
    """Copy to a device, from the CPU to a GPU without waiting."""
    if values.device.type == "cpu" and device.type == "cuda":
        values = values.pin_memory()
    return values.to(device, non_blocking=True)


class Batcher:
    """Gives batches of rows that are stored once, which networks take as they are.

    On the CPU nothing is copied: a memory-mapped array stays mapped, so all trials of a node share
    one copy. On another device the rows are copied there once, and a batch costs a gather; rows
    that would take more than half of its free memory stay on the host, from where a thread brings
    the batches. Nothing waits for the device, and where the rows lie changes no batch.

    Args:
        values: (N, ...); must not change afterwards.

    Attributes:
        device: Where batches are made.
        resident: Whether the rows lie there.
        movable: Whether rows may be copied to the device as they are stored.
    """

    movable: ClassVar[bool] = True

    def __init__(self, values: np.ndarray, device: torch.device | str) -> None:
        self.device = concrete(device)
        self.resident = self.movable and fits(values.nbytes, self.device)
        rows = _as_tensor(values)
        # A copy is due anyway elsewhere, so the axes are put in order with it.
        self._arranged = self.resident and self.device.type != "cpu"
        self._rows = self.arrange(rows.to(self.device)) if self._arranged else rows

    def __len__(self) -> int:
        return len(self._rows)

    def batches(self, order: Tensor, size: int) -> Iterator[Tensor]:
        """Yield the rows ``order`` (M,), int64, on the CPU, as ``arrange`` leaves them.

        Args:
            order: Indices of the rows.
            size: Rows of every batch but perhaps the last.
        """
        parts = self._gathered(order, size) if self.resident else self._streamed(order, size)
        for part in parts:
            beat()
            yield part

    def arrange(self, batch: Tensor) -> Tensor:
        """Return rows as stored in the order of axes that networks take; of the same type."""
        return batch

    def plain(self, batch: Tensor) -> Tensor:
        """Return what networks take, of a batch of ``batches``."""
        return batch

    def view(self, batch: Tensor, augmentation: str, generator: Generator) -> Tensor:
        """Return random views of a batch of ``batches``, as networks take them.

        Args:
            batch: The rows.
            augmentation: ``none`` for those of ``plain``, or what else the kind of data offers.
            generator: Draws the views. One on the CPU gives the same views for every device.

        Raises:
            ValueError: If the augmentation is unknown.
        """
        check_choice("augmentation", augmentation, ("none",))
        return self.plain(batch)

    def example(
        self, batch: Tensor, labels: Tensor, augmentation: str, generator: Generator
    ) -> tuple[Tensor, Tensor]:
        """Return random views of a batch and what networks are to say of them; see ``view``.

        Args:
            batch: The rows.
            labels: Their labels, (B,), which are just that unless a kind of data has others.
            augmentation: See ``view``.
            generator: See ``view``.
        """
        return self.view(batch, augmentation, generator), labels

    def _gathered(self, order: Tensor, size: int) -> Iterator[Tensor]:
        for indices in move(order, self.device).split(size):
            batch = self._rows.index_select(0, indices)
            yield batch if self._arranged else self.arrange(batch)

    def _streamed(self, order: Tensor, size: int) -> Iterator[Tensor]:
        """Have a thread read the next batches from the host while one is used."""
        parts = order.cpu().split(size)
        with ThreadPoolExecutor(1, thread_name_prefix="rows") as reader:
            to_come = (reader.submit(self._read, indices) for indices in parts)
            waiting = deque(itertools.islice(to_come, AHEAD))
            while waiting:
                batch = waiting.popleft().result()
                waiting.extend(itertools.islice(to_come, 1))
                yield self.arrange(batch.to(self.device, non_blocking=True))

    def _read(self, indices: Tensor) -> Tensor:
        pinned = self.device.type == "cuda"
        shape = (len(indices), *self._rows.shape[1:])
        batch = torch.empty(shape, dtype=self._rows.dtype, pin_memory=pinned)
        return torch.index_select(self._rows, 0, indices, out=batch)


def _as_tensor(values: np.ndarray) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*", category=UserWarning)
        return torch.from_numpy(np.ascontiguousarray(values))


class InputShape(ABC):
    """What a network has to know of its inputs; ``kind`` is the name, such as ``images``."""

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
        kind: The name, also that of the files that hold rows; empty until the kind is known.
        dtype: Of the values, as stored.
        trains: Whether networks are trained on the rows; else all of them may be held out.
        seen_as: Class of ``shape``, so that a network can be refused before data are read;
            ``InputShape`` if nobody says.
        views: Augmentations that batchers know; none if nobody says.
        augmentation: What training uses unless told otherwise; ``none`` for nothing.
    """

    kinds: ClassVar[dict[str, type[Inputs]]] = {}
    kind: ClassVar[str] = ""
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

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, ready for JSON."""
        return asdict(self)  # type: ignore[call-overload]

    def fitted(self, train: Rows) -> Inputs:
        """Return the inputs with constants learnt from training rows, such as a vocabulary."""
        return self

    def encode(self, values: np.ndarray) -> np.ndarray:
        """Return rows (N, ...) as stored, of rows as sources give them."""
        return values

    def stored(self, blocks: Iterable[np.ndarray], path: Path) -> Iterator[np.ndarray]:
        """Yield blocks of rows as stored in ``path``; what else belongs to them is written too."""
        return map(self.encode, blocks)

    def loaded(self, values: np.ndarray, path: Path) -> np.ndarray:
        """Return the rows of a file together with what ``stored`` wrote besides."""
        return values

    @property
    def decoded_as(self) -> Inputs:
        """Return the inputs that ``decoded`` rows are."""
        return self

    def decoded(self, values: np.ndarray) -> np.ndarray:
        """Return rows as networks see them in evaluation, before they are normalised."""
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
            **self.inputs.to_dict(),
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

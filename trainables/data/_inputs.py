"""The base classes of kinds of data: ``Inputs`` describes rows, ``Batcher`` makes batches."""

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

AHEAD = 2  # Number of batches that are read in advance.


def move(values: Tensor, device: torch.device) -> Tensor:
    """Return values on a device; a copy from the CPU to a GPU is asynchronous."""
    if values.device.type == "cpu" and device.type == "cuda":
        values = values.pin_memory()
    return values.to(device, non_blocking=True)


class Batcher:
    """Makes batches of stored rows for networks.

    On the CPU the array is used as it is: a memory-mapped one stays mapped, so all trials of a node
    share it. For a GPU all rows are copied to it once, and batches are gathered there. Rows that
    need more than half of the GPU's free memory, or are not ``movable``, stay on the host, and a
    thread reads each batch in advance. The batches are the same in each case, and the host never
    waits for the GPU.

    Args:
        values: (N, ...); must not change afterwards.

    Attributes:
        device: The device of the batches.
        resident: Whether the rows are on that device.
        movable: Whether rows may be copied to the device as they are stored.
    """

    movable: ClassVar[bool] = True

    def __init__(self, values: np.ndarray, device: torch.device | str) -> None:
        self.device = concrete(device)
        self.resident = self.movable and fits(values.nbytes, self.device)
        rows = _as_tensor(values)
        # On a GPU the rows are copied anyway, so their axes are arranged at the same time.
        self._arranged = self.resident and self.device.type != "cpu"
        self._rows = self.arrange(rows.to(self.device)) if self._arranged else rows

    def __len__(self) -> int:
        return len(self._rows)

    def batches(self, order: Tensor, size: int) -> Iterator[Tensor]:
        """Yield batches of the rows ``order`` on the device, with axes as ``arrange`` returns them.

        Args:
            order: Indices of the rows, (M,), int64, on the CPU.
            size: Rows of a batch; the last one may have fewer.
        """
        parts = self._gathered(order, size) if self.resident else self._streamed(order, size)
        for part in parts:
            beat()
            yield part

    def arrange(self, batch: Tensor) -> Tensor:
        """Return stored rows with their axes in the order that networks expect."""
        return batch

    def plain(self, batch: Tensor) -> Tensor:
        """Return a batch of ``batches`` as the input of a network, such as normalised images."""
        return batch

    def view(self, batch: Tensor, augmentation: str, generator: Generator) -> Tensor:
        """Return random views of a batch of ``batches`` as the input of a network.

        Args:
            batch: The rows.
            augmentation: ``none`` for ``plain``, or another augmentation of this kind of data.
            generator: Draws the views; a CPU generator draws the same views for every device.

        Raises:
            ValueError: If the augmentation is unknown.
        """
        check_choice("augmentation", augmentation, ("none",))
        return self.plain(batch)

    def example(
        self, batch: Tensor, labels: Tensor, augmentation: str, generator: Generator
    ) -> tuple[Tensor, Tensor]:
        """Return random views of a batch (see ``view``) and their targets.

        The targets are ``labels`` (B,) unless a kind of data has others, such as masks.
        """
        return self.view(batch, augmentation, generator), labels

    def _gathered(self, order: Tensor, size: int) -> Iterator[Tensor]:
        for indices in move(order, self.device).split(size):
            batch = self._rows.index_select(0, indices)
            yield batch if self._arranged else self.arrange(batch)

    def _streamed(self, order: Tensor, size: int) -> Iterator[Tensor]:
        """Yield batches from the host; a thread reads the next ones in advance."""
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
    """The form of inputs, from which a network is built; ``kind`` is a name such as ``images``."""

    kind: ClassVar[str]

    @abstractmethod
    def blank(self, device: torch.device) -> Tensor:
        """Return a batch of one blank input for a network."""


class Pixels(NamedTuple):
    """A sample of S labelled pixels.

    Attributes:
        labels: (S,), int64, in [0, K) for K classes.
        rows: The row of each pixel, (S,), int64, ascending.
        places: The pixel's index in the flattened image as stored, (S,), int64.
    """

    labels: Tensor
    rows: Tensor
    places: Tensor


class Inputs(ABC):
    """The form of a data set's rows; each kind of data is one subclass.

    A subclass is a frozen dataclass, ``class Texts(Inputs, kind="texts")``, whose fields are plain
    JSON values and tuples of them: they are stored with prepared data and exported models.

    Attributes:
        kinds: Every subclass by its name.
        kind: The subclass's name; names of files with rows contain it.
        dtype: Type of the stored values.
        trains: Whether networks are trained on the rows; otherwise a split may hold out all rows.
        seen_as: Class of ``shape``, so that unsuitable networks are refused before reading data.
        views: Augmentations of the batchers.
        augmentation: Default augmentation of training, ``none`` for no augmentation.
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
        """Return the type and shape of one row's values in sources, before ``encode``."""
        return self.dtype, self.row

    @property
    @abstractmethod
    def shape(self) -> InputShape:
        """Return the form from which networks are built."""

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, ready for JSON."""
        return asdict(self)  # type: ignore[call-overload]

    def fitted(self, train: Rows) -> Inputs:
        """Return the inputs with constants learnt from training rows, such as a vocabulary."""
        return self

    def encode(self, values: np.ndarray) -> np.ndarray:
        """Return a source's rows in their stored form, (N, ...)."""
        return values

    def stored(self, blocks: Iterable[np.ndarray], path: Path) -> Iterator[np.ndarray]:
        """Yield blocks of rows to store in ``path``; a subclass may write further files."""
        return map(self.encode, blocks)

    def loaded(self, values: np.ndarray, path: Path) -> np.ndarray:
        """Return the rows read from ``path``, completed by the further files of ``stored``."""
        return values

    @property
    def decoded_as(self) -> Inputs:
        """Return the inputs that describe ``decoded`` rows."""
        return self

    def decoded(self, values: np.ndarray) -> np.ndarray:
        """Return rows as networks see them in evaluation, before normalisation."""
        return values

    def check(self, values: np.ndarray) -> None:
        """Raise ``ValueError`` unless ``values`` (N, ...) have the form of these inputs."""
        if values.dtype != self.dtype or values.shape[1:] != self.row:
            expected = f"{self.dtype} ({', '.join(map(str, ('N', *self.row)))})"
            raise ValueError(f"{self.kind}: expected {expected}, got {values.dtype} {values.shape}")

    def batcher(self, values: np.ndarray, device: torch.device | str = "cpu") -> Batcher:
        """Return a batcher of ``values`` (N, ...), which must not change afterwards."""
        self.check(values)
        return Batcher(values, device)

    def pixels(self, rows: RowArrays) -> Pixels | None:
        """Return the pixels whose predictions are stored; None if predictions are per row."""
        return None


UNNAMED = "images"  # Manifests do not name this kind, because it was once the only one.


def check_classes(classes: tuple[str, ...]) -> None:
    """Raise ``ValueError`` unless there are two or more different names."""
    if len(classes) < 2 or len(set(classes)) != len(classes):
        raise ValueError(f"classes={classes!r} must be two or more different names")


@dataclass(frozen=True)
class DatasetInfo:
    """One data set's constants.

    Attributes:
        name: The name in sweep files, such as ``cifar10`` or ``npz:my.npz``.
        classes: Class names; a label is an index into them.
        inputs: The form of its rows.
        split_rule: Human-readable origin of training, validation and test data.
        source: Human-readable origin of rows and constants.

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
        return len(self.classes)

    def fitted(self, train: Rows) -> Self:
        """Return the constants with inputs fitted to training rows."""
        return replace(self, inputs=self.inputs.fitted(train))

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, including those of the inputs, ready for JSON."""
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
        """Return the constants from ``to_dict``, also after a round trip through JSON."""
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()
        }
        own = {key: values.pop(key) for key in ("name", "classes", "split_rule", "source")}
        kind = str(values.pop("kind", UNNAMED))
        if kind not in Inputs.kinds:
            # The module that defines this kind may not be imported yet.
            import_modules("trainables.data")
        return cls(inputs=Inputs.kinds[kind](**values), **own)

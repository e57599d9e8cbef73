"""Logits as inputs: what a network has said of rows that nobody has."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Generator, Tensor

from trainables.data._batches import Batcher
from trainables.data._inputs import Inputs, InputShape


@dataclass(frozen=True)
class LogitShape(InputShape):
    """The constants of given logits.

    Attributes:
        width: K, the number of classes.
    """

    kind: ClassVar[str] = "logits"

    width: int

    def blank(self, device: torch.device) -> Tensor:
        return torch.zeros(1, self.width, device=device)


@dataclass(frozen=True)
class GivenLogits(Inputs, kind="logits"):
    """Logits (N, K), stored as float32.

    Attributes:
        width: K, the number of classes.
    """

    dtype: ClassVar[np.dtype] = np.dtype(np.float32)
    trains: ClassVar[bool] = False

    width: int
    augmentation: str = "none"

    @property
    def row(self) -> tuple[int]:
        return (self.width,)

    @property
    def shape(self) -> LogitShape:
        return LogitShape(self.width)

    def check(self, values: np.ndarray) -> None:
        """Refuse anything but float32 (N, K)."""
        if values.dtype != self.dtype or values.shape[1:] != self.row:
            raise ValueError(
                f"logits are {values.dtype} {values.shape}, allowed is float32 (N, {self.width})"
            )

    def batcher(self, values: np.ndarray, device: torch.device | str = "cpu") -> Batcher:
        self.check(values)
        return _LogitBatcher(values, device)


class _LogitBatcher(Batcher):
    def plain(self, batch: Tensor) -> Tensor:
        return batch

    def view(self, batch: Tensor, augmentation: str, generator: Generator) -> Tensor:
        return batch

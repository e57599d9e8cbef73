"""Logits as inputs: what a network has said of rows that nobody has."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

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

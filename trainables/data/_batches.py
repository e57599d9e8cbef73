"""Batches on the device that trains, of rows stored once there or on the host."""

import itertools
import warnings
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Generator, Tensor

from trainables.common.checks import check_choice
from trainables.common.devices import concrete, fits
from trainables.common.pulse import beat

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
    """

    def __init__(self, values: np.ndarray, device: torch.device | str) -> None:
        self.device = concrete(device)
        self.resident = fits(values.nbytes, self.device)
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
    """Return a view of ``values``; the warning about read-only memory is moot, no one writes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*", category=UserWarning)
        return torch.from_numpy(np.ascontiguousarray(values))

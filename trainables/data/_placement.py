"""Where images lie while a trial reads them: on its device, or on the host in batches."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

RESIDENT_SHARE = 0.5  # Of the device's free memory: the rest is for weights and activations.
AHEAD = 2  # Batches that are read while another one is used.


def concrete(device: torch.device | str) -> torch.device:
    """Return a device with its index, the current GPU's where it has none.

    Torch takes ``cuda`` for the current GPU almost everywhere, but not where it tells of memory.
    """
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def fits(size: int, device: torch.device) -> bool:
    """Return whether ``size`` bytes take no more than ``RESIDENT_SHARE`` of the free memory.

    On the CPU they always do: mapped files are read from disk as they are needed.
    """
    return device.type == "cpu" or size <= RESIDENT_SHARE * free_memory(device)


def free_memory(device: torch.device) -> int:
    """Return how many bytes of a GPU this process may still take, its own limit counted."""
    device = concrete(device)
    free, total = torch.cuda.mem_get_info(device)
    limit = torch.cuda.get_per_process_memory_fraction(device) * total
    return min(free, int(limit) - torch.cuda.memory_reserved(device))


def move(values: Tensor, device: torch.device) -> Tensor:
    """Copy to a device, from the CPU to a GPU without waiting."""
    if values.device.type == "cpu" and device.type == "cuda":
        values = values.pin_memory()
    return values.to(device, non_blocking=True)


class ResidentImages:
    """Images that lie on the device that trains; on the CPU they are not copied.

    Args:
        images: (N, H, W, C), uint8, on the CPU.
        device: Where batches are made.
    """

    def __init__(self, images: Tensor, device: torch.device) -> None:
        self._device = device
        # A copy is due anyway elsewhere, so the planes are put in the networks' order with it.
        on_cpu = device.type == "cpu"
        self._images = images if on_cpu else images.to(device).permute(0, 3, 1, 2).contiguous()

    def __len__(self) -> int:
        """Return N."""
        return len(self._images)

    def rows(self, indices: Tensor) -> Tensor:
        """Return the images ``indices`` (B,) as (B, C, H, W)."""
        batch = self._images.index_select(0, move(indices, self._device))
        return batch.permute(0, 3, 1, 2).contiguous() if self._device.type == "cpu" else batch

    def batches(self, order: Tensor, size: int) -> Iterator[Tensor]:
        """Yield the images of ``order`` (M,) in batches of ``size``."""
        for indices in move(order, self._device).split(size):
            yield self.rows(indices)


class StreamedImages:
    """Images that stay on the host: a thread reads the next batches while one is used.

    Args:
        images: (N, H, W, C), uint8, on the CPU.
        device: Where batches are wanted.
    """

    def __init__(self, images: Tensor, device: torch.device) -> None:
        self._device = device
        self._images = images

    def __len__(self) -> int:
        """Return N."""
        return len(self._images)

    def rows(self, indices: Tensor) -> Tensor:
        """Return the images ``indices`` (B,) as (B, C, H, W)."""
        return self._arrange(self._read(indices.cpu()))

    def batches(self, order: Tensor, size: int) -> Iterator[Tensor]:
        """Yield the images of ``order`` (M,) in batches of ``size``."""
        parts = iter(order.cpu().split(size))
        with ThreadPoolExecutor(1, thread_name_prefix="images") as reader:
            waiting: deque[Future[Tensor]] = deque()
            for indices in itertools.islice(parts, AHEAD):
                waiting.append(reader.submit(self._read, indices))
            while waiting:
                batch = waiting.popleft().result()
                for indices in itertools.islice(parts, 1):
                    waiting.append(reader.submit(self._read, indices))
                yield self._arrange(batch)

    def _read(self, indices: Tensor) -> Tensor:
        pinned = self._device.type == "cuda"
        shape = (len(indices), *self._images.shape[1:])
        batch = torch.empty(shape, dtype=self._images.dtype, pin_memory=pinned)
        return torch.index_select(self._images, 0, indices, out=batch)

    def _arrange(self, batch: Tensor) -> Tensor:
        return batch.to(self._device, non_blocking=True).permute(0, 3, 1, 2).contiguous()

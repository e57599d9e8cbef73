"""Answers in the driver's place, so that torch sees a GPU where there is none."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import patch

import torch


@contextmanager
def pretended_card(
    index: int = 0, free: int = 1_000_000, total: int = 1_000_000, reserved: int = 0
) -> Iterator[list[tuple[int, float]]]:
    """Have torch see a GPU; yield the shares of memory that are asked for, with the GPU's index.

    Only what would ask the driver is replaced: torch checks its arguments as ever.

    Args:
        index: Of the current GPU.
        free: Bytes that no process has taken.
        total: All its bytes.
        reserved: Bytes that this process has taken.
    """
    shares: list[tuple[int, float]] = []
    runtime = SimpleNamespace(cudaMemGetInfo=lambda device: (free, total))
    driver = {
        "_cuda_getDevice": lambda: index,
        "_cuda_setMemoryFraction": lambda share, device: shares.append((device, share)),
        "_cuda_getMemoryFraction": lambda device: dict(shares).get(device, 1.0),
        "_cuda_resetPeakMemoryStats": lambda device: None,
    }
    with (
        patch.multiple(torch._C, create=True, **driver),
        patch.multiple(
            torch.cuda,
            _lazy_init=lambda: None,
            is_available=lambda: True,
            is_bf16_supported=lambda: True,
            get_device_name=lambda device: "pretended card",
            cudart=lambda: runtime,
            memory_reserved=lambda device: reserved,
        ),
        patch.object(torch.cuda.memory, "_lazy_init", lambda: None),
    ):
        yield shares

"""Detects operations that make the host wait for a device."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class NoWaiting(TorchDispatchMode):
    """Raises ``AssertionError`` if more than ``allowed`` operations make the host wait for a GPU.

    Operations are recognised by their names, so this also works on a CPU.
    """

    FORBIDDEN = (
        *("local_scalar_dense", "nonzero", "masked_select", "bincount", "unique", "unique2"),
        *("unique_consecutive", "is_nonzero", "equal", "repeat_interleave.Tensor"),
    )

    def __init__(self, allowed: int = 0) -> None:
        super().__init__()
        self.allowed = allowed

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.name().removeprefix("aten::").strip("_")
        base = name.split(".")[0].rstrip("_")
        if name in self.FORBIDDEN or base in self.FORBIDDEN:
            self._count(name)
        places = args[1] if base in ("index", "index_put") else ()
        if any(place is not None and place.dtype in (torch.bool, torch.uint8) for place in places):
            self._count(f"{name} with a mask")
        return func(*args, **(kwargs or {}))

    def _count(self, what: str) -> None:
        self.allowed -= 1
        if self.allowed < 0:
            raise AssertionError(f"{what} waits for the device")

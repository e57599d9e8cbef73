"""Tells the faults of a machine, which another one may not have, from those of a configuration."""

import traceback

from trainables.common.later import torch

# How torch names devices, drivers and their libraries in errors that have no type of their own.
DEVICE = (
    "CUDA error",
    "CUDA driver",
    "No CUDA GPUs",
    "NVIDIA driver",
    "cuDNN error",
    "CUDNN_STATUS",
    "CUBLAS_STATUS",
    "NCCL",
    "HIP error",
)
# An index out of its range, say. The process can do nothing more with the device, but another one
# will come to the same.
ASSERTED = "device-side assert"
FRAMES, LENGTH = 20, 4000


def is_machines_fault(error: Exception) -> bool:
    """Return True if the same computation may succeed in another process or on another machine.

    A configuration fails wherever it runs: by its values, by its arithmetic, or by the memory that
    it asks for. Devices, drivers, file systems and installations are the machine's.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return False
    if isinstance(error, OSError | ImportError | torch.AcceleratorError):
        return True
    return isinstance(error, RuntimeError) and any(name in str(error) for name in DEVICE)


def is_final(reason: str) -> bool:
    """Return True if what looks like a machine's fault, and came again elsewhere, is none."""
    return ASSERTED in reason


def reason_of(error: Exception) -> str:
    """Return one line that names an error."""
    return _storable(f"{type(error).__name__}: {error}".splitlines()[0])


def where_raised(error: Exception) -> str:
    """Return the innermost frames of an error's traceback, at most 4,000 characters."""
    return _storable("".join(traceback.format_tb(error.__traceback__)[-FRAMES:])[-LENGTH:])


def _storable(text: str) -> str:
    # Names of files may hold what UTF-8 cannot.
    return text.encode(errors="replace").decode()

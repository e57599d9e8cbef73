"""Separates faults of a machine, which another machine may not have, from those of a trial."""

import traceback

from trainables.common.later import torch

# Names of devices, drivers and their libraries in torch's errors without a type of their own.
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
# For example an index out of range: it looks like a fault of the device, but recurs elsewhere.
ASSERTED = "device-side assert"
FRAMES, LENGTH = 20, 4000


def is_machines_fault(error: Exception) -> bool:
    """Return True if the same computation may succeed in another process or on another machine.

    Values, arithmetic and memory of a configuration fail on every machine; devices, drivers, file
    systems and installations are the machine's.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return False
    if isinstance(error, OSError | ImportError | torch.AcceleratorError):
        return True
    return isinstance(error, RuntimeError) and any(name in str(error) for name in DEVICE)


def is_final(reason: str) -> bool:
    """Return True if a fault is the configuration's although it looked like a machine's."""
    return ASSERTED in reason


def reason_of(error: Exception) -> str:
    """Return one line that names an error."""
    return _storable(f"{type(error).__name__}: {error}".splitlines()[0])


def where_raised(error: Exception) -> str:
    """Return the innermost frames of an error's traceback, at most 4,000 characters."""
    return _storable("".join(traceback.format_tb(error.__traceback__)[-FRAMES:])[-LENGTH:])


def _storable(text: str) -> str:
    # Names of files may have characters that UTF-8 cannot encode.
    return text.encode(errors="replace").decode()

"""Distinguishes faults of a machine, which may not recur on another, from faults of a trial."""

import traceback

from trainables.common.later import torch

# Words of torch's plain ``RuntimeError`` for faults of devices, drivers and their libraries.
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
# An assertion in a kernel, such as an index out of range, looks like a fault of the device, but
# fails on every machine.
ASSERTED = "device-side assert"
FRAMES, LENGTH = 20, 4000


def is_machines_fault(error: Exception) -> bool:
    """Return True if the same computation may succeed in another process or on another machine.

    Wrong values, arithmetic errors and lack of GPU memory recur on every machine. Faults of
    devices, drivers, file systems and installations belong to one machine. Failed assertions in GPU
    kernels look like faults of a device; ``is_final`` finds them.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return False
    if isinstance(error, OSError | ImportError | torch.AcceleratorError):
        return True
    return isinstance(error, RuntimeError) and any(name in str(error) for name in DEVICE)


def is_final(reason: str) -> bool:
    """Return True if an error's text names a failed assertion in a GPU kernel: it would recur."""
    return ASSERTED in reason


def reason_of(error: Exception) -> str:
    """Return the type and the first line of an error."""
    return _storable(f"{type(error).__name__}: {error}".splitlines()[0])


def where_raised(error: Exception) -> str:
    """Return the innermost frames of an error's traceback, at most 4,000 characters."""
    return _storable("".join(traceback.format_tb(error.__traceback__)[-FRAMES:])[-LENGTH:])


def _storable(text: str) -> str:
    # Names of files may have characters that UTF-8 cannot encode.
    return text.encode(errors="replace").decode()

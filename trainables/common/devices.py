"""The device of a process, its share of that device, and the cost of a trial."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from trainables.common.files import code_hash
from trainables.common.later import torch

# GPU memory of a process that torch does not count: the CUDA context and kernels.
CONTEXT_BYTES = 768 * 2**20
# cuBLAS is deterministic only if this variable is set before its first matrix product.
CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
VISIBLE = "CUDA_VISIBLE_DEVICES"
RESIDENT_SHARE = 0.5  # Share of free memory for data; the rest is for weights and activations.


@contextmanager
def one_thread() -> Iterator[None]:
    """Run the block on one CPU thread, which is faster for small tensors."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def concrete(device: torch.device | str) -> torch.device:
    """Return the device; a GPU without an index becomes the current GPU."""
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def default_device() -> torch.device:
    """Return the current GPU if this process may use one, else the CPU."""
    return concrete("cuda" if torch.cuda.is_available() else "cpu")


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, as names for ``CUDA_VISIBLE_DEVICES``."""
    named = os.environ.get(VISIBLE)
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    return [str(index) for index in range(torch.cuda.device_count())]


def trial_device(gpus: float, deterministic: bool = False) -> torch.device:
    """Return the device for a trial, and limit the share of the GPU's memory that it can use.

    The share is ``gpus``, at most 1; up to half of it is reserved for the CUDA context. A trial
    that needs more runs out of memory itself, and other trials on the GPU are not affected.

    Args:
        gpus: Number or fraction of GPUs; the device is the CPU if it is 0 or there is no GPU.
        deterministic: Whether to use only deterministic kernels on a GPU; operations without one
            raise ``RuntimeError``. A CPU is deterministic for a fixed number of threads.
    """
    device = default_device() if gpus else torch.device("cpu")
    if device.type == "cuda":
        if deterministic:
            os.environ.setdefault(*CUBLAS_WORKSPACE)
        torch.use_deterministic_algorithms(deterministic)
        share, (_, total) = min(1.0, gpus), torch.cuda.mem_get_info(device)
        for_tensors = max(share / 2, share - CONTEXT_BYTES / total)
        torch.cuda.set_per_process_memory_fraction(for_tensors, device)
    return device


def fits(size: int, device: torch.device) -> bool:
    """Return True if ``size`` bytes are at most ``RESIDENT_SHARE`` of a GPU's free memory.

    On a CPU, always return True.
    """
    return device.type == "cpu" or size <= RESIDENT_SHARE * free_memory(device)


def free_memory(device: torch.device) -> int:
    """Return how many bytes of a GPU are free and within the limit that ``trial_device`` sets."""
    device = concrete(device)
    free, total = torch.cuda.mem_get_info(device)
    limit = torch.cuda.get_per_process_memory_fraction(device) * total
    return min(free, int(limit) - torch.cuda.memory_reserved(device))


def device_kind(device: torch.device) -> str:
    """Return the kind of device, on which results may depend: ``cpu`` or the GPU's model."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def computed_on(
    device: torch.device, precision: str = "float32", together: int = 1
) -> dict[str, Any]:
    """Return how an artifact was computed, for its record.

    The keys are ``device`` (see ``device_kind``), ``precision``, ``code`` (see ``code_hash``),
    ``deterministic`` (whether the same computation on such a device gives the same bits) and
    ``together``, the number of outcomes that one pass computes.
    """
    bitwise = device.type == "cpu" or torch.are_deterministic_algorithms_enabled()
    how = {"device": device_kind(device), "precision": precision, "deterministic": bitwise}
    return {**how, "code": code_hash(), "together": together}


RESET = Path("/proc/self/clear_refs")
STATUS = Path("/proc/self/status")
PEAK = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)
FORGET_THE_PEAK = "5"  # See proc(5): resets the peak of resident memory to its present size.


class Meter:
    """Measures one trial in a process that runs many trials, one after the other.

    On a CPU it measures the processor time of all threads, because other programs hardly change it.
    On a GPU it measures wall-clock time.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device = concrete(device)
        self._clock = time.monotonic if device.type == "cuda" else time.process_time
        self._epochs = 0
        self._seconds = 0.0
        self._resident = psutil.Process().memory_info().rss
        self._forgets = _forget_peak()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    @contextmanager
    def epoch(self) -> Iterator[None]:
        """Time the block as one epoch."""
        started = self._clock()
        yield
        self._seconds += self._clock() - started
        self._epochs += 1
        if not self._forgets:
            self._resident = max(self._resident, psutil.Process().memory_info().rss)

    def report(self) -> dict[str, float]:
        """Return ``epoch_seconds`` (mean; 0 before the first epoch) and ``peak_memory`` (bytes).

        The memory is that of tensors on the GPU, or on a CPU the resident memory of the process. If
        the system does not report a peak of the latter, it is measured at the start and after each
        epoch, and the largest value is returned.
        """
        peak = self._resident
        if self._device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self._device)
        elif self._forgets and (found := PEAK.search(STATUS.read_text(encoding="ascii"))):
            peak = int(found[1]) * 1024
        seconds = self._seconds / self._epochs if self._epochs else 0.0
        return {"epoch_seconds": seconds, "peak_memory": float(peak)}


def _forget_peak() -> bool:
    """Reset this process's peak of resident memory; return True if the system supports it."""
    try:
        RESET.write_text(FORGET_THE_PEAK, encoding="ascii")
        return PEAK.search(STATUS.read_text(encoding="ascii")) is not None
    except OSError:
        return False

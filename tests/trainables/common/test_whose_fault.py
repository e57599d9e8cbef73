import pytest
import torch

from trainables.common import faults
from trainables.common.errors import InputError, StorageError, TrainingDivergedError
from trainables.common.faults import is_final, is_machines_fault, reason_of, where_raised


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUDA error: uncorrectable ECC error encountered"),
        RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
        RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate`"),
        RuntimeError("NCCL error in: ProcessGroupNCCL.cpp:1331, unhandled system error"),
        RuntimeError("No CUDA GPUs are available"),
        RuntimeError("CUDA driver version is insufficient for CUDA runtime version"),
        RuntimeError("CUDNN_STATUS_INTERNAL_ERROR"),
        RuntimeError("CUBLAS_STATUS_ALLOC_FAILED"),
        RuntimeError("HIP error: invalid device function"),
        RuntimeError("Found no NVIDIA driver on your system."),
        OSError(5, "Input/output error"),
        PermissionError(13, "Permission denied"),
        FileNotFoundError(2, "No such file or directory"),
        ConnectionResetError(104, "Connection reset by peer"),
        ImportError("libcudnn.so.9: cannot open shared object file"),
        ModuleNotFoundError("No module named 'timm'"),
    ],
)
def test_the_machine_is_at_fault(error):
    assert is_machines_fault(error)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6)"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 TB"),
        MemoryError("cannot allocate"),
        ValueError("gamma=-1.0 is outside [0, inf)"),
        TrainingDivergedError("training loss became nan in epoch 1"),
        InputError("artifact x is missing or damaged"),
        StorageError("cannot write artifact x: No space left on device"),
        IndexError("a bug in a loss"),
    ],
)
def test_the_configuration_is_at_fault(error):
    assert not is_machines_fault(error)


def test_reasons_and_tracebacks_are_short(monkeypatch):
    def deep(level: int, secret: str) -> None:
        if level == 0:
            raise OSError(f"no answer from {secret}\nsecond line")
        deeper(level - 1, secret)

    def deeper(level: int, secret: str) -> None:
        deep(level, secret)

    with pytest.raises(OSError, match="no answer") as caught:
        deep(300, "-".join(["word", "pass", "\udcff"]))
    text = where_raised(caught.value)
    assert len(text) <= 4000
    assert 10 <= text.count(", in deep") <= 20
    assert text.splitlines()[-1].endswith('raise OSError(f"no answer from {secret}\\nsecond line")')
    assert "word-pass" not in text
    monkeypatch.setattr(faults, "LENGTH", 99)
    assert where_raised(caught.value) == text[-99:]
    assert reason_of(caught.value) == "OSError: no answer from word-pass-?"


def test_a_device_side_assert_is_not_retried_on_another_machine():
    asserted = torch.AcceleratorError("CUDA error: device-side assert triggered")
    assert is_machines_fault(asserted)
    assert is_final(reason_of(asserted))
    assert not is_final(reason_of(torch.AcceleratorError("CUDA error: unspecified launch failure")))

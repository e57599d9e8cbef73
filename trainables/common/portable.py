"""Arithmetic that gives the same bits on every x86-64 processor that has AVX2 and FMA.

Libraries choose kernels by the processor, and kernels sum in different orders. These environment
variables fix the kernels if they are set before PyTorch is imported.
"""

import os
from pathlib import Path

from trainables.common.errors import InputError

VARIABLES = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_CBWR": "COMPATIBLE",  # With AVX2, matrix products differ between AMD and Intel.
    "OPENBLAS_CORETYPE": "Haswell",
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
    "OMP_NUM_THREADS": "1",
}


def require_portable() -> None:
    """Raise ``InputError`` unless ``VARIABLES`` are set and the processor has AVX2 and FMA."""
    if any(os.environ.get(name) != value for name, value in VARIABLES.items()):
        settings = " ".join(f"{name}='{value}'" for name, value in VARIABLES.items())
        raise InputError(
            "resources.portable: this process computes without the required environment; start it "
            f"with env {settings}"
        )
    known = Path("/proc/cpuinfo")
    if not {"avx2", "fma"} <= set(known.read_text("utf-8").split() if known.exists() else ()):
        raise InputError("resources.portable: this processor lacks AVX2 or FMA; remove the key")

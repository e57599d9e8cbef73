"""Arithmetic that gives the same bits on every x86-64 processor that has AVX2 and FMA.

Libraries choose their kernels by the processor, and kernels sum in other orders. These environment
variables choose them in its place, for a process that has them before it imports PyTorch.
"""

import os
from pathlib import Path

from trainables.common.errors import InputError

VARIABLES = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_CBWR": "COMPATIBLE",  # With its AVX2 a matrix product is another one on AMD and on Intel.
    "OPENBLAS_CORETYPE": "Haswell",
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
    "OMP_NUM_THREADS": "1",
}


def require_portable() -> None:
    """Raise ``InputError`` unless this process computes the same bits as any that passes here."""
    if any(os.environ.get(name) != value for name, value in VARIABLES.items()):
        settings = " ".join(f"{name}='{value}'" for name, value in VARIABLES.items())
        raise InputError(f"resources.portable: this process computes; start it with env {settings}")
    known = Path("/proc/cpuinfo")
    if not {"avx2", "fma"} <= set(known.read_text("utf-8").split() if known.exists() else ()):
        raise InputError("resources.portable: this processor lacks AVX2 or FMA; leave it out")

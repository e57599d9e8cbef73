"""Arithmetic that gives the same bits on every x86-64 processor that has AVX2 and FMA.

Libraries choose their kernels by the processor, and kernels sum in other orders. These environment
variables choose them in its place, for a process that has them before it imports PyTorch.
"""

import os

from trainables.common.errors import InputError

VARIABLES = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_CBWR": "COMPATIBLE",  # With its AVX2 a matrix product is another one on AMD and on Intel.
    "OPENBLAS_CORETYPE": "Haswell",
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
    "OMP_NUM_THREADS": "1",
}
NEEDED = ("avx2", "fma")


def require_portable() -> None:
    """Make sure that this process computes the same bits as any other that passes here.

    Raises:
        InputError: If it was started without the variables, or on a processor without AVX2.
    """
    if any(os.environ.get(name) != value for name, value in VARIABLES.items()):
        settings = " ".join(f"{name}='{value}'" for name, value in VARIABLES.items())
        raise InputError(f"resources.portable: this process computes; start it with env {settings}")
    if missing := [flag for flag in NEEDED if flag not in _flags()]:
        raise InputError(
            f"resources.portable: this processor lacks {' and '.join(missing)}; compute on an "
            "x86-64 processor of 2013 or later, or give `portable: false`"
        )


def _flags() -> set[str]:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            lines = [line for line in file if line.startswith("flags")]
    except OSError:
        return set()
    return set(lines[0].split()) if lines else set()

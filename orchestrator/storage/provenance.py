"""Where a number came from: code, libraries and hardware."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import torch

LIBRARIES = (
    "calsweep",
    "torch",
    "torchvision",
    "timm",
    "ray",
    "optuna",
    "mlflow",
    "numpy",
    "scipy",
    "scikit-learn",
)


def provenance() -> dict[str, Any]:
    """Return commit, library versions, Python and hardware as plain values."""
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "git_commit": git_commit(),
        "versions": {"python": platform.python_version(), **library_versions()},
        "hardware": {
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
            "gpus": gpus,
        },
    }


def library_versions() -> dict[str, str]:
    """Return the installed version of every library that can change a result."""
    return {name: library_version(name) for name in LIBRARIES}


def library_version(name: str) -> str:
    """Return the installed version of a library, or that it is not installed.

    calsweep itself runs from its folder, too, without being installed.
    """
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def git_commit() -> str:
    """Return the commit of this code, with ``-dirty`` for local changes; empty outside git.

    Code that is merely installed inside someone's repository, as in its virtual environment, has
    no commit.
    """
    file = Path(__file__).resolve()
    folder = file.parent
    if not _git(folder, "ls-files", "--", file.name):
        return ""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit and _git(folder, "status", "--porcelain", "--untracked-files=no"):
        return f"{commit}-dirty"
    return commit


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""

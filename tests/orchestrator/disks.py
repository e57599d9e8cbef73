"""Disks that are full, and other limits of a process."""

import resource
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest


def files_of_at_most(size: int) -> AbstractContextManager[None]:
    """Have the system refuse what would make a file longer, as it does on a full disk."""
    return limited(resource.RLIMIT_FSIZE, size)


@contextmanager
def limited(kind: int, value: int) -> Iterator[None]:
    """Set a limit of this process, such as ``resource.RLIMIT_NOFILE``, within the block."""
    limit = resource.getrlimit(kind)
    resource.setrlimit(kind, (value, limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, limit)


@contextmanager
def mounted(place: Path, size: int) -> Iterator[None]:
    """Mount a small file system; needs to be root."""
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)],
        check=True,
        capture_output=True,
    )
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def require_mounts(folder: Path) -> None:
    """Skip the test if no file system can be mounted here."""
    try:
        with mounted(folder, 2**20):
            pass
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        pytest.skip(f"no file system can be mounted here: {error}")

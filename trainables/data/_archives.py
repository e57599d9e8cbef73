"""Files as their owners publish them: whole or not, packed or not."""

import os
import pickle
import shutil
import tarfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from trainables.common.files import scratch_folder

# Errors of libraries when a download fails or a file is of another kind.
FAILURES = (
    RuntimeError,
    OSError,
    ValueError,
    EOFError,
    AssertionError,
    KeyError,
    IndexError,
    TypeError,
    pickle.UnpicklingError,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)


@dataclass(frozen=True)
class Checked:
    """A file and the MD5 that its owner states; None where there is none."""

    path: Path
    md5: str | None

    def fault(self) -> str:
        """Return the fault of the file, or nothing."""
        from torchvision.datasets.utils import check_integrity  # Importing it takes a second.

        if not self.path.is_file():
            return f"{self.path} is absent"
        if not check_integrity(self.path, self.md5):
            return f"{self.path} is damaged (wrong checksum)"
        return ""


def unpack(archive: Path, folder: str) -> None:
    """Unpack the folder in an archive beside it, or raise one of ``FAILURES``."""
    # Renamed when whole: what an interruption leaves must not pass for the folder.
    with scratch_folder(".unpacking-", archive.parent) as scratch:
        # Members of .zip files are kept inside the folder in any case.
        shutil.unpack_archive(archive, scratch, filter=None if archive.suffix == ".zip" else "data")
        os.replace(scratch / folder, archive.parent / folder)


def line_of(error: BaseException) -> str:
    """Return an error's kind and text in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())

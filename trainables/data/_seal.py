"""Law 1: a search trial cannot reach test data."""

import json
from contextlib import suppress
from pathlib import Path

from trainables.common.errors import InputError
from trainables.data._guard import TestDataSealedError, seal_paths
from trainables.data._prepare import raw_test_paths
from trainables.data._prepared import MANIFEST, SUITES, TEST

SUITE_MANIFEST = "suite.json"


def seal_test_data(*directories: Path | str) -> None:
    """Give up, for the rest of this process's life, every way to read test data.

    Afterwards ``PreparedData.test`` and ``read_source`` raise ``TestDataSealedError``, and so does
    opening, by whatever path, a file below the ``test`` folder of a prepared directory or of those
    beside it, a suite stored beside it, or a file of their sources that holds test images. Child
    processes that import this package are sealed too. There is no way back but a new process. It is
    no sandbox against hostile code: files that a C library opens by itself are not seen.

    Args:
        *directories: Prepared directories (with ``split.json``), or any other files and folders,
            which are sealed whole. With none, only the functions above are closed.

    Raises:
        InputError: If one of them does not exist; the others are sealed all the same.
        TestDataSealedError: If test arrays read earlier are still held; the seal holds all the
            same.
    """
    paths = [Path(directory).absolute() for directory in directories]
    seal_paths(str(target) for path in paths for target in _targets(path))
    for path in paths:
        if not path.exists():
            raise InputError(f"{path} does not exist: no test data there to seal")


def _targets(path: Path) -> list[Path]:
    if not (path / MANIFEST).is_file():
        return [path]
    # Another split of the same images, prepared beside this one, holds the same test images.
    beside = [manifest.parent / TEST for manifest in path.parent.glob(f"*/{MANIFEST}")]
    suites = path.parent / SUITES
    return [path / TEST, *beside, *raw_test_paths(path.parent), suites, *_suite_sources(suites)]


def _suite_sources(suites: Path) -> list[Path]:
    """Return where the sources of stored suites keep their images, but of those sealed already."""
    sources: list[Path] = []
    for manifest in sorted(suites.glob(f"*/{SUITE_MANIFEST}")):
        # A process that turns to another task sealed the sources together with the manifests.
        with suppress(TestDataSealedError):
            fields = json.loads(manifest.read_text(encoding="utf-8"))
            sources += map(Path, fields["test_paths"])
    return sources

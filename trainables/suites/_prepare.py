"""Stores a suite once for every task that is measured on it."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from filelock import FileLock

from trainables.data import PreparedData
from trainables.data._guard import require_unsealed
from trainables.data._prepared import (
    SUITES,
    Notice,
    describe_files,
    digest,
    silent,
    write_blocks,
)
from trainables.data._seal import SUITE_MANIFEST
from trainables.errors import InputError
from trainables.suites._base import Suite
from trainables.suites._data import LABELS, SCHEMA, SuiteData
from trainables.suites._registry import find_suite


def suite_directory(name: str, root: Path | str, prepared: PreparedData) -> Path:
    """Return where a suite of a task is stored, beside the task's data, or would be.

    Raises:
        InputError: If there is no suite of that name.
    """
    return _directory(find_suite(name, root), prepared)


def prepare_suite(
    name: str,
    root: Path | str,
    prepared: PreparedData,
    download: bool = True,
    notice: Notice = silent,
) -> SuiteData:
    """Bring a suite into the form of a task's images and store it; later, find it there.

    What is stored is used only if its source has not changed and every checksum still holds.
    Where the task keeps only some of its test images, as many are kept of the suite.

    Args:
        name: A name as in ``suite_names``.
        root: The folder that downloaded data live in.
        prepared: The task's data.
        download: Whether absent files may be downloaded.
        notice: Told now and then how far it is.

    Raises:
        InputError: If there is no suite of that name, it does not fit the task, or its source is
            absent or damaged, or it cannot be stored.
        TestDataSealedError: If it has to be read and this process is sealed.
    """
    suite = find_suite(name, root)
    suite.check(prepared.info)
    directory = _directory(suite, prepared)
    found = _find(directory, suite)
    if found is not None:
        return found
    require_unsealed(f"suite {name!r}")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(directory.with_suffix(".lock")):
            return _find(directory, suite) or _make(suite, prepared, directory, download, notice)
    except OSError as error:
        raise suite.refuse(f"cannot be stored in {directory}: {error}") from error


def _directory(suite: Suite, prepared: PreparedData) -> Path:
    key = digest([SCHEMA, suite.full_name(), prepared.key])
    return prepared.directory.parent / SUITES / key


def _find(directory: Path, suite: Suite) -> SuiteData | None:
    try:
        found = SuiteData.open(directory)
        found.verify()
    except InputError:
        # Absent or damaged: it is made again.
        return None
    return found if found.signature == suite.signature() else None


def _make(
    suite: Suite, prepared: PreparedData, directory: Path, download: bool, notice: Notice
) -> SuiteData:
    scratch = Path(tempfile.mkdtemp(prefix=".making-", dir=directory.parent))
    try:
        _write(suite, prepared, scratch, download, notice)
        scratch.chmod(0o755)
        shutil.rmtree(directory, ignore_errors=True)
        os.replace(scratch, directory)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return SuiteData.open(directory)


def _write(
    suite: Suite, prepared: PreparedData, folder: Path, download: bool, notice: Notice
) -> None:
    labels = suite.labels(prepared, download)
    np.save(folder / f"{LABELS}.npy", labels, allow_pickle=False)
    shape = (*prepared.info.size, prepared.info.channels)
    for part in suite.parts(prepared, download):
        tell = partial(_tell, notice, part.name)
        write_blocks(folder / f"{part.name}.npy", (part.images, *shape), part.blocks, tell)
    files = describe_files(folder)
    document = {
        "schema": SCHEMA,
        "name": suite.full_name(),
        "root": str(suite.root),
        "signature": suite.signature(),
        "fingerprint": digest({name: entry["sha256"] for name, entry in files.items()}),
        "test_paths": [str(path) for path in suite.test_paths()],
        "files": files,
    }
    (folder / SUITE_MANIFEST).write_text(json.dumps(document, indent=1), encoding="utf-8")


def _tell(notice: Notice, part: str, text: str) -> None:
    notice(f"{part}: {text}")

"""Stores a suite's data, once per task."""

import json
from functools import partial
from pathlib import Path

import numpy as np

from trainables.common.errors import InputError
from trainables.common.files import describe_files
from trainables.data import PreparedData
from trainables.data._guard import require_unsealed
from trainables.data._prepare import SUITE_MANIFEST
from trainables.data._prepared import (
    SCHEMA,
    SUITES,
    Notice,
    digest,
    find_or_make,
    make_folder,
    silent,
    write_blocks,
)
from trainables.data.suites._base import LABELS, Suite, SuiteData, find_suite


def suite_directory(suite: Suite, prepared: PreparedData) -> Path:
    """Return the folder for a suite's data, next to the task's data; it may not exist yet."""
    key = digest([SCHEMA, suite.full_name(), prepared.key])
    return prepared.directory.parent / SUITES / key


def prepare_suite(
    name: str,
    root: Path | str,
    prepared: PreparedData,
    download: bool = True,
    notice: Notice = silent,
) -> SuiteData:
    """Convert a suite to the form of a task's rows and store it, or return it if it is stored.

    Stored data is used only if the source is unchanged and every checksum matches. If the task
    limits its test rows, the suite has the same limit.

    For the arguments see ``trainables.data.prepare``; names are those of ``suite_names``.

    Raises:
        TestDataSealedError: If the source has to be read and this process is sealed.
    """
    suite = find_suite(name, root)
    suite.check(prepared.info)
    directory = suite_directory(suite, prepared)
    try:
        return find_or_make(
            lambda: _find(directory, suite),
            lambda: _make(suite, prepared, directory, download, notice),
            directory.with_suffix(".lock"),
        )
    except OSError as error:
        raise suite.refuse(f"cannot be stored in {directory}: {error}") from error


def _find(directory: Path, suite: Suite) -> SuiteData | None:
    try:
        found = SuiteData.open(directory)
        found.verify()
    except (InputError, KeyError, TypeError, AttributeError):
        # Missing or damaged data is made again.
        return None
    return found if found.signature == suite.signature() else None


def _make(
    suite: Suite, prepared: PreparedData, directory: Path, download: bool, notice: Notice
) -> SuiteData:
    require_unsealed(f"suite {suite.name!r}")
    with make_folder(directory) as folder:
        labels, parts = suite.read(prepared, download)
        np.save(folder / f"{LABELS}.npy", labels, allow_pickle=False)
        for name, rows, blocks in parts:
            path, notify = folder / f"{name}.npy", partial(_notify, notice, name)
            write_blocks(path, prepared.info.inputs.decoded_as, rows, blocks, notify)
        files = describe_files(folder, "*.npy")
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
    return SuiteData.open(directory)


def _notify(notice: Notice, part: str, text: str) -> None:
    notice(f"{part}: {text}")

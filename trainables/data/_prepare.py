"""Reads, splits and stores a data set once, for every process that asks."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
from filelock import FileLock

from trainables.data._info import DatasetInfo
from trainables.data._prepared import (
    MANIFEST,
    SCHEMA,
    SEARCH,
    TEST,
    Notice,
    PreparedData,
    describe_files,
    digest,
    silent,
    write_part,
)
from trainables.data._registry import find_reader, read_source
from trainables.data._source import Reader, Source
from trainables.data._split import Split, SplitSpec, make_split
from trainables.errors import InputError

RECORDS = "sources"


def prepare(
    name: str,
    root: Path | str,
    split: SplitSpec,
    destination: Path | str,
    download: bool = True,
    notice: Notice = silent,
) -> PreparedData:
    """Read, split and store a data set below ``destination``; the second time, find it there.

    What is stored is found again by name and by size and time of the source's files, without
    reading them, and used only if every checksum still holds. Processes may call this at once.

    Args:
        name: A name as in ``source_names``.
        root: The folder that downloaded data sets live in.
        split: How to split it.
        destination: The folder that holds prepared data sets, one subfolder a key.
        download: Whether absent files may be downloaded.
        notice: Told now and then how far it is.

    Raises:
        InputError: If the data set cannot be read, has too few images for ``split``, or
            ``destination`` cannot be written.
        TestDataSealedError: If it has to be read and this process is sealed.
    """
    reader = find_reader(name, root)
    destination = Path(destination).absolute()
    found = _find(reader, split, destination)
    if found is not None:
        return found
    try:
        destination.mkdir(parents=True, exist_ok=True)
        with FileLock(destination / ".prepare.lock"):
            found = _find(reader, split, destination)
            return found or _make(reader, split, destination, download, notice)
    except OSError as error:
        raise InputError(f"dataset {name!r} cannot be stored in {destination}: {error}") from error


def find_prepared(
    name: str, root: Path | str, split: SplitSpec, destination: Path | str
) -> PreparedData | None:
    """Return what ``prepare`` has stored, or None; never reads the source, never writes.

    Args:
        name: A name as in ``source_names``.
        root: The folder that downloaded data sets live in.
        split: How it was split.
        destination: The folder that holds prepared data sets.
    """
    return _find(find_reader(name, root), split, Path(destination).absolute())


def missing_download(name: str, root: Path | str, split: SplitSpec | None = None) -> str:
    """Return what ``prepare`` would have to download first, in one line; empty if nothing.

    What ``prepare`` would refuse is refused here, as far as it shows without a look at images.
    Nothing is downloaded, unpacked or written.

    Args:
        name: A name as in ``source_names``.
        root: The folder that downloaded data sets live in.
        split: How it will be split; None for not at all.

    Raises:
        InputError: See ``prepare``.
    """
    reader = find_reader(name, root)
    labels = reader.labels()
    if labels is not None:
        if split is not None:
            _split(name, *labels, split)
        return ""
    status = reader.check()
    if not status.present and not reader.downloads:
        raise InputError(f"dataset {name!r}: {status.detail}; {status.remedy}")
    return "" if status.present else f"dataset {name!r} is not downloaded yet: {status.detail}"


def raw_test_paths(destination: Path) -> list[Path]:
    """Return where the sources of everything prepared below ``destination`` keep test images."""
    paths: list[Path] = []
    for record in sorted((destination / RECORDS).glob("*.json")):
        fields = json.loads(record.read_text(encoding="utf-8"))
        paths += find_reader(fields["name"], fields["root"]).test_paths()
    return paths


def _key(fingerprint: str, info: DatasetInfo, split: SplitSpec) -> str:
    content = {k: v for k, v in info.to_dict().items() if k not in ("name", "split_rule", "source")}
    return digest([SCHEMA, fingerprint, content, split.to_dict()])


def _record_path(reader: Reader, destination: Path) -> Path:
    return destination / RECORDS / f"{digest([reader.full_name(), str(reader.root)])}.json"


def _find(reader: Reader, split: SplitSpec, destination: Path) -> PreparedData | None:
    try:
        record = json.loads(_record_path(reader, destination).read_text(encoding="utf-8"))
        if record["signature"] != reader.signature() or record["schema"] != SCHEMA:
            return None
        key = _key(record["fingerprint"], DatasetInfo.from_dict(record["info"]), split)
        prepared = PreparedData.open(destination / key)
        prepared.verify()
    except (OSError, ValueError, KeyError):
        # Absent or damaged: it is made again.
        return None
    return prepared


def _make(
    reader: Reader, split: SplitSpec, destination: Path, download: bool, notice: Notice
) -> PreparedData:
    notice("reading")
    source = read_source(reader.name, reader.root, download)
    directory = destination / _key(source.fingerprint, source.info, split)
    test = None if source.test is None else source.test.labels
    rows = _split(source.info.name, source.train.labels, test, split)
    scratch = Path(tempfile.mkdtemp(prefix=".making-", dir=destination))
    try:
        _write(scratch, source, split, rows, directory.name, notice)
        _replace(scratch, directory)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    _write_record(reader, source, destination)
    return PreparedData.open(directory)


def _split(name: str, train: np.ndarray, test: np.ndarray | None, split: SplitSpec) -> Split:
    try:
        return make_split(train, test, split)
    except ValueError as error:
        raise InputError(f"dataset {name!r}: split {error}") from error


def _write(
    directory: Path, source: Source, split: SplitSpec, rows: Split, key: str, notice: Notice
) -> None:
    train, validation = source.train.take(rows.train), source.train.take(rows.validation)
    test = (source.test or source.train).take(rows.test)
    write_part(directory / SEARCH, "train_", train, rows.train, notice)
    write_part(directory / SEARCH, "validation_", validation, rows.validation, notice)
    write_part(directory / TEST, "", test, rows.test, notice)
    document = {
        "schema": SCHEMA,
        "key": key,
        "fingerprint": source.fingerprint,
        "info": source.info.to_dict(),
        "split": split.to_dict(),
        "counts": {part: len(getattr(rows, part)) for part in ("train", "validation", "test")},
        "class_counts": {
            part: np.bincount(arrays.labels, minlength=source.info.num_classes).tolist()
            for part, arrays in (("train", train), ("validation", validation))
        },
        "files": describe_files(directory),
    }
    (directory / MANIFEST).write_text(json.dumps(document, indent=1), encoding="utf-8")


def _replace(scratch: Path, directory: Path) -> None:
    """Move ``scratch`` to ``directory``; what is there was found damaged, or has the same key."""
    scratch.chmod(0o755)
    if directory.exists():
        old = tempfile.mkdtemp(prefix=".damaged-", dir=directory.parent)
        os.replace(directory, old)
        shutil.rmtree(old)
    os.replace(scratch, directory)


def _write_record(reader: Reader, source: Source, destination: Path) -> None:
    path = _record_path(reader, destination)
    path.parent.mkdir(exist_ok=True)
    record = {
        "schema": SCHEMA,
        "name": reader.full_name(),
        "root": str(reader.root),
        "signature": reader.signature(),
        "fingerprint": source.fingerprint,
        "info": source.info.to_dict(),
    }
    scratch = path.with_suffix(".tmp")
    scratch.write_text(json.dumps(record, indent=1), encoding="utf-8")
    os.replace(scratch, path)

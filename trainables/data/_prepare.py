"""Reads, splits and stores a data set once for all processes, and seals its test data."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from trainables.common.errors import InputError
from trainables.common.files import describe_files, why, write_whole
from trainables.data._copies import Copies, count_copies, keyed
from trainables.data._guard import TestDataSealedError, is_sealed, seal_paths
from trainables.data._inputs import DatasetInfo
from trainables.data._labels import SHOWN
from trainables.data._prepared import (
    MANIFEST,
    SCHEMA,
    SEARCH,
    SUITES,
    TEST,
    Notice,
    PreparedData,
    digest,
    find_or_make,
    make_folder,
    silent,
    write_blocks,
)
from trainables.data._rows import Rows, Split, SplitSpec, make_split
from trainables.data._source import (
    SOURCES,
    OutlinedReader,
    Reader,
    Source,
    find_reader,
    read_source,
)

RECORDS = "sources"
SMALL = 32 * 2**20  # Bytes; larger sources are not read for a preview.


def prepare(
    name: str,
    root: Path | str,
    split: SplitSpec,
    destination: Path | str,
    download: bool = True,
    notice: Notice = silent,
    settings: Mapping[str, Any] | None = None,
) -> PreparedData:
    """Read, split and store a data set below ``destination``, unless it is already stored there.

    Stored data is found by name, settings and split, and by size and time of the source's files,
    which are not read; it is used only if every checksum matches. Several processes may call this
    at once.

    Args:
        name: A name as in ``source_names``.
        root: The folder of downloaded data sets.
        split: How to split it.
        destination: The folder of prepared data sets, with a subfolder for each key.
        download: Whether missing files may be downloaded.
        notice: Receives progress messages.
        settings: The ``inputs`` of a task; see ``Reader.adjust``.

    Raises:
        TestDataSealedError: If the source has to be read and this process is sealed.
    """
    reader = find_reader(name, root, settings)
    destination = Path(destination).absolute()
    try:
        return find_or_make(
            lambda: _find(reader, split, destination),
            lambda: _make(reader, split, destination, download, notice),
            destination / ".prepare.lock",
        )
    except OSError as error:
        reason = why(error) if isinstance(error, PermissionError) else error
        raise InputError(f"dataset {name!r} cannot be stored in {destination}: {reason}") from error


def find_prepared(
    name: str,
    root: Path | str,
    split: SplitSpec,
    destination: Path | str,
    settings: Mapping[str, Any] | None = None,
) -> PreparedData | None:
    """Return the data stored by ``prepare``, or None; reads no source's rows and writes nothing."""
    return _find(find_reader(name, root, settings), split, Path(destination).absolute())


def missing_download(
    name: str,
    root: Path | str,
    split: SplitSpec | None = None,
    settings: Mapping[str, Any] | None = None,
) -> str:
    """Return a line on the data that must be downloaded before ``prepare``, or "".

    Data that users must fetch by hand counts as well. Raise the errors of ``prepare`` that can be
    found without reading images, also for ``split`` if it is not None. Nothing is downloaded,
    unpacked or written.
    """
    reader = find_reader(name, root, settings)
    labels = reader.labels()
    if labels is not None:
        if split is not None:
            try:
                _split(name, *labels, split, reader.own_validation(), reader.kind.trains)
            except InputError as error:
                classes = reader.outline()[0] if isinstance(reader, OutlinedReader) else ()
                raise InputError(f"{error}{_alone(labels[0], classes)}") from error
        return ""
    status = reader.check()
    if reader.awaited():
        return f"dataset {name!r} is missing: {status.detail}; {status.remedy}"
    if not status.present and not reader.downloads:
        raise InputError(f"dataset {name!r}: {status.detail}; {status.remedy}")
    return "" if status.present else f"dataset {name!r} is not downloaded yet: {status.detail}"


def preview_copies(
    name: str, root: Path | str, split: SplitSpec, settings: Mapping[str, Any] | None = None
) -> Copies | None:
    """Return the copies that ``prepare`` would count; None for missing, large or slow sources."""
    reader = find_reader(name, root, settings)
    files = [path for path in reader.files() if path.is_file()]
    if not files or sum(path.stat().st_size for path in files) > SMALL or reader.labels() is None:
        return None
    source = read_source(name, root, download=False, settings=settings)
    copies = count_copies(_parts(source, _split_rows(source, split)))
    copies.check(name)
    return copies


def raw_test_paths(destination: Path) -> list[Path]:
    """Return the test files of the sources of all data prepared below ``destination``."""
    paths: list[Path] = []
    for record in sorted((destination / RECORDS).glob("*.json")):
        fields = json.loads(record.read_text(encoding="utf-8"))
        if "test_paths" in fields:  # A plugin's reader may be unknown in this process.
            paths += map(Path, fields["test_paths"])
        else:
            paths += find_reader(fields["name"], fields["root"]).test_paths()
    return paths


def _key(fingerprint: str, info: DatasetInfo, split: SplitSpec) -> str:
    content = {k: v for k, v in info.to_dict().items() if k not in ("name", "split_rule", "source")}
    return digest([SCHEMA, fingerprint, content, split.to_dict()])


def _record_path(reader: Reader, destination: Path) -> Path:
    # If the code of a plugin's reader changes, stored data is not used, as if a file had changed.
    signature = " ".join(filter(None, (reader.signature(), _code(reader))))
    fields = [reader.full_name(), signature, *filter(None, [dict(reader.settings), reader.edition])]
    return destination / RECORDS / f"{digest(fields)}.json"


def _find(reader: Reader, split: SplitSpec, destination: Path) -> PreparedData | None:
    try:
        record = json.loads(_record_path(reader, destination).read_text(encoding="utf-8"))
        if record["schema"] != SCHEMA:
            return None
        key = _key(record["fingerprint"], DatasetInfo.from_dict(record["info"]), split)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    found = _intact(destination / key)
    return None if found is None else _counted(found, reader.name)


def _counted(data: PreparedData, name: str) -> PreparedData:
    """Return prepared data, or raise ``InputError`` if the whole test part was copied.

    Older versions did not count copies. They are counted now if rows are stored as the source gives
    them and this process is not sealed.
    """
    inputs = data.info.inputs
    as_given = inputs.given == (inputs.dtype, inputs.row)
    if data.copies is None and as_given and not is_sealed():
        seen = data.search()
        parts = {"train": seen.train, "validation": seen.validation, "test": data.test()}
        data = replace(data, copies=count_copies(parts))
    if data.copies is not None:
        data.copies.check(name)
    return data


def _intact(directory: Path) -> PreparedData | None:
    """Return prepared data, or None if it is missing or damaged."""
    try:
        prepared = PreparedData.open(directory)
        prepared.verify()
    except PermissionError:
        raise  # The data may be intact.
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return prepared


def _make(
    reader: Reader, split: SplitSpec, destination: Path, download: bool, notice: Notice
) -> PreparedData:
    notice("reading")
    source = read_source(reader.name, reader.root, download, reader.settings)
    directory = destination / _key(source.fingerprint, source.info, split)
    rows = _split_rows(source, split)
    fitted = replace(source, info=source.info.fitted(source.train.take(rows.train)))
    if _intact(directory) is None:  # Another copy of the same files may have been prepared before.
        with make_folder(directory) as scratch:
            _write(scratch, fitted, split, rows, directory.name, notice)
    _write_record(reader, source, destination)
    return _counted(PreparedData.open(directory), reader.name)


def _split_rows(source: Source, split: SplitSpec) -> Split:
    test = None if source.test is None else source.test.labels
    own, trains = source.train.validation, source.info.inputs.trains
    try:
        return _split(source.info.name, source.train.labels, test, split, own, trains)
    except InputError as error:
        alone = _alone(source.train.labels, source.info.classes)
        raise InputError(f"{error}{alone}") from error


def _alone(labels: np.ndarray, classes: Sequence[str]) -> str:
    """Return an addition to a split's error if there are classes with one row, else ""."""
    alone = np.flatnonzero(np.bincount(labels) == 1).tolist()
    names = ", ".join(repr(classes[k]) if classes else str(k) for k in alone[:SHOWN])
    more = ", ..." if alone[SHOWN:] else ""
    need = "each class needs at least two, because one stays for training"
    return f"; classes with only one row: {names}{more}; {need}" if alone else ""


def _parts(source: Source, rows: Split) -> dict[str, Rows]:
    return {
        "train": source.train.take(rows.train),
        "validation": source.train.take(rows.validation),
        "test": (source.test or source.train).take(rows.test),
    }


def _split(
    name: str,
    train: np.ndarray,
    test: np.ndarray | None,
    split: SplitSpec,
    own: np.ndarray | None,
    trains: bool,
) -> Split:
    try:
        return make_split(train, test, split, own, trains)
    except ValueError as error:
        raise InputError(f"dataset {name!r}: split {error}") from error


def _write(
    directory: Path, source: Source, split: SplitSpec, rows: Split, key: str, notice: Notice
) -> None:
    parts, inputs = _parts(source, rows), source.info.inputs
    quick: dict[str, list[np.ndarray]] = {name: [] for name in parts}
    for name, part in parts.items():
        is_test = name == "test"  # A search must not see it, so it has its own folder.
        folder, prefix = (directory / TEST, "") if is_test else (directory / SEARCH, f"{name}_")
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{prefix}{inputs.kind}.npy"
        write_blocks(path, inputs, len(part), keyed(part.blocks(), quick[name]), notice)
        for kind, array in (("labels", part.labels), ("indices", getattr(rows, name))):
            np.save(folder / f"{prefix}{kind}.npy", np.ascontiguousarray(array), allow_pickle=False)
    copies = count_copies(parts, quick)
    copies.check(source.info.name)
    counts = {
        name: np.bincount(parts[name].labels, minlength=source.info.num_classes).tolist()
        for name in ("train", "validation")
    }
    document = {
        "schema": SCHEMA,
        "key": key,
        "fingerprint": source.fingerprint,
        "info": source.info.to_dict(),
        "split": split.to_dict(),
        "counts": {name: len(part) for name, part in parts.items()},
        "class_counts": counts,
        "copies": copies._asdict(),
        "files": describe_files(directory, "*.npy"),
    }
    (directory / MANIFEST).write_text(json.dumps(document, indent=1), encoding="utf-8")


def _write_record(reader: Reader, source: Source, destination: Path) -> None:
    path = _record_path(reader, destination)
    path.parent.mkdir(exist_ok=True)
    record = {
        "schema": SCHEMA,
        "name": reader.full_name(),
        "root": str(reader.root),
        "fingerprint": source.fingerprint,
        "info": source.info.to_dict(),
    }
    if _code(reader) or reader.settings:  # Settings may name the split that is the test set.
        record["test_paths"] = [str(test.absolute()) for test in reader.test_paths()]
    write_whole(path, json.dumps(record, indent=1))


def _code(reader: Reader) -> str | None:
    return SOURCES.code(reader.name.partition(":")[0])


SUITE_MANIFEST = "suite.json"


def seal_test_data(*directories: Path | str) -> None:
    """Forbid this process to read test data until it ends.

    Afterwards ``PreparedData.test`` and ``read_source`` raise ``TestDataSealedError``. So does
    opening, by any path, a test file of a prepared directory or of one next to it, a suite stored
    there, or a test file of their sources. Child processes that import this package are sealed as
    well. This is not a sandbox against hostile code: Python does not see files that C libraries
    open.

    Args:
        *directories: Prepared directories (with ``split.json``), or other files and folders, which
            are sealed entirely. Without any, only functions that read test data are sealed.

    Raises:
        TestDataSealedError: If test arrays read earlier are still alive; the process is sealed
            nevertheless.
    """
    paths = [Path(directory).absolute() for directory in directories]
    seal_paths(str(target) for path in paths for target in _targets(path))
    for path in paths:
        if not path.exists():
            raise InputError(f"{path} does not exist, so its test data cannot be sealed")


def _targets(path: Path) -> list[Path]:
    if not (path / MANIFEST).is_file():
        return [path]
    # Other splits of the same data set may have the same test rows.
    siblings = [manifest.parent / TEST for manifest in path.parent.glob(f"*/{MANIFEST}")]
    suites = path.parent / SUITES
    return [path / TEST, *siblings, *raw_test_paths(path.parent), suites, *_suite_sources(suites)]


def _suite_sources(suites: Path) -> list[Path]:
    """Return the files and folders of stored suites' sources, except those sealed before."""
    sources: list[Path] = []
    for manifest in sorted(suites.glob(f"*/{SUITE_MANIFEST}")):
        # A manifest that was sealed for an earlier task was sealed together with its sources.
        with suppress(TestDataSealedError):
            fields = json.loads(manifest.read_text(encoding="utf-8"))
            sources += map(Path, fields["test_paths"])
    return sources

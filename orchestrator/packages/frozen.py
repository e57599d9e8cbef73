"""Writes and opens ``.calsweep`` files: a package with its page and Parquet tables."""

import mmap
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from orchestrator.logits.files import make_folder, write_whole
from orchestrator.packages.frames import ROW, write_frames
from orchestrator.packages.package import (
    BINS,
    HEADER,
    JOURNALS,
    MALFORMED,
    PAGE,
    PREDICTIONS,
    SUITES,
    TEST,
    VALIDATION,
    Package,
    UnfitError,
    archive_of,
    take_out,
)
from orchestrator.packages.predictions import tested
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.storage import Storage
from orchestrator.sweep.names import is_sweep_name
from orchestrator.view import ReportSource, render_report
from trainables.common.errors import InputError
from trainables.common.stages import GIVEN, ArtifactRef
from trainables.plugins import named_plugins_only
from trainables.store.artifacts import ArtifactStore

ARCHIVE, ENDING = "package.zip", ".calsweep"
EVIDENCE = (TEST, VALIDATION, SUITES)
ROW_BYTES = 64  # Memory per row, including the copies that pages make.
BATCH = 1 << 16  # Rows per read in the search for one row.
END_BYTES = 22  # Size of the last record of a zip file.
LOCAL_HEADER = struct.Struct("<26xHH")
NO_INPUTS = (
    "A .calsweep file has no inputs and no names of classes; `calsweep ui` shows them in the "
    "storage of the sweep."
)


def write_package(package: Package, out: Path, logits: bool) -> list[Path]:
    """Write a package and its page into a folder, or as one file with Parquet tables.

    Return the written files.

    Args:
        package: For a single file, page and tables are added to this package's folder.
        out: The folder, or a file that ends with ``.calsweep``.
        logits: Whether a single file includes test and validation rows, which verification and
            merging need. A folder always includes them.
    """
    if out.suffix == ".zip":
        raise InputError(
            f"--out {out}: expected a folder for page and package, or a file that ends with "
            f"{ENDING}, got a name that ends with .zip"
        )
    page = render_page(package)
    if out.suffix != ENDING:
        folder = make_folder(out)
        write_whole(folder / PAGE, lambda stream: stream.write(page.encode()))
        return [folder / PAGE, package.pack(folder / ARCHIVE)]
    write_frames(package)
    (package.folder / PAGE).write_text(page, encoding="utf-8")
    make_folder(out.parent)
    return [package.pack(out, without=() if logits else EVIDENCE)]


def render_page(package: Package) -> str:
    """Return the report of a package's sweeps."""
    ledgers = package.ledgers
    names = ", ".join(dict.fromkeys(each.sweep for each in ledgers))
    with TemporaryDirectory(prefix="calsweep-page-") as folder:
        store = ArtifactStore(Path(folder))
        store_rows(package, store)
        history = ledgers[0] if len(ledgers) == 1 else None
        facts = [("License", str(package.header.get("license")))]
        return render_report(ReportSource(names, package.results, history, store, facts=facts))


def store_rows(
    package: Package, store: ArtifactStore, key_of: Callable[[str], str] = lambda key: key
) -> None:
    """Write the test rows of a package's cells into a store, under keys made by ``key_of``."""
    for cell in package.cells:
        found = tested(package, cell)
        rows = {"log_probs": found.logits, "labels": found.labels, "rows": found.rows}
        store.write(ArtifactRef("evaluate", key_of(cell.trial.predictions)), {"test": rows}, {})


class FileStorage(Storage):
    """A scratch storage with the journals of a ``.calsweep`` file; rows are read on demand.

    Attributes:
        lacks: A message about data that the file does not include.
    """

    def __init__(
        self, folder: Path, path: Path, package: Package, mapped: mmap.mmap, rows: pq.ParquetFile
    ) -> None:
        super().__init__(folder)
        self.lacks, self._path, self._mapped, self._rows = NO_INPUTS, path, mapped, rows
        self._cells = package.cells
        self._groups = {c.trial.predictions: n for n, c in enumerate(self._cells)}
        if rows.metadata.num_row_groups != len(self._cells):
            raise InputError(f"{PREDICTIONS} must have one row group for each cell of the table")
        if not rows.schema_arrow.equals(ROW):
            raise InputError(f"{PREDICTIONS}: expected the columns {', '.join(ROW.names)}")

    def packed_rows(self, key: str) -> dict[str, NDArray[Any]]:
        """Return the columns of ``frames.ROW`` that differ between the rows of an evaluation.

        The column ``row`` is returned only for given logits, as by a storage, so that a row has the
        same URL in the file and in the storage.
        """
        group = self._groups[key]
        needed = self._rows.metadata.row_group(group).num_rows * ROW_BYTES
        with self._reading():
            if needed > psutil.virtual_memory().available:
                raise InputError(
                    f"the rows of this recipe and seed take {needed / 2**30:.1f} GiB of memory, "
                    "more than is available"
                )
            table = self._rows.read_row_group(group, columns=self._wanted(group))
            return self._columns(table.combine_chunks())

    def packed_row(self, key: str, number: int) -> dict[str, NDArray[Any]] | None:
        """Return the columns of the row with a number, as in ``packed_rows``; None if missing.

        Batches of rows after it are not read.
        """
        group = self._groups[key]
        names, place = self._wanted(group), number
        with self._reading():
            for batch in self._rows.iter_batches(BATCH, row_groups=[group], columns=names):
                if ROW.names[3] in names:
                    found = np.flatnonzero(np.from_dlpack(batch[ROW.names[3]]) == number)
                    place = int(found[0]) if len(found) else len(batch)
                if place < len(batch):
                    return self._columns(pa.Table.from_batches([batch.slice(place, 1)]))
                place -= len(batch)
        return None

    def _wanted(self, group: int) -> list[str]:
        # Except for given logits, a row's number is its position; not reading it halves the time.
        return ROW.names[3:] if self._cells[group].study.model == GIVEN else ROW.names[4:]

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except MALFORMED as error:
            raise InputError(f"{self._path}: {PREDICTIONS} cannot be read: {error}") from error
        finally:
            pa.default_memory_pool().release_unused()
            self._mapped.madvise(mmap.MADV_DONTNEED)

    def _columns(self, table: pa.Table) -> dict[str, NDArray[Any]]:
        # ``to_numpy`` and ``pa.table`` would import pandas, which takes a second. ``from_dlpack``
        # also refuses missing values.
        found = {name: np.from_dlpack(table[name].chunk(0)) for name in table.column_names}
        highest = {"confidence": 1.0, "confidence_in_label": 1.0, "bin": BINS - 1}
        for name, values in found.items():
            limit = highest.get(name, np.inf)
            if not len(values) or not ((values >= 0) & (values <= limit)).all():
                raise InputError(f"{self._path}: {PREDICTIONS}: {name} is empty or out of range")
        return found


@contextmanager
def opened_file(path: Path) -> Iterator[FileStorage]:
    """Yield a storage with the content of a ``.calsweep`` file, which is not trusted.

    Journals and page are extracted into a scratch folder. Rows stay in the file.
    """
    with ExitStack() as stack:
        _check_kind(path)
        archive = stack.enter_context(archive_of(path))
        members = archive.namelist()
        journals = [name for name in members if name.startswith(f"{JOURNALS}/")]
        for name in (HEADER, PAGE, PREDICTIONS):
            if name not in members or not journals:
                missing = f"{path}: {name if journals else JOURNALS} is missing"
                raise InputError(
                    f"{missing}; write it with `calsweep package publish --out FILE{ENDING}`"
                )
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="calsweep-file-")))
        stack.enter_context(named_plugins_only())
        try:
            take_out(archive, folder, [PAGE, *journals])
            package = Package(folder)
            mapped, rows = _parquet(path, archive.getinfo(PREDICTIONS))
            for ledger in package.ledgers:
                _place(ledger, folder)
            storage = FileStorage(folder, path, package, mapped, rows)
        except (*MALFORMED, RuntimeError, zlib.error) as error:
            raise InputError(f"{path} is damaged: {error}") from error
        yield storage


def _check_kind(path: Path) -> None:
    """Raise ``UnfitError`` for a file that is not a complete zip archive."""
    if path.is_dir():
        raise UnfitError(
            f"{path} is a folder; to show a storage, use `calsweep ui --storage {path}`"
        )
    if not path.is_file():
        raise UnfitError(f"{path}: no such file")
    with path.open("rb") as stream:
        begins = stream.read(4)
        stream.seek(-min(END_BYTES, path.stat().st_size), os.SEEK_END)
        ends = stream.read(4)
    if begins != b"PK\3\4":
        raise UnfitError(f"{path} is not a .calsweep file")
    if ends != b"PK\5\6":  # zipfile may read the end of a .npz member as the file's end.
        raise UnfitError(f"{path} is truncated: its end is missing; copy it again")


def _place(ledger: Ledger, folder: Path) -> None:
    """Move a sweep's journal to its place in a storage; link the page as the sweep's report."""
    if not is_sweep_name(ledger.sweep):
        raise InputError(f"{ledger.sweep!r:.80} is not a valid name of a sweep")
    sweep = Storage(folder).sweep(ledger.sweep)
    if sweep.path.exists():  # Two machines may have used one name.
        sweep = Storage(folder).sweep(f"{ledger.sweep[:60]}-{ledger.sweep_id[:12]}")
    sweep.path.mkdir(parents=True)
    os.rename(folder / JOURNALS / f"{ledger.sweep_id}.jsonl", sweep.journal)
    os.link(folder / PAGE, sweep.report)


def _parquet(path: Path, member: zipfile.ZipInfo) -> tuple[mmap.mmap, pq.ParquetFile]:
    """Map a member of the file into memory, so that only the necessary parts are read."""
    if member.compress_type != zipfile.ZIP_STORED:
        raise InputError(f"{member.filename} is compressed, so its parts cannot be read")
    with path.open("rb") as stream:
        mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    lengths = LOCAL_HEADER.unpack_from(mapped, member.header_offset)
    start = member.header_offset + LOCAL_HEADER.size + sum(lengths)
    content = memoryview(mapped)[start : start + member.file_size]
    return mapped, pq.ParquetFile(pa.BufferReader(pa.py_buffer(content)))

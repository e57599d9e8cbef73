"""Packages of results: journals with the predictions and splits behind their figures.

A package is a zip archive, extracted to a folder while it is used:

    package.json                format, bins, metrics and license
    journals/SWEEP_ID.jsonl     events of each sweep, without epochs and paths
    test/TRIAL.npz              test predictions of each cell of the table
    validation/ARTIFACT.npz     validation predictions of finished trials, as far as stored
    suites/TRIAL.npz            stored results of each cell on other test sets, as SUITE/TENSOR
    plugins/CODE/...            files of each plugin, by the hash of its code
    splits/DATA.npz             row numbers of training, validation and test data
    table.csv, cells.json
    index.html, results.parquet, trials.parquet, predictions.parquet

The files of the last two lines are derived from the others, for other programs. The files of the
last line are only in a ``.calsweep`` file, which may lack ``test``, ``validation`` and ``suites``.
"""

import json
import re
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from orchestrator.storage.ledger import Ledger, Study, Trial, read_ledger
from orchestrator.storage.results import StudyResult, cells_of, results_of
from orchestrator.tables.arrange import combine
from trainables.common.errors import InputError
from trainables.metrics import metrics_digest
from trainables.plugins import Pinned, load_plugins, named_plugins_only

FORMAT = 1
BINS = 15
HEADER, TABLE, CELLS = "package.json", "table.csv", "cells.json"
DERIVED = (TABLE, CELLS)
PAGE, RESULTS, TRIALS = "index.html", "results.parquet", "trials.parquet"
PREDICTIONS = "predictions.parquet"
FROZEN = (PAGE, RESULTS, TRIALS, PREDICTIONS)
PACKED = (".npz", ".parquet")  # Endings of files that are compressed already.
PLUGINS = "plugins"
JOURNALS, TEST, VALIDATION, SPLITS, SUITES = "journals", "test", "validation", "splits", "suites"
MEMBER = re.compile(
    rf"(?:{JOURNALS}/[A-Za-z0-9_-]{{1,64}}\.jsonl"
    rf"|{PLUGINS}/[0-9a-f]{{64}}(?:/[A-Za-z0-9_][A-Za-z0-9_.-]{{0,99}}){{1,9}}"
    rf"|(?:{TEST}|{VALIDATION}|{SPLITS}|{SUITES})/[0-9a-f]{{32,64}}\.npz"
    rf"|{'|'.join(map(re.escape, (HEADER, *DERIVED, *FROZEN)))})"
)
MOST_MEMBERS, MOST_BYTES = 200_000, 32 * 2**30
LARGEST_HEADER = 2**16
# The errors of reading invalid files.
MALFORMED = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError),
    *(RecursionError, OSError, zipfile.BadZipFile),
)
WHEN = (1980, 1, 1, 0, 0, 0)  # Date of all members, so that equal content gives equal archives.


class UnfitError(InputError):
    """A failure for which the package is not at fault, such as a wrong option."""


@dataclass(frozen=True)
class Cell:
    """A trial with its study and its sweep's name; ``Package.cells`` has those in the table."""

    sweep: str
    study: Study
    trial: Trial

    @property
    def title(self) -> str:
        """Return the trial's name for messages."""
        return f"{self.study.recipe} on {self.study.task}, seed {self.trial.seed}"


@dataclass(frozen=True)
class Package:
    """The folder of a package."""

    folder: Path

    @cached_property
    def ledgers(self) -> list[Ledger]:
        """The ledger of each sweep, sorted by id."""
        paths = sorted((self.folder / JOURNALS).glob("*.jsonl"))
        if not paths:
            raise InputError("the package has no journal")
        found = [_ledger_in(path) for path in paths]
        for path, ledger in zip(paths, found, strict=True):
            if ledger.sweep_id != path.stem:
                raise InputError(
                    f"{JOURNALS}/{path.name}: expected sweep {path.stem!r}, got {ledger.sweep_id!r}"
                )
        return found

    @cached_property
    def header(self) -> Mapping[str, Any]:
        """The content of ``package.json``; see ``header_of``."""
        path = self.folder / HEADER
        try:
            with path.open("rb") as stream:
                found = json.loads(stream.read(LARGEST_HEADER))
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"{HEADER} cannot be read: {error}") from error
        if not isinstance(found, dict):
            raise InputError(f"{HEADER}: expected an object, got a {type(found).__name__}")
        return found

    @cached_property
    def results(self) -> list[StudyResult]:
        """The package's results, one per recipe and task."""
        return combine([results_of(ledger) for ledger in self.ledgers])

    @cached_property
    def cells(self) -> list[Cell]:
        """The trials with test results in the package's table, sweep by sweep."""
        return [
            Cell(ledger.sweep, study, trial)
            for ledger in self.ledgers
            for study, trial in cells_of(ledger)
        ]

    @cached_property
    def trials(self) -> list[Cell]:
        """All trials of the package's sweeps, with and without test results."""
        return [
            Cell(ledger.sweep, ledger.studies[trial.study], trial)
            for ledger in self.ledgers
            for trial in ledger.trials.values()
        ]

    def rows_of(self, trial: Trial) -> Path:
        """Return the file of a finished trial's validation rows, which may be missing."""
        return self.folder / VALIDATION / f"{trial.artifact}.npz"

    def plugins(self, ledgers: Iterable[Ledger]) -> list[Pinned]:
        """Return the plugins of sweeps, with their paths in the package."""
        named = (each for ledger in ledgers for each in ledger.spec.get("plugins", ()))
        return list(dict.fromkeys(Pinned(each["path"], each["code"]) for each in named))

    def load_plugins(self, ledgers: Iterable[Ledger]) -> None:
        """Run the code of the plugins of sweeps; no other plugin stays registered.

        Raises:
            InputError: If a plugin cannot be imported, or if sweeps name different versions of it.
        """
        load_plugins(self.plugins(ledgers), self.folder, installed=True)

    def files(self) -> list[str]:
        """Return the sorted names of all files."""
        found = (path for path in self.folder.rglob("*") if path.is_file())
        return sorted(path.relative_to(self.folder).as_posix() for path in found)

    def pack(self, path: Path, without: Collection[str] = ()) -> Path:
        """Write a zip archive without the folders ``without``; equal content gives equal bytes."""
        from orchestrator.logits.files import write_whole

        def write(stream: Any) -> None:
            with zipfile.ZipFile(stream, "w") as archive:
                names = (name for name in self.files() if name.partition("/")[0] not in without)
                for name in names:
                    entry = zipfile.ZipInfo(name, WHEN)
                    stored = name.endswith(PACKED)
                    entry.compress_type = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
                    archive.writestr(entry, (self.folder / name).read_bytes())

        write_whole(path, write)
        return path


def _ledger_in(path: Path) -> Ledger:
    """Read a package's journal; leave out the remedies for the journal of a storage."""
    try:
        return read_ledger(path)
    except InputError as error:
        problem, _, _ = str(error).partition("; ")
        raise InputError(problem.replace(str(path), f"{JOURNALS}/{path.name}")) from error


def header_of(license: str) -> dict[str, Any]:
    """Return the header of a package that this version writes."""
    digest = metrics_digest("report", "test")
    return {"format": FORMAT, "bins": BINS, "metrics": digest, "license": license}


def check_header(package: Package) -> str:
    """Return the first difference between a package's header and this version's, or ""."""
    found = package.header
    for name, ours in header_of(str(found.get("license", ""))).items():
        if found.get(name) != ours:
            return f"{name}: expected {ours!r}, got {str(found.get(name))[:80]!r}"
    return ""


@contextmanager
def opened(path: Path) -> Iterator[Package]:
    """Yield a package, extracted from its untrusted archive into a scratch folder.

    An archive without logits, with unexpected names or with too much content is refused; links
    become plain files. Installed plugins are hidden: they would add metrics.
    """
    with (
        archive_of(path) as archive,
        tempfile.TemporaryDirectory(prefix="calsweep-package-") as name,
        named_plugins_only(),
    ):
        package, members = Package(Path(name)), archive.namelist()
        if PREDICTIONS in members and not any(each.startswith(f"{TEST}/") for each in members):
            raise UnfitError(
                f"{path} has no logits, so its figures cannot be computed again; publish it with "
                "--logits, or into a folder"
            )
        with _intact(path):
            take_out(archive, package.folder, members)
        yield package


@contextmanager
def archive_of(path: Path) -> Iterator[zipfile.ZipFile]:
    """Yield the archive of a package after a check of its members' names."""
    if not path.is_file():
        remedy = "name the zip file that `calsweep package publish` wrote"
        raise UnfitError(f"{path}: no such file; {remedy}")
    with ExitStack() as stack:
        with _intact(path):
            archive = stack.enter_context(zipfile.ZipFile(path))
            _check_members(archive, path)
        yield archive


@contextmanager
def _intact(path: Path) -> Iterator[None]:
    """Raise errors of an archive as ``InputError``."""
    try:
        yield
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise InputError(f"{path} is damaged or not a zip archive: {error}") from error
    except RuntimeError as error:  # The archive is encrypted.
        raise InputError(f"{path} cannot be read: {error}") from error


def _check_members(archive: zipfile.ZipFile, path: Path) -> None:
    members = archive.infolist()
    names = [member.filename for member in members]
    if len(members) > MOST_MEMBERS:
        raise InputError(f"the package has {len(members)} files; expected at most {MOST_MEMBERS}")
    if HEADER in names:
        _check_format(archive, path)
    for name in names:
        if not MEMBER.fullmatch(name):
            raise InputError(f"the package has an unexpected file {name!r}")
    if len(set(names)) != len(names):
        raise InputError("the package contains a file twice")


def _check_format(archive: zipfile.ZipFile, path: Path) -> None:
    """Raise ``UnfitError`` for a package of a later version; other faults are found later."""
    found: Any = None
    with archive.open(HEADER) as stream, suppress(ValueError, RecursionError):
        found = json.loads(stream.read(LARGEST_HEADER))
    number = found.get("format") if isinstance(found, dict) else None
    if isinstance(number, int) and number > FORMAT:
        text = f"{path} has format {number}, this version reads format {FORMAT}"
        raise UnfitError(f"{text}; use the version that wrote it, or a later one")


def take_out(archive: zipfile.ZipFile, folder: Path, names: Iterable[str]) -> None:
    """Extract members of a checked archive into a folder; ``InputError`` if they do not fit."""
    names = list(names)
    total, room = sum(archive.getinfo(n).file_size for n in names), shutil.disk_usage(folder).free
    if total > min(MOST_BYTES, room):
        most = min(MOST_BYTES, room)
        raise InputError(f"the package needs {total} bytes unpacked; at most {most} fit")
    for name in names:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(name) as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink)

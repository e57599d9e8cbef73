"""Packages of results: journals with the predictions and splits behind their figures.

A package is a zip archive, and a folder while it is worked on:

    package.json                what it is, and by which metrics
    journals/SWEEP_ID.jsonl     what each sweep did, without epochs and places
    test/TRIAL.npz              what stands behind each figure of the table
    validation/ARTIFACT.npz     validation predictions of each finished trial
    suites/TRIAL.npz            what suites store of it, as SUITE/TENSOR
    plugins/CODE/...            the files of each plugin, by the hash of its code
    splits/DATA.npz             numbers of the rows that trained, chose and judged
    table.csv, cells.json
    index.html, results.parquet, trials.parquet, predictions.parquet

The files of the last two lines are derived from the others, for other programs. Those of the last
line are in a file ``.calsweep`` only, which may lack ``test``, ``validation`` and ``suites``.
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
PACKED = (".npz", ".parquet")  # Endings of files whose content is compressed already.
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
# What foreign values of the wrong kind make of reading them.
MALFORMED = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError),
    *(RecursionError, OSError, zipfile.BadZipFile),
)
WHEN = (1980, 1, 1, 0, 0, 0)  # Of every file in an archive: equal content, equal archive.


class UnfitError(InputError):
    """The request or this process is at fault, not the package."""


@dataclass(frozen=True)
class Cell:
    """A trial with its study: the measured one behind a figure of a table, or any other."""

    sweep: str
    study: Study
    trial: Trial

    @property
    def title(self) -> str:
        """Return what messages call it."""
        return f"{self.study.recipe} on {self.study.task}, seed {self.trial.seed}"


@dataclass(frozen=True)
class Package:
    """The folder of a package."""

    folder: Path

    @cached_property
    def ledgers(self) -> list[Ledger]:
        """What each sweep did, by its id."""
        paths = sorted((self.folder / JOURNALS).glob("*.jsonl"))
        if not paths:
            raise InputError("the package has no journal")
        found = [read_ledger(path) for path in paths]
        for path, ledger in zip(paths, found, strict=True):
            if ledger.sweep_id != path.stem:
                raise InputError(f"{JOURNALS}/{path.name} is that of sweep {ledger.sweep_id!r}")
        return found

    @cached_property
    def header(self) -> Mapping[str, Any]:
        """What the package says of itself; see ``header_of``."""
        path = self.folder / HEADER
        try:
            with path.open("rb") as stream:
                found = json.loads(stream.read(LARGEST_HEADER))
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"{HEADER} cannot be read: {error}") from error
        if not isinstance(found, dict):
            raise InputError(f"{HEADER} is no object")
        return found

    @cached_property
    def results(self) -> list[StudyResult]:
        """The studies that are rows of its table."""
        return combine([results_of(ledger) for ledger in self.ledgers])

    @cached_property
    def cells(self) -> list[Cell]:
        """The measured trials behind its table, sweep by sweep."""
        return [
            Cell(ledger.sweep, study, trial)
            for ledger in self.ledgers
            for study, trial in cells_of(ledger)
        ]

    @cached_property
    def trials(self) -> list[Cell]:
        """All trials of its sweeps, measured on test data or not."""
        return [
            Cell(ledger.sweep, ledger.studies[trial.study], trial)
            for ledger in self.ledgers
            for trial in ledger.trials.values()
        ]

    def rows_of(self, trial: Trial) -> Path:
        """Return the file of a finished trial's validation rows, which may be missing."""
        return self.folder / VALIDATION / f"{trial.artifact}.npz"

    def plugins(self, ledgers: Iterable[Ledger]) -> list[Pinned]:
        """Return the plugins that sweeps name, at their places below its folder."""
        named = (each for ledger in ledgers for each in ledger.spec.get("plugins", ()))
        return list(dict.fromkeys(Pinned(each["path"], each["code"]) for each in named))

    def load_plugins(self, ledgers: Iterable[Ledger]) -> None:
        """Run the code of the plugins that sweeps name; only their parts are known afterwards.

        Raises:
            InputError: If one cannot be imported, or two sweeps name different versions of one.
        """
        load_plugins(self.plugins(ledgers), self.folder, installed=True)

    def files(self) -> list[str]:
        """Return the names of all files, sorted."""
        found = (path for path in self.folder.rglob("*") if path.is_file())
        return sorted(path.relative_to(self.folder).as_posix() for path in found)

    def pack(self, path: Path, without: Collection[str] = ()) -> Path:
        """Write it as an archive, some of its folders apart; equal content gives equal bytes."""
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


def header_of(license: str) -> dict[str, Any]:
    """Return what a package made here says of itself."""
    digest = metrics_digest("report", "test")
    return {"format": FORMAT, "bins": BINS, "metrics": digest, "license": license}


def check_header(package: Package) -> str:
    """Return in what a package differs from one made here, or nothing."""
    found = package.header
    for name, ours in header_of(str(found.get("license", ""))).items():
        if found.get(name) != ours:
            return f"{name} is {str(found.get(name))[:80]!r}, here it is {ours!r}"
    return ""


@contextmanager
def opened(path: Path) -> Iterator[Package]:
    """Yield a package out of its archive, trusting nothing in it: it lies in a folder of its own.

    Only files of the names and sizes that a package has are taken out; no link, no other path.
    Plugins that are installed here are hidden: they would add metrics to what the package says.
    """
    with (
        archive_of(path) as archive,
        tempfile.TemporaryDirectory(prefix="calsweep-package-") as name,
        named_plugins_only(),
    ):
        package, held = Package(Path(name)), archive.namelist()
        if PREDICTIONS in held and not any(each.startswith(f"{TEST}/") for each in held):
            raise UnfitError(
                f"{path} has no logits, from which figures are computed again; publish it with "
                "--logits, or into a folder"
            )
        with _intact(path):
            take_out(archive, package.folder, held)
        yield package


@contextmanager
def archive_of(path: Path) -> Iterator[zipfile.ZipFile]:
    """Yield the archive of a package, whose members have the names and sizes of a package's."""
    if not path.is_file():
        told = "name the zip file that `calsweep package publish` wrote"
        raise UnfitError(f"{path}: there is no such file; {told}")
    with ExitStack() as stack:
        with _intact(path):
            archive = stack.enter_context(zipfile.ZipFile(path))
            _check_members(archive, path)
        yield archive


@contextmanager
def _intact(path: Path) -> Iterator[None]:
    """Raise the faults of an archive as ``InputError``."""
    try:
        yield
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise InputError(f"{path} is no intact archive: {error}") from error
    except RuntimeError as error:  # What zipfile raises of an encrypted one.
        raise InputError(f"{path} cannot be read: {error}") from error


def _check_members(archive: zipfile.ZipFile, path: Path) -> None:
    members = archive.infolist()
    names = [member.filename for member in members]
    if len(members) > MOST_MEMBERS:
        raise InputError(
            f"the package has {len(members)} files, at most {MOST_MEMBERS} are allowed"
        )
    if HEADER in names:
        _check_format(archive, path)
    for name in names:
        if not MEMBER.fullmatch(name):
            raise InputError(f"the package has a file {name!r}, which is none of a package's")
    if len(set(names)) != len(names):
        raise InputError("the package has a file twice")


def _check_format(archive: zipfile.ZipFile, path: Path) -> None:
    """Refuse a package of a later version; other faults of its header are found later."""
    found: Any = None
    with archive.open(HEADER) as stream, suppress(ValueError, RecursionError):
        found = json.loads(stream.read(LARGEST_HEADER))
    number = found.get("format") if isinstance(found, dict) else None
    if isinstance(number, int) and number > FORMAT:
        told = f"{path} has format {number}, this version reads format {FORMAT}"
        raise UnfitError(f"{told}; use the version that wrote it, or a later one")


def take_out(archive: zipfile.ZipFile, folder: Path, names: Iterable[str]) -> None:
    """Write members of a checked archive into a folder, at their names, if they fit."""
    names = list(names)
    total, room = sum(archive.getinfo(n).file_size for n in names), shutil.disk_usage(folder).free
    if total > min(MOST_BYTES, room):
        raise InputError(f"the package unpacks to {total} bytes, {min(MOST_BYTES, room)} fit")
    for name in names:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(name) as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink)

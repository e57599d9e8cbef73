"""Makes a static page with the rows of many packages, their verification and their ties."""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from orchestrator.packages.frozen import store_rows
from orchestrator.packages.hub import package_file
from orchestrator.packages.package import MALFORMED, UnfitError, opened
from orchestrator.packages.verify import VerifyOptions, verify
from orchestrator.statistics import board, ties
from orchestrator.storage.provenance import library_version
from orchestrator.storage.results import StudyResult
from orchestrator.tables.arrange import build_table
from orchestrator.tables.columns import DEFAULT_METRICS, column
from orchestrator.tables.table import Summary
from orchestrator.view import environment
from trainables.common.errors import InputError
from trainables.common.hub import HUB
from trainables.store.artifacts import ArtifactStore


@dataclass(frozen=True)
class Line:
    """A row of the board: a recipe on a task in a package.

    Attributes:
        doubt: The first reason why the package is not verified; empty if it is.
        figures: Mean and standard deviation by metric.
        group: Letters; two rows of the same task and data that share one do not differ
            significantly.
    """

    result: StudyResult
    package: str
    doubt: str
    figures: dict[str, Summary]
    group: str = ""

    @property
    def shown(self) -> str:
        """Return the package's address, or the last two parts of its path."""
        return (
            self.package
            if self.package.startswith(HUB)
            else "/".join(Path(self.package).parts[-2:])
        )


def render_board(
    packages: Sequence[str],
    metric: str = "ece",
    options: VerifyOptions | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> str:
    """Verify packages, and return a page of all their rows: by task, the best by a metric first.

    Packages are files or ``hf:ORG/NAME``. Rows of different packages are compared if their tasks
    and data are the same. By default, no trial is computed again.
    """
    if metric not in DEFAULT_METRICS:
        raise InputError(f"--metric: {metric!r} is not one of {', '.join(DEFAULT_METRICS)}")
    files = {name: package_file(name) for name in packages}
    for path in files.values():
        if not path.exists():  # Verifying takes minutes, so check all files first.
            raise InputError(f"{path}: no such file")
    if len({path.resolve() for path in files.values()}) < len(packages):
        raise InputError("a package is named twice; name each once")
    with TemporaryDirectory(prefix="calsweep-board-") as folder:
        store = ArtifactStore(Path(folder))
        lines = [
            line
            for number, (name, path) in enumerate(files.items())
            for line in _lines(
                name, path, number, store, options or VerifyOptions(share=0), progress
            )
        ]
        lines = _sorted(_grouped(lines, store, metric), metric)
    return (
        environment()
        .get_template("board.html")
        .render(
            lines=lines,
            metric=column(metric),
            columns={name: column(name) for name in DEFAULT_METRICS},
            packages=len(packages),
            version=library_version("calsweep"),
        )
    )


def _lines(
    name: str,
    path: Path,
    number: int,
    store: ArtifactStore,
    options: VerifyOptions,
    progress: Callable[[str], None],
) -> Iterator[Line]:
    """Yield the rows of a package; store their predictions under keys that no other package has."""
    progress(f"verifying {name}")
    doubt = _doubt(path, options)
    try:
        with opened(path) as package:
            key_of = partial(_key, number)
            store_rows(package, store, key_of)
            table = build_table(package.results)
            for result in package.results:
                found = {m: table.summary(result.recipe, result.task, m) for m in DEFAULT_METRICS}
                own = replace(result, predictions=tuple(map(key_of, result.predictions)))
                yield Line(own, name, doubt, {m: f for m, f in found.items() if f})
    except UnfitError:
        raise
    except MALFORMED as error:
        kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
        raise InputError(f"{name} cannot be read: {kind}{error}") from error


def _key(number: int, key: str) -> str:
    """Return a key that no other package of the board can have."""
    return hashlib.sha256(f"{number} {key}".encode()).hexdigest()


def _doubt(path: Path, options: VerifyOptions) -> str:
    """Return the first reason why a package is not verified, else ""."""
    try:
        return next(iter(verify(path, options).problems), "")
    except InputError as error:
        return str(error)


def _grouped(lines: Sequence[Line], store: ArtifactStore, metric: str) -> list[Line]:
    """Return the lines with their ``group``, whose letters are chosen for each task and data."""
    comparable: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        comparable.setdefault((line.result.task, line.result.fingerprint), []).append(line)
    found = []
    for group in comparable.values():
        names = [f"{line.result.recipe} in {line.package}" for line in group]
        results = [
            replace(line.result, recipe=name) for line, name in zip(group, names, strict=True)
        ]
        letters = ties(board(results, store, metric)).letters
        found += [
            replace(line, group=letters.get(name, ""))
            for line, name in zip(group, names, strict=True)
        ]
    return found


def _sorted(lines: Sequence[Line], metric: str) -> list[Line]:
    """Sort lines by task; within a task the best is first, and those without a figure are last."""
    sign = -1 if column(metric).higher else 1

    def place(line: Line) -> tuple[str, float]:
        mean = line.figures[metric].mean if metric in line.figures else math.nan
        return line.result.task, sign * mean if math.isfinite(mean) else math.inf

    return sorted(lines, key=place)

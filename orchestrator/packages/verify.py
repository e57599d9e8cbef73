"""Verifies a package: computes its splits, figures, choices and some trials again."""

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from random import Random

from orchestrator.packages.again import Again
from orchestrator.packages.checks import (
    MOST,
    check_derived,
    check_figures,
    check_journals,
    check_search,
    check_splits,
    check_suites,
    check_validation,
)
from orchestrator.packages.consistency import check_form, check_likeness, check_plugins
from orchestrator.packages.frames import check_frames
from orchestrator.packages.package import (
    FROZEN,
    MALFORMED,
    Package,
    UnfitError,
    check_header,
    opened,
)
from orchestrator.packages.retrain import Retrained, retrain
from orchestrator.storage.ledger import Trial
from orchestrator.storage.provenance import git_commit
from trainables.common.errors import InputError, one_line
from trainables.common.portable import require_portable
from trainables.common.words import have, many
from trainables.plugins import Pinned

TOLERANCE = 1e-6
SHARE = 0.1
LONGEST = 250

Progress = Callable[[str], None]


@dataclass(frozen=True)
class VerifyOptions:
    """How thoroughly a package is verified.

    Attributes:
        share: Share of the ended trials that are computed again, in [0, 1].
        trials: Prefixes of keys of trials that are always computed again.
        seed: Seed for drawing the share; random by default, so that nobody can predict the draw.
        tolerance: Largest difference at which figures or probabilities count as equal.
        data_root: Folder of downloaded data sets.
        trust_plugins: Whether the code of the package's plugins is run.
        revision: Git commit that must have computed the package; by default the running code's.
    """

    share: float = SHARE
    trials: Sequence[str] = ()
    seed: int = field(default_factory=lambda: secrets.randbelow(2**32))
    tolerance: float = TOLERANCE
    data_root: str = "data"
    revision: str = field(default_factory=git_commit)
    trust_plugins: bool = False


@dataclass(frozen=True)
class Check:
    """A check and its outcome.

    Attributes:
        title: Subject of the check.
        detail: Extent of the check, such as the number of splits.
        problems: A line per fault.
    """

    title: str
    detail: str
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """The outcome of verifying a package.

    Attributes:
        name: File name of the package.
        checks: Checks in the order in which they ran; after some failures the rest is skipped.
        retrained: The trials that were computed again.
        table: The package's comparison table as Markdown; empty if an early check failed.
    """

    name: str
    checks: tuple[Check, ...]
    retrained: tuple[Retrained, ...]
    options: VerifyOptions
    table: str = ""

    @property
    def accepted(self) -> bool:
        """Return True if no check found a problem."""
        return not any(check.problems for check in self.checks)

    @property
    def problems(self) -> list[str]:
        """Return the problems of all checks."""
        return [problem for check in self.checks for problem in check.problems]


def verify(
    path: Path, options: VerifyOptions | None = None, progress: Progress = lambda text: None
) -> Verdict:
    """Verify a package without trusting it; write only a scratch folder and downloaded data sets.

    Checks without training come first: files, data, splits, labels, figures, and the choices of the
    search. Then trials are computed again.

    Raises:
        UnfitError: If the package cannot be verified here with these options.
    """
    wanted = options or VerifyOptions()
    checks: list[Check] = []
    retrained: list[Retrained] = []
    table = ""
    try:
        with opened(path) as package:
            for check in _read(package, wanted):
                checks.append(check)
                progress(check.title)
            if not any(check.problems for check in checks):
                table = _table(package)
                for check in _compute(package, wanted, progress, retrained):
                    checks.append(check)
                    progress(check.title)
                    if check.problems:
                        break
    except UnfitError:
        raise
    except MALFORMED as error:
        text = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        checks.append(Check("reading", "the package", (one_line(text, LONGEST),)))
    return Verdict(path.name, tuple(checks), tuple(retrained), wanted, table)


def _read(package: Package, options: VerifyOptions) -> Iterator[Check]:
    """Yield the checks that need only the package."""
    fault = check_header(package)
    yield Check("metrics and bins", "as this version computes them", (fault,) if fault else ())
    count = len(package.ledgers)
    problems = tuple(islice(chain(check_form(package), check_plugins(package)), MOST))
    yield Check("header and journals", "their keys, names and events", problems)
    if problems:
        return
    problems = tuple(check_journals(package, options.revision))
    yield Check("journals and code revision", many(count, "sweep"), problems)
    if not problems:
        _require_fit(package, options)
        if plugins := ", ".join(f"{Path(path).stem} {code}" for path, code in _named(package)):
            package.load_plugins(package.ledgers)
            yield Check("plugins, whose code was run", plugins)
    problems = tuple(check_derived(package))
    yield Check("derived files", "equal to newly derived ones", problems)
    if not problems and any((package.folder / name).is_file() for name in FROZEN):
        problems = tuple(check_frames(package, options.tolerance))
        detail = "equal to newly derived ones; index.html is not compared"
        yield Check("Parquet tables", detail, problems)
    problems = tuple(check_figures(package, options.tolerance))
    yield Check("figures from the predictions", many(len(package.cells), "cell"), problems)
    if not problems:
        problems = tuple(islice(check_likeness(package, options.tolerance), MOST))
        yield Check("predictions compared", "between seeds, models and calibrators", problems)


def _named(package: Package) -> list[Pinned]:
    return package.plugins(package.ledgers)


def _require_fit(package: Package, options: VerifyOptions) -> None:
    """Raise ``UnfitError`` if the package cannot be verified here with these options."""
    if (named := _named(package)) and not options.trust_plugins:
        listing = ", ".join(
            f"{Path(plugin.path).stem} (code {plugin.code[:12]})" for plugin in named
        )
        raise UnfitError(
            f"not verified: plugins {listing} are code of the package's author; to run this code "
            "with your rights, add --trust-plugins"
        )
    keys = [cell.trial.key for cell in package.trials]
    for start in options.trials:
        if not start or not any(key.startswith(start) for key in keys):
            raise UnfitError(f"--trial {start!r}: no key of a trial in the package has this prefix")
    studies = (study for ledger in package.ledgers for study in ledger.studies.values())
    again = options.share > 0 or options.trials
    if (bare := _without_rows(package)) and not again:
        raise UnfitError(
            f"{many(len(bare), 'trial')}, for example {bare[0].key[:12]}, {have(len(bare))} no "
            "validation rows in the package, so figures can only be checked by training; use "
            "--retrain above 0"
        )
    if again and any(study.origin.get("portable") for study in studies):
        try:
            require_portable()
        except InputError as error:
            raise UnfitError(str(error)) from error


def _compute(
    package: Package, options: VerifyOptions, progress: Progress, retrained: list[Retrained]
) -> Iterator[Check]:
    """Yield the checks that need data, search or training; each relies on the earlier ones."""
    with Again.opened(package, options.data_root, progress) as again:
        count = sum(len(found) for found in again.data.values())
        yield Check(
            "data, splits and labels", many(count, "split"), (*check_splits(package, again),)
        )
        problems = tuple(check_suites(package, again, options.tolerance))
        yield Check("figures of suites", "from their stored tensors", problems)
        problems = tuple(check_validation(package, again, options.tolerance))
        yield Check("validation figures", "from the validation rows", problems)
        problems = tuple(check_search(package, again, options.tolerance))
        trials = len(package.trials)
        yield Check("search and choices, repeated", many(trials, "trial"), problems)
        for trial in _drawn(package, options):
            progress(f"computing trial {trial.key[:12]} of {trial.study} again")
            retrained.append(retrain(package, again, trial, options.tolerance))
        problems = tuple(problem for found in retrained for problem in found.problems)
        yield Check(
            "trainings, computed again", f"{len(retrained)} of {many(trials, 'trial')}", problems
        )


def _without_rows(package: Package) -> list[Trial]:
    """Return the finished trials without validation rows in the package."""
    return [
        cell.trial
        for cell in package.trials
        if cell.trial.artifact and not package.rows_of(cell.trial).is_file()
    ]


def _drawn(package: Package, options: VerifyOptions) -> list[Trial]:
    """Return the trials to compute again.

    These are the trials that the options name, those without validation rows, and a random share of
    all. A share above 0 is at least one trial. Failed trials may be drawn: they must fail again.
    """
    ended, start = [cell.trial for cell in package.trials], tuple(options.trials)
    bare = {trial.key for trial in _without_rows(package)}
    named = [trial for trial in ended if trial.key.startswith(start) or trial.key in bare]
    others = [trial for trial in ended if trial not in named]
    count = max(int(options.share > 0), round(options.share * len(ended)))
    return named + Random(options.seed).sample(others, min(count, len(others)))


def _table(package: Package) -> str:
    from orchestrator.tables.arrange import build_table
    from orchestrator.tables.make import render

    return render(build_table(package.results), "markdown")

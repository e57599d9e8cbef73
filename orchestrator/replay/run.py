"""Compares strategies of search over the sweeps of a storage."""

import math
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass

import numpy as np

from orchestrator.replay.recorded import RecordedStudy, RecordedSweep, read_sweeps
from orchestrator.replay.settings import ReplaySettings, changed
from orchestrator.replay.simulate import Repeated, Search, Table, repeat, resampled, simulate
from orchestrator.search.choice import DEFAULT
from orchestrator.storage.storage import Storage
from orchestrator.sweep.spec import SweepSpec
from trainables.common.errors import InputError
from trainables.common.later import torch

CHUNK = 5  # Searches of a study, each by all strategies, per job of a process.
ALONE = 100  # Up to this many searches, starting processes takes longer than searching.

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Judged:
    """The choice of one simulated search at a budget.

    Test metrics are those of ``RecordedStudy.losses``: on the test rows, or on the rows that a
    search with ``ReplaySettings.validation`` has not drawn.

    Attributes:
        search: Number of the search; in a study, equal numbers have the same validation rows.
        number: Number of the recorded trial that was chosen; -1 if no trial finished.
        distance: Mean distance of the suggested configurations; see ``RecordedStudy.nearest``.
        loss: Test metric of the choice; NaN if no trial finished.
        default: Test metric of the published default; NaN if it failed.
        best: Lowest test metric of all recorded trials.
    """

    strategy: str
    sweep: str
    study: str
    search: int
    budget: int
    number: int
    distance: float
    loss: float
    default: float
    best: float


@dataclass(frozen=True)
class Summary:
    """A strategy at a budget, over all studies and searches.

    Attributes:
        budget: Number of trials; 0 for all trials of the strategy.
        loss: Mean test metric of the choices.
        low, high: Ends of the interval that has 95 % of the means over studies, one mean for each
            search number. Searches differ in sampler seeds, and in validation rows if these are
            drawn.
        default: Mean test metric of the published defaults.
        regret: Mean difference from the best recorded trial of the study.
        worse: Share of the searches whose choice tests worse than the published default.
        kept: Share of the searches that chose the published default.
        distance: Mean distance over all trials; see ``RecordedStudy.nearest``.
        searches: Number of searches, over all studies.
    """

    strategy: str
    budget: int
    loss: float
    low: float
    high: float
    default: float
    regret: float
    worse: float
    kept: float
    distance: float
    searches: int


@dataclass(frozen=True)
class ReplayOutcome:
    """The outcome of a replay.

    Attributes:
        repeated: Maps a sweep to its choices, as recorded and as repeated with the same settings;
            without sweeps whose data is not stored any more.
        judged: Every simulated search, budget by budget.
        skipped: Maps (sweep, study) to the reason why the study cannot be replayed.
    """

    settings: ReplaySettings
    sweeps: tuple[RecordedSweep, ...]
    repeated: Mapping[str, Sequence[Repeated]]
    judged: Sequence[Judged]
    skipped: Mapping[tuple[str, str], str]

    def summaries(self) -> list[Summary]:
        """Return a summary of each strategy at each of its budgets."""
        found: dict[tuple[str, int], list[Judged]] = {}
        for judged in self.judged:
            found.setdefault((judged.strategy, judged.budget), []).append(judged)
        return [_summary(*key, group) for key, group in found.items()]

    def finals(self) -> list[Summary]:
        """Return a summary of each strategy after its last trial in each study."""
        last: dict[tuple[str, str, str, int], Judged] = {}
        for judged in self.judged:
            last[judged.strategy, judged.sweep, judged.study, judged.search] = judged
        return [
            _summary(name, 0, [j for j in last.values() if j.strategy == name])
            for name in self.settings.strategies
        ]


def replay(
    storage: str | Storage,
    settings: ReplaySettings | None = None,
    sweeps: Sequence[str] = (),
    *,
    processes: int | None = None,
    measuring: Progress = lambda done, total: None,
    searching: Progress = lambda done, total: None,
) -> ReplayOutcome:
    """Repeat the searches of a storage with other strategies, without training.

    A study of a later stage keeps the network that its recorded trials built on. A configuration
    that was never tried gets the results of the nearest recorded one; ``Summary.distance`` is the
    mean distance. Studies with many random trials therefore give the most accurate answers.

    Args:
        storage: The folder, or its ``Storage``.
        settings: The strategies to compare; by default ``settings.STRATEGIES``.
        sweeps: Names of sweeps; all that have ended if empty.
        processes: Number of processes; by default one per core. Few searches use one.
        measuring: Receives the number of trials measured on test data, and their total.
        searching: Receives the number of ended searches, and their total.

    Raises:
        InputError: See ``read_sweeps`` and ``changed``; or a study has too few rows for
            ``settings.validation``.
    """
    settings = settings or ReplaySettings()
    place = storage if isinstance(storage, Storage) else Storage(storage)
    found = read_sweeps(place, sweeps, settings.recipes, measuring, settings.test)
    _check_rows(found, settings)
    jobs = [
        (sweep.folder.name, study, specs, settings, numbers)
        for sweep in found
        for specs in [{n: changed(sweep.spec, n, c) for n, c in settings.strategies.items()}]
        for study in sweep.studies
        for start in range(0, settings.searches, CHUNK)
        for numbers in [range(start, min(start + CHUNK, settings.searches))]
    ]
    each = len(settings.strategies)
    total = each * sum(len(job[-1]) for job in jobs)
    judged: list[Judged] = []
    count = 0
    for rows in _run(jobs, 1 if total <= ALONE else processes or len(os.sched_getaffinity(0))):
        judged += rows
        count += len({(row.strategy, row.search) for row in rows})
        searching(count, total)
    order = {name: place for place, name in enumerate(settings.strategies)}
    judged.sort(key=lambda row: (order[row.strategy], row.sweep, row.study, row.search, row.budget))
    return ReplayOutcome(
        settings,
        tuple(found),
        {sweep.folder.name: repeat(sweep) for sweep in found if sweep.complete},
        judged,
        {(s.folder.name, study): why for s in found for study, why in s.skipped.items()},
    )


def _check_rows(sweeps: Sequence[RecordedSweep], settings: ReplaySettings) -> None:
    for study in (study for sweep in sweeps for study in sweep.studies):
        rows = len(study.labels) + len(study.test_labels)
        if settings.validation is not None and settings.validation >= rows:
            raise InputError(
                f"validation: expected less than the {rows} validation and test rows of "
                f"{study.plan.id}, because choices are scored on the other rows, got "
                f"{settings.validation}"
            )


Job = tuple[str, RecordedStudy, Mapping[str, SweepSpec], ReplaySettings, range]


def _run(jobs: Sequence[Job], processes: int) -> Iterator[list[Judged]]:
    if processes == 1:
        yield from map(_searches, jobs)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, torch.set_num_threads, (1,)) as pool:
        for future in as_completed([pool.submit(_searches, job) for job in jobs]):
            yield future.result()


def _searches(job: Job) -> list[Judged]:
    sweep, study, specs, settings, numbers = job
    judged: list[Judged] = []
    for number in numbers:
        seed = settings.seed + number
        own = study_of(study, settings, number)
        rows = resampled(len(own.labels), seed) if settings.resampled else None
        table, losses = Table(own, rows), own.losses(settings.judge)
        for name, spec in specs.items():
            # The seed also changes the suggestions; if no rows are drawn, only these vary.
            found = simulate(table, spec, spec.all_seeds[0] + seed, settings.budgets)
            judged += _judged(name, sweep, study, number, found, losses)
    return judged


def study_of(study: RecordedStudy, settings: ReplaySettings, number: int) -> RecordedStudy:
    """Return a study for one search, which draws its own rows if ``settings.validation`` is set."""
    if settings.validation is None:
        return study
    return study.drawn(settings.validation, settings.seed + number)


def _judged(
    strategy: str,
    sweep: str,
    study: RecordedStudy,
    number: int,
    search: Search,
    losses: Mapping[int, float],
) -> Iterator[Judged]:
    for choice in search.choices:
        chosen = -1 if choice.position is None else study.trials[choice.position].trial.number
        yield Judged(
            strategy=strategy,
            sweep=sweep,
            study=study.plan.id,
            search=number,
            budget=choice.budget,
            number=chosen,
            distance=sum(search.distances) / len(search.distances),
            loss=losses.get(chosen, math.nan),
            default=losses.get(DEFAULT, math.nan),
            best=min(losses.values()),
        )


def _summary(strategy: str, budget: int, group: Sequence[Judged]) -> Summary:
    loss, default, best, search = (
        np.array([getattr(judged, name) for judged in group])
        for name in ("loss", "default", "best", "search")
    )
    means = [float(np.nanmean(loss[search == number])) for number in np.unique(search)]
    low, high = np.quantile(means, (0.025, 0.975))
    return Summary(
        strategy=strategy,
        budget=budget,
        loss=float(np.nanmean(loss)),
        low=float(low),
        high=float(high),
        default=float(np.nanmean(default)),
        regret=float(np.nanmean(loss - best)),
        worse=float(np.mean(loss > default)),
        kept=float(np.mean([judged.number == DEFAULT for judged in group])),
        distance=float(np.mean([judged.distance for judged in group])),
        searches=len(group),
    )

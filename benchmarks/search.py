"""Compares objectives and rules of choice on unseen data, by replayed searches on several tasks.

    calsweep run benchmarks/search.yaml
    calsweep run examples/cifar10-overfit-cpu.yaml
    calsweep run examples/newsgroups-cpu.yaml
    python benchmarks/search.py calsweep-search/sweeps/digits34 \
        --untested calsweep-storage/sweeps/cifar10-overfit-cpu \
        --untested calsweep-storage/sweeps/newsgroups-cpu

Prints the tables of ``docs/results/search.md``. Every search draws its own validation rows from the
validation and test rows of its study (with ``--untested`` from the validation rows alone). Its
choice is judged by each metric of ``JUDGES`` on all other rows. All tasks (sweeps) have equal
weight, independent of their number of studies.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from _page import options, publish, setting, table
from torch import Tensor

from orchestrator.replay import RecordedStudy, ReplayOutcome, ReplaySettings, replay
from orchestrator.replay.run import Judged, study_of
from orchestrator.search.choice import DEFAULT
from orchestrator.search.study_state import standard_error
from orchestrator.storage.storage import SweepFolder
from orchestrator.sweep.plan import make_plan
from orchestrator.tables.columns import column
from trainables.stages import objective_terms

SEARCH = {"sampler": "tpe", "trials": 20, "accuracy_tolerance": 0.01, "keep_default": False}
OBJECTIVES = ("ece", "debiased_ece", "smooth_ece", "nll", "brier", "nll_after_ts")
RULES: Mapping[str, Mapping[str, Any]] = {
    "no guard": {"accuracy_tolerance": None},
    "guard of 1 error": {"accuracy_tolerance": 0.0, "accuracy_errors": 1.0},
    "default kept by 1": {"keep_default": 1.0},
    "default kept by 2": {"keep_default": 2.0},
    "default kept by 3": {"keep_default": 3.0},
}
STRATEGIES = {objective: {**SEARCH, "objective": objective} for objective in OBJECTIVES} | {
    f"{objective}, {rule}": {**SEARCH, "objective": objective, **changes}
    for objective in ("ece", "nll", "brier")
    for rule, changes in RULES.items()
}
STRATEGIES["nll, with acc and ece"] = {**STRATEGIES["nll"], "pareto": ["acc", "ece"]}
JUDGES = ("nll", "brier", "smooth_ece")
SHOWN = (0, 1, 3, 4, 6, 10)  # Columns of the page.
CLEAR = 2.0  # Paired standard errors, over the judging rows, that make a difference clear.


@dataclass(frozen=True)
class Judgement:
    """The choice of a search, judged by one metric on rows that the search has not seen.

    Attributes:
        regret: Metric of the choice minus metric of the best recorded trial.
        change: Metric of the choice minus metric of the published default; above 0 is worse.
        error: Paired standard error of the change.
        kept: Whether the published default was chosen.
        distance: Distance between suggested and recorded configurations, see ``Judged``.
    """

    strategy: str
    task: str
    metric: str
    regret: float
    change: float
    error: float
    kept: bool
    distance: float


def main() -> None:
    """Replay every task and publish the page: a table over all, and each task in a file."""
    parser = options(__doc__)
    parser.add_argument("sweeps", nargs="*", type=Path, help="folders of sweeps that have ended")
    parser.add_argument("--untested", type=Path, action="append", default=[], help="likewise")
    parser.add_argument("--validation", type=int, default=300, help="rows a search")
    parser.add_argument(
        "--only", action="append", choices=STRATEGIES, metavar="STRATEGY", help="instead of all"
    )
    parser.add_argument("--searches", type=int, default=50, help="a strategy and task, at least")
    given = parser.parse_args()
    found: list[Judgement] = []
    for path in [*given.sweeps, *given.untested]:
        sweep, test = SweepFolder(path.absolute()), path not in given.untested
        outcome = replayed(sweep, given.validation, given.searches, test, given.only or STRATEGIES)
        found += [row for metric in JUDGES for row in judged(outcome, metric)]
    tasks = dict.fromkeys(row.task for row in found)
    every = [["all tasks", *row] for row in rows_of(found)] if len(tasks) > 1 else []
    every += [[t, *row] for t in tasks for row in rows_of([r for r in found if r.task == t])]
    columns = ["task", *heading()]
    shown = [row[1:] for row in every if row[0] == every[0][0]]
    counts = {t: sum(r.task == t for r in found) for t in tasks}
    each = len(shown[1:]) * len(JUDGES)
    listing = ", ".join(f"{count // each} of {task}" for task, count in counts.items())
    lines = [
        *table([columns[1 + place] for place in SHOWN], ([r[n] for n in SHOWN] for r in shown)),
        "",
        f"Searches per strategy: {listing}; distance {100 * mean(found, 'distance'):.1f} %.",
    ]
    files = {"-strategies": (columns, every)}
    place = f"{setting('torch', 'optuna')}."
    publish("Which objective and which rule should a search use?", lines, place, given.out, files)


def replayed(
    sweep: SweepFolder, validation: int, searches: int, test: bool, only: Collection[str]
) -> ReplayOutcome:
    """Replay a sweep with strategies, with at least ``searches`` searches over all studies."""
    plan = make_plan(sweep.storage.load_spec(sweep.name))
    each = -(-searches // max(1, sum(study.points != 1 for study in plan)))
    settings = ReplaySettings(
        searches=each,
        validation=validation,
        test=test,
        budgets=(),
        strategies={name: STRATEGIES[name] for name in only},
    )
    return replay(sweep.storage, settings, [sweep.name])


def judged(outcome: ReplayOutcome, metric: str) -> Iterator[Judgement]:
    """Judge every search of a replay by a metric."""
    for study in (study for sweep in outcome.sweeps for study in sweep.studies):
        for search in range(outcome.settings.searches):
            terms = terms_of(study_of(study, outcome.settings, search), metric)
            best = min(float(values.mean()) for values in terms.values())
            for row in outcome.judged:
                if (row.study, row.search) == (study.plan.id, search):
                    yield judgement(row, study.plan.task.id, metric, terms, best)


def terms_of(study: RecordedStudy, metric: str) -> dict[int, Tensor]:
    """Return each judging row's term of a metric, by trial."""
    return {
        found.trial.number: objective_terms(metric, found.outputs, study.test_labels)
        for found in study.trials
    }


def judgement(
    row: Judged, task: str, metric: str, terms: Mapping[int, Tensor], best: float
) -> Judgement:
    """Judge one search."""
    chosen, default = terms[row.number], terms[DEFAULT]
    return Judgement(
        strategy=row.strategy,
        task=task,
        metric=metric,
        regret=float(chosen.mean()) - best,
        change=float((chosen - default).mean()),
        error=standard_error(chosen - default),
        kept=row.number == DEFAULT,
        distance=row.distance,
    )


def heading() -> list[str]:
    """Return the columns of the table."""
    worse, clearly = (
        [f"{what}: {column(metric).label}" for metric in JUDGES]
        for what in ("worse", "clearly worse")
    )
    regrets = [f"regret: {column(metric).heading}" for metric in JUDGES]
    return ["strategy", *regrets, *worse, *clearly, "default kept"]


def rows_of(found: Sequence[Judgement]) -> Iterator[list[str]]:
    """Yield the rows of the table, with the columns of ``heading``."""
    yield ["published default", *defaults(found), *[""] * (len(heading()) - 1 - len(JUDGES))]
    for name in dict.fromkeys(row.strategy for row in found):
        own = [row for row in found if row.strategy == name]
        by_metric = [[row for row in own if row.metric == metric] for metric in JUDGES]
        yield [
            name,
            *(column(rows[0].metric).show(mean(rows, "regret")) for rows in by_metric),
            *(share(rows, 0.0) for rows in by_metric),
            *(share(rows, CLEAR) for rows in by_metric),
            f"{100 * mean(own, 'kept'):.0f} %",
        ]


def defaults(found: Sequence[Judgement]) -> Iterator[str]:
    """Yield the published default's regret by each metric."""
    for metric in JUDGES:
        rows = [row for row in found if row.metric == metric]
        yield column(metric).show(mean(rows, "regret") - mean(rows, "change"))


def mean(rows: Sequence[Judgement], name: str) -> float:
    """Return the mean over tasks of a figure's mean in each."""
    return over_tasks(rows, [float(getattr(row, name)) for row in rows])


def share(rows: Sequence[Judgement], errors: float) -> str:
    """Return the share of choices worse than the default by more than ``errors`` errors."""
    return f"{100 * over_tasks(rows, [r.change > errors * r.error for r in rows]):.0f} %"


def over_tasks(rows: Sequence[Judgement], values: Sequence[float]) -> float:
    """Return the mean over tasks of the mean value of each task; ``values`` has one per row."""
    tasks = np.array([row.task for row in rows])
    return float(np.mean([np.mean(np.array(values)[tasks == task]) for task in np.unique(tasks)]))


if __name__ == "__main__":
    main()

"""What each page shows, as data for its template."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from orchestrator.storage.ledger import Ledger, Study, Trial
from orchestrator.storage.results import StudyResult, cells_of
from orchestrator.storage.status import SweepStatus, current_results, status_of
from orchestrator.storage.storage import SweepFolder
from orchestrator.tables.arrange import build_table
from orchestrator.tables.columns import Column, column
from orchestrator.tables.table import ComparisonTable, Summary
from orchestrator.view import MOST_CURVES, study_part, trial_curves
from trainables.common.files import open_inside

METRICS = ("acc", "ece", "aece", "nll", "brier")
COMPARED = ("acc", "ece", "nll")
LISTED = 100  # Trials on one page.
SHOWN = 20  # Running and failed trials on the page of a sweep.
LOG_BYTES = 100_000  # Of the end of a log.
LIVE = ("starting", "running", "paused", "queued", "requeued")
STATES = ("running", "finished", "failed", "pruned")


class StudyLine(NamedTuple):
    """How far a study is, and its best trial so far; None where no trial has a score."""

    study: Study
    ended: int
    trials: int
    running: int
    best: Trial | None


class Difference(NamedTuple):
    """One figure of two sweeps; None where one has it not."""

    shown: Column
    first: Summary | None
    second: Summary | None

    @property
    def change(self) -> float | None:
        """Return the second minus the first."""
        if self.first is None or self.second is None:
            return None
        return self.second.mean - self.first.mean


def sweeps_page(found: Iterable[tuple[SweepStatus, str]], note: str) -> dict[str, Any]:
    """Return all sweeps, each with the fault of its journal, those that run first; and a note."""
    listed = sorted(found, key=lambda each: (each[0].state not in LIVE, -each[0].began))
    live = any(status.state in LIVE for status, _ in listed)
    return {"sweeps": listed, "live": live, "note": note}


def sweep_page(folder: SweepFolder, ledger: Ledger) -> dict[str, Any]:
    """Return one sweep: how far it is, its tables, studies, running and failed trials."""
    shared = common(folder, ledger)
    status: SweepStatus = shared["status"]
    running = [ledger.trials[each.key] for each in status.running]
    failed = [trial for trial in ledger.trials.values() if trial.status == "failed"]
    return {
        **shared,
        "tables": list(_tables(current_results(folder, ledger))),
        "behind": _behind(folder, ledger),
        "lines": [_line(study, ledger, status) for study in ledger.studies.values()],
        "running": list(zip(status.running[:SHOWN], running, strict=False)),
        "failed": failed[-SHOWN:][::-1],
        "failures": len(failed),
        "report": folder.report.is_file(),
    }


def common(folder: SweepFolder, ledger: Ledger) -> dict[str, Any]:
    """Return the content that all pages of a sweep need."""
    status = status_of(folder, ledger)
    return {
        "name": folder.name,
        "status": status,
        "live": status.state in LIVE,
        "shown": column(ledger.objective),
        "several": len({study.task for study in ledger.studies.values()}) > 1,
    }


def _tables(results: Sequence[StudyResult]) -> Iterable[ComparisonTable]:
    """Yield the test figures of each task that has some."""
    for task in dict.fromkeys(result.task for result in results):
        ours = [result for result in results if result.task == task]
        there = {name for result in ours for seed in result.test for name in seed}
        if metrics := [name for name in METRICS if name in there]:
            yield build_table(ours, metrics)


def _behind(folder: SweepFolder, ledger: Ledger) -> dict[str, dict[str, str]]:
    """Return the addresses of the test rows by task and recipe, as far as these are on record."""
    found = defaultdict[str, dict[str, str]](dict)
    for study, trial in cells_of(ledger):
        if trial.predictions:
            address = f"/sweeps/{quote(folder.name, safe='')}/studies/{study.index}/rows"
            found[study.task][study.recipe] = address
    return found


def _line(study: Study, ledger: Ledger, status: SweepStatus) -> StudyLine:
    trials = study.begun.values()
    scored = [t for t in study.searched if t.objective is not None and t.status == "finished"]
    best = min(scored, key=lambda t: (t.objective, t.number), default=None)
    return StudyLine(
        study,
        sum(trial.ended for trial in trials),
        study.trials + ledger.further_seeds,
        sum(trial.open for trial in trials) if status.running else 0,
        study.chosen_trial or best,
    )


def study_page(folder: SweepFolder, ledger: Ledger, study: Study) -> dict[str, Any]:
    """Return one study: the charts of its search, and its best trials."""
    scored = [trial for trial in study.searched if trial.objective is not None]
    best = sorted(scored, key=lambda trial: (trial.objective or 0.0, trial.number))
    return {
        **common(folder, ledger),
        "study": study,
        "part": study_part(study, ledger, live=True),
        "most_curves": MOST_CURVES,
        "trials": best[:SHOWN],
        "count": len(study.begun),
        "behind": _behind(folder, ledger)[study.task].get(study.recipe),
    }


def trials_page(
    folder: SweepFolder, ledger: Ledger, study: Study | None, state: str, page: int
) -> dict[str, Any]:
    """Return the trials of a sweep, or of one study, in one state or in any; pages count from 1."""
    every = (study.begun if study else ledger.trials).values()
    found = [trial for trial in every if state in ("", trial.status)][::-1]
    pages = max(1, math.ceil(len(found) / LISTED))
    page = min(max(page, 1), pages)
    return {
        **common(folder, ledger),
        "study": study,
        "state": state,
        "states": STATES,
        "trials": found[(page - 1) * LISTED : page * LISTED],
        "count": len(found),
        "page": page,
        "pages": pages,
    }


def trial_page(folder: SweepFolder, ledger: Ledger, trial: Trial) -> dict[str, Any]:
    """Return one trial: its configuration, figures, learning curves and the end of its log."""
    study = ledger.studies.get(trial.study)
    return {
        **common(folder, ledger),
        "trial": trial,
        "study": study,
        "figures": trial_curves(study, trial) if study else [],
        "validation": sorted(trial.metrics.items()),
        "test": sorted(trial.test.items()),
        "log": _log(folder.logs / f"{trial.key}.log", folder.storage.folder),
    }


def _log(path: Path, storage: Path) -> str:
    """Return the end of a log; nothing where there is none."""
    try:
        with open_inside(path, storage) as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - LOG_BYTES))
            text = stream.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    except PermissionError as error:
        return f"The log is not shown: it {error.strerror}."
    return text if size <= LOG_BYTES else f"...{text.partition(chr(10))[2]}"


def compare_page(pair: Sequence[tuple[SweepFolder, Ledger]]) -> dict[str, Any]:
    """Return two sweeps side by side: how far they are, what differs, and test figures."""
    (first, one), (second, other) = pair
    statuses = [status_of(folder, ledger) for folder, ledger in pair]
    found = [current_results(folder, ledger) for folder, ledger in pair]
    tasks = dict.fromkeys(result.task for results in found for result in results)
    return {
        "names": (first.name, second.name),
        "statuses": statuses,
        "live": any(status.state in LIVE for status in statuses),
        "remarks": list(_remarks(one, other)),
        "tasks": {task: list(_compared(task, *found)) for task in tasks},
        "columns": [column(name) for name in COMPARED],
    }


def _remarks(one: Ledger, other: Ledger) -> Iterable[str]:
    """Yield why figures of two sweeps may differ, beside chance."""
    first, second = (defaultdict[str, set[str]](set) for _ in range(2))
    for settings, ledger in ((first, one), (second, other)):
        for study in ledger.studies.values():
            settings[study.task].add(study.setting or study.fingerprint)
    common = first.keys() & second.keys()
    for task in common:
        if first[task] != second[task]:
            yield f"Data, model or protocol of {task} differ: its figures cannot be compared."
    if one.git_commit != other.git_commit:
        yield f"The code differs: {one.git_commit or 'unknown'}, {other.git_commit or 'unknown'}."
    if not common:
        yield "They have no task in common."


def _compared(
    task: str, first: Sequence[StudyResult], second: Sequence[StudyResult]
) -> Iterable[tuple[str, list[Difference]]]:
    """Yield the recipes of one task with the figures of both sweeps."""
    tables = [
        build_table(ours, COMPARED) if (ours := [r for r in results if r.task == task]) else None
        for results in (first, second)
    ]
    for recipe in dict.fromkeys(recipe for table in tables if table for recipe in table.recipes):
        figures = []
        for name in COMPARED:
            pair = (
                t.summary(recipe, task, name) if t and recipe in t.recipes else None for t in tables
            )
            figures.append(Difference(column(name), *pair))
        yield recipe, figures

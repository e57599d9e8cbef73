"""Builds the data for the templates of the pages."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from heapq import nsmallest
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from orchestrator.storage.ledger import Ledger, Study, Trial
from orchestrator.storage.notes import SWEEP, read_notes
from orchestrator.storage.results import StudyResult, cells_of, usual_baseline
from orchestrator.storage.status import SweepStatus, current_results, status_of, title
from orchestrator.storage.storage import SweepFolder
from orchestrator.tables.arrange import build_table
from orchestrator.tables.columns import Column, column, shown_names
from orchestrator.tables.figures import short
from orchestrator.tables.table import Summary
from orchestrator.view import (
    LIVE,
    MOST_CURVES,
    ReportSource,
    overview,
    study_part,
    study_state,
    trial_curves,
)
from orchestrator.view.server._details import COMPUTING, SLOW, Details
from orchestrator.view.server._requests import within
from trainables.common.errors import InputError
from trainables.common.files import open_inside

COMPARED = ("acc", "ece", "nll")
LISTED = 100  # Trials on one page.
SHOWN = 20  # Running trials and failures on the page of a sweep, best trials on that of a study.
LOG_BYTES = 100_000  # Only the end of a log is shown.
AT_THE_END = f"{SLOW} are shown when the sweep has ended."
STATES = ("running", "finished", "failed", "pruned")
# Sort keys of the columns of a table of trials; None is always last.
KEYS: tuple[Callable[[Trial], Any], ...] = (
    title,
    lambda trial: trial.status,
    lambda trial: trial.objective,
    lambda trial: trial.metrics.get("val_acc"),
    lambda trial: trial.metrics.get("val_ece"),
    lambda trial: trial.epochs or None,
    lambda trial: None if trial.reused else trial.seconds,
    lambda trial: reason_or_parameters(trial),
)
ORDERS = [f"{place}-{way}ending" for place in range(len(KEYS)) for way in ("asc", "desc")]


def reason_or_parameters(trial: Trial) -> str:
    """Return the text of the last column in a table of trials."""
    parameters = (f"{name} {short(value)}" for name, value in trial.parameters.items())
    return trial.reason or ", ".join(parameters)


class Difference(NamedTuple):
    """A figure of two sweeps; None if a sweep does not have it."""

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
    """Return the content of the page of all sweeps, those with a state in ``LIVE`` first.

    ``found`` has the status of each sweep and the fault of its journal ("" if there is none).
    """
    listed = sorted(found, key=lambda each: (each[0].state not in LIVE, -each[0].began))
    live = any(status.state in LIVE for status, _ in listed)
    return {"sweeps": listed, "live": live, "note": note}


def sweep_page(
    folder: SweepFolder,
    ledger: Ledger,
    status: SweepStatus,
    details: Details,
    metrics: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the content of a sweep's page: the report, with tables of the chosen ``metrics``.

    Parts that are slow to compute are included once ``details`` has them.
    """
    found, live = details.of(folder, ledger, status), status.state in LIVE
    results = current_results(folder, ledger)
    noted = _noted(folder, SWEEP)
    store, written = folder.storage.store(), noted.pop("all")
    source = ReportSource(folder.name, results, ledger, store, notes=written)
    content = overview(source, usual_baseline(results), status)
    failed = content["failures"]
    running = [ledger.trials[each.key] for each in status.running]
    content |= found or {"pending": AT_THE_END if live else f"{SLOW} {COMPUTING}"}
    filled, remarks, ready = details.columns(folder, results, metrics)
    if metrics:
        content["tasks"] = [_with_table(task, filled, metrics) for task in content["tasks"]]
    return {
        **content,
        **noted,
        "status": status,
        "live": live or found is None or not ready,
        "behind": _behind(folder, ledger),
        "running": list(zip(status.running[:SHOWN], running, strict=False)),
        "failures": failed[:SHOWN],
        "unlisted": len(failed[SHOWN:]),
        "metrics": ",".join(metrics),
        "known_metrics": shown_names(),
        "remarks": remarks,
    }


def _with_table(
    task: Mapping[str, Any], results: Iterable[StudyResult], metrics: Sequence[str]
) -> dict[str, Any]:
    """Return the section of a task with other columns in its table."""
    own = [result for result in results if result.task == task["name"]]
    plain = not task["shifts"].keys() & {*metrics}
    return {**task, "table": build_table(own, metrics), "plain": plain}


def common(
    folder: SweepFolder, ledger: Ledger, status: SweepStatus | None = None
) -> dict[str, Any]:
    """Return the content that all pages of a sweep need."""
    status = status or status_of(folder, ledger)
    return {
        "name": folder.name,
        "status": status,
        "live": status.state in LIVE,
        "over": status.state not in LIVE,
        "shown": column(ledger.objective),
        "several": len({study.task for study in ledger.studies.values()}) > 1,
    }


def _noted(folder: SweepFolder, about: str, place: str = "") -> dict[str, Any]:
    """Return a sweep's notes, the note about a page, and the address of this page.

    A form on the page sends changes of the note to this address followed by ``/note``.
    """
    address = f"/sweeps/{quote(folder.name, safe='')}{place}"
    try:
        found, problem = read_notes(folder), ""
    except InputError as error:
        found, problem = {}, str(error)
    return {"note": found.get(about, ""), "note_problem": problem, "note_at": address, "all": found}


def _behind(folder: SweepFolder, ledger: Ledger) -> dict[str, dict[str, str]]:
    """Return the addresses of the pages of test rows, by task and recipe."""
    addresses = defaultdict[str, dict[str, str]](dict)
    for study, trial in cells_of(ledger):
        if trial.predictions:
            address = f"/sweeps/{quote(folder.name, safe='')}/studies/{study.index}/rows"
            addresses[study.task][study.recipe] = address
    return addresses


def study_page(
    folder: SweepFolder,
    ledger: Ledger,
    study: Study,
    status: SweepStatus,
    found: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the content of a study's page: its charts and its best trials.

    ``found`` are the ``details`` of the sweep; the importance of parameters is taken from them, so
    it is missing while ``found`` is None.
    """
    kept = {part["index"]: part for part in (found or {}).get("studies", ())}
    state, reason = study_state(study, ledger, status.state, status.reason)
    return {
        **common(folder, ledger, status),
        "study": study,
        "state": state,
        "reason": reason,
        **_noted(folder, f"study {study.name}", f"/studies/{study.index}"),
        "part": kept.get(study.index) or study_part(study, ledger, live=True),
        "most_curves": MOST_CURVES,
        "trials": nsmallest(SHOWN, study.scored, key=attrgetter("objective", "number")),
        "count": len(study.begun),
        "behind": _behind(folder, ledger)[study.task].get(study.recipe),
    }


def trials_page(
    folder: SweepFolder,
    ledger: Ledger,
    study: Study | None,
    state: str,
    order: str,
    text: str,
    page: int,
) -> dict[str, Any]:
    """Return one page of the trials of a sweep, or of one study; pages count from 1.

    Only trials in ``state`` are listed, or all if it is "". The order is one of ``ORDERS``, or ""
    for the last trial first. Every word of the text must occur in a trial's name, state, objective,
    reason or parameters.
    """
    about, words = common(folder, ledger), text.lower().split()
    every = (study.begun if study else ledger.trials).values()
    known = [trial for trial in every if state in ("", trial.status)][::-1]
    text_of = partial(_searchable, shown=about["shown"], over=about["over"])
    kept = [t for t in known if all(map(text_of(t).__contains__, words))] if words else known
    found = _ordered(kept, order)
    pages = max(1, math.ceil(len(found) / LISTED))
    within("page", page, range(1, pages + 1))
    return {
        **about,
        "study": study,
        "state": state,
        "states": STATES,
        "text": text,
        "known": len(known),
        "order": order,
        "trials": found[(page - 1) * LISTED : page * LISTED],
        "count": len(found),
        "page": page,
        "pages": pages,
    }


def _searchable(trial: Trial, shown: Column, over: bool) -> str:
    """Return the text in which a search looks for words, in lower case."""
    state = "interrupted" if over and trial.open else trial.status
    value = "" if trial.objective is None else shown.show(trial.objective)
    return f"{title(trial)} {state} {value} {reason_or_parameters(trial)}".lower()


def _ordered(trials: list[Trial], order: str) -> list[Trial]:
    if not order:
        return trials
    place, _, direction = order.partition("-")
    known = [(value, trial) for trial in trials if (value := KEYS[int(place)](trial)) is not None]
    known.sort(key=itemgetter(0), reverse=direction == "descending")
    return [trial for _, trial in known] + [t for t in trials if KEYS[int(place)](t) is None]


def trial_page(folder: SweepFolder, ledger: Ledger, trial: Trial) -> dict[str, Any]:
    """Return a trial's page: its configuration, figures, learning curves and the end of its log."""
    study = ledger.studies.get(trial.study)
    return {
        **common(folder, ledger),
        **_noted(folder, f"trial {trial.key}", f"/trials/{quote(trial.key, safe='')}"),
        "trial": trial,
        "study": study,
        "figures": trial_curves(study, trial) if study else [],
        "validation": sorted(trial.metrics.items()),
        "test": sorted(trial.test.items()),
        "log": _log(folder.logs / f"{trial.key}.log", folder.storage.folder),
    }


def _log(path: Path, storage: Path) -> str:
    """Return the end of a log, or why it is not shown; "" if there is none."""
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
    """Return the progress, differences and test figures of two sweeps."""
    (first, one), (second, other) = pair
    statuses = [status_of(folder, ledger) for folder, ledger in pair]
    found = [current_results(folder, ledger) for folder, ledger in pair]
    ours, theirs = ([result.task for result in results] for results in found)
    common_tasks = [task for task in dict.fromkeys(ours) if task in theirs]
    remarks = list(_remarks(one, other)) if common_tasks else ["The sweeps share no task."]
    return {
        "names": (first.name, second.name),
        "statuses": statuses,
        "live": any(status.state in LIVE for status in statuses),
        "remarks": remarks,
        "tasks": {task: list(_compared(task, *found)) for task in common_tasks},
        "columns": [column(name) for name in COMPARED],
    }


def _remarks(one: Ledger, other: Ledger) -> Iterable[str]:
    """Yield reasons other than chance why figures of two sweeps may differ."""
    first, second = (defaultdict[str, set[str]](set) for _ in range(2))
    for settings, ledger in ((first, one), (second, other)):
        for study in ledger.studies.values():
            settings[study.task].add(study.setting or study.fingerprint)
    for task in first.keys() & second.keys():
        if first[task] != second[task]:
            yield f"Data, model or protocol of {task} differ: its figures cannot be compared."
    if one.git_commit != other.git_commit:
        yield f"The code differs: {one.git_commit or 'unknown'}, {other.git_commit or 'unknown'}."


def _compared(
    task: str, first: Sequence[StudyResult], second: Sequence[StudyResult]
) -> Iterable[tuple[str, list[Difference]]]:
    """Yield the recipes of one task, with the figures of both sweeps."""
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

"""The parts of the page that are tables only: cost, what failed, where the figures are from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from orchestrator._history import History, StudyHistory, TrialHistory
from orchestrator.journal import study_id
from orchestrator.report._grid import Entry, Grid, Heading, number, without
from orchestrator.report._source import ReportSource
from orchestrator.report._svg import element
from orchestrator.results import StudyResult

__all__ = ["computed", "cost_grid", "facts", "failure_grid", "runs_grid"]

SHORT = 12  # Letters of a key that are shown.


def _text(words: str, style: str = "") -> Entry:
    return Entry(words, words, style)


def cost_grid(source: ReportSource, baseline: str) -> Grid | None:
    """Return what the chosen configuration of each recipe cost to compute."""
    costs = {
        (r.task, r.recipe): sum(r.seconds) / len(r.seconds) for r in source.results if r.seconds
    }
    if not costs:
        return None
    longest = max(costs.values()) or 1.0
    headings = [Heading("Recipe", numeric=False), Heading("Task", numeric=False)]
    headings += [Heading("Seconds"), Heading(f"× {baseline}"), Heading("", numeric=False)]
    rows = []
    for (task, recipe), seconds in costs.items():
        reference = costs.get((task, baseline))
        times = seconds / reference if reference else None
        ratio = number("" if times is None else f"{times:.2f}", times)
        bar = element("span", class_="bar", style=f"width:{100 * seconds / longest:.1f}%")
        figures = [number(f"{seconds:.1f}", seconds), ratio, Entry("", graphic=bar)]
        rows.append([_text(recipe), _text(task), *figures])
    caption = "Seconds to compute the chosen configuration, all its stages, the mean over seeds"
    note = "What came from the store counts what it cost when it was first computed."
    return _fitted(Grid("cost", caption, headings, rows, [note]), source)


def _fitted(grid: Grid, source: ReportSource) -> Grid:
    """Leave out the column of tasks where there is one only."""
    return grid if len(source.tasks) > 1 else without(grid, "Task")


def computed(history: History) -> str:
    """Return in a sentence what the sweep computed, and what it could reuse."""
    trials = [trial for study in history.studies.values() for trial in study.trials.values()]
    reused = sum(trial.reused for trial in trials)
    seconds = sum(trial.seconds or 0.0 for trial in trials if not trial.reused)
    stages = {"train": "trainings", "refine": "refinements", "calibrate": "calibrations"}
    counts = [
        f"{number_} {name}"
        for stage, name in stages.items()
        if (number_ := sum(t.stage == stage and not t.reused for t in trials))
    ]
    listing = ", ".join(counts) or "nothing"
    return (
        f"{len(trials)} trials computed {listing} in {_duration(seconds)} of processing; "
        f"{reused} took an outcome that was stored already."
    )


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"


def failure_grid(source: ReportSource) -> Grid:
    """Return every failed trial with its reason, and every study without a result."""
    headings = [Heading(text, numeric=False) for text in ("Recipe", "Task", "What", "Reason")]
    headings.append(Heading("Configuration", numeric=False))
    rows = [*_failed_trials(source.history), *_failed_studies(source)]
    caption = "Trials and studies that failed or did not end"
    return _fitted(Grid("failures", caption, headings, rows), source)


def _failed_trials(history: History | None) -> Iterator[list[Entry]]:
    if history is None:
        return
    lost = ("failed", "running") if history.status == "finished" else ("failed",)
    for study in history.studies.values():
        for trial in study.trials.values():
            if trial.status in lost:
                configuration = json.dumps(trial.configuration, ensure_ascii=False)
                words = (study.recipe, study.task, _trial_name(trial), trial.reason or "no end")
                yield [*map(_text, words), _text(configuration, "code")]


def _failed_studies(source: ReportSource) -> Iterator[list[Entry]]:
    for result in source.results:
        if result.status != "finished":
            counts = f"{result.trials_finished} trials finished, {result.trials_failed} failed"
            words = (result.recipe, result.task, f"study {result.status}", result.reason or counts)
            yield [*map(_text, words), Entry("")]


def _trial_name(trial: TrialHistory) -> str:
    return f"trial {trial.number}" if trial.role == "search" else f"seed {trial.seed}"


def runs_grid(source: ReportSource) -> Grid:
    """Return the runs that the figures come from, one a recipe, task and seed."""
    names = ("Recipe", "Task", "Seed", "Trial", "MLflow run", "Predictions")
    headings = [Heading(text, numeric=text == "Seed") for text in names]
    rows = [row for result in source.results for row in _runs(source, result)]
    return _fitted(Grid("runs", "The runs behind the figures", headings, rows), source)


def _runs(source: ReportSource, result: StudyResult) -> Iterator[list[Entry]]:
    trials = _measured(source, result)
    for position in range(len(result.test)):
        trial = trials[position] if position < len(trials) else None
        run = source.runs.get(trial.key, "") if trial else ""
        run = run or dict(enumerate(result.run_ids)).get(position, "")
        predictions = dict(enumerate(result.predictions)).get(position, "")
        seed = number(str(trial.seed), trial.seed) if trial else Entry("–")
        yield [
            _text(result.recipe),
            _text(result.task),
            seed,
            _text(trial.key[:SHORT] if trial else "–", "code"),
            _text(run or "–", "code"),
            _text(predictions[:SHORT] or "–", "code"),
        ]


def _measured(source: ReportSource, result: StudyResult) -> list[TrialHistory]:
    """Return the trials that a result's test figures come from, in their order."""
    studies: Mapping[str, StudyHistory] = source.history.studies if source.history else {}
    study = studies.get(study_id(result.task, result.recipe))
    trials = study.trials.values() if study else ()
    ours = [t for t in trials if t.evaluated and t.configuration == result.configuration]
    ordered = sorted(ours, key=lambda trial: (trial.seed, trial.role, trial.number))
    return ordered if len(ordered) == len(result.test) else []


def facts(source: ReportSource) -> list[tuple[str, str]]:
    """Return where the figures are from, as names and what belongs to them."""
    results = source.results
    found = [
        ("Sweep", f"{source.name} {_listing(r.sweep_id for r in results)}"),
        ("Begun", _date(min((r.started for r in results if r.started), default=0.0))),
        ("Code", _listing(r.code for r in results) or "not known"),
        *_data(results),
        ("Choice", _listing(_rule(r) for r in results)),
    ]
    if source.history is not None:
        found += _circumstances(source.history)
    return [(name, text) for name, text in found if text]


def _listing(texts: Iterator[str]) -> str:
    return ", ".join(dict.fromkeys(text for text in texts if text))


def _date(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC" if seconds else ""


def _data(results: Any) -> Iterator[tuple[str, str]]:
    for task in dict.fromkeys(result.task for result in results):
        ours = [result for result in results if result.task == task]
        text = _listing(r.fingerprint for r in ours) or "not known"
        limits = _listing(r.subset for r in ours)
        yield f"Data of {task}", text + (f"; a part of the data set: {limits}" if limits else "")


def _rule(result: StudyResult) -> str:
    if not result.rule:
        return ""
    rule = result.rule
    return (
        f"lowest {rule.get('objective', '?')}, accuracy tolerance "
        f"{rule.get('accuracy_tolerance', '?')}, epoch: {rule.get('epoch', '?')}, "
        f"of equals the {rule.get('tie', '?')}"
    )


def _circumstances(history: History) -> Iterator[tuple[str, str]]:
    search, seeds = history.spec.get("search", {}), history.spec.get("seeds", [])
    words = [f"{search[name]}" for name in ("sampler",) if name in search]
    words += [f"{search['trials']} trials a study"] if "trials" in search else []
    yield "Search", ", ".join(words)
    yield "Seeds", ", ".join(map(str, seeds))
    versions, hardware = (history.provenance.get(name) for name in ("versions", "hardware"))
    yield "Versions", _pairs(versions)
    yield "Hardware", _pairs(hardware)
    yield "State", history.status


def _pairs(values: Any) -> str:
    if not isinstance(values, Mapping):
        return str(values or "")
    return ", ".join(f"{name} {_plain(value)}" for name, value in values.items())


def _plain(value: Any) -> str:
    return (", ".join(map(str, value)) or "none") if isinstance(value, list) else str(value)

"""The part of the page that shows the search: importance, slices, learning curves, MaC-Cal's q."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from orchestrator._columns import column
from orchestrator._history import History, StudyHistory, TrialHistory
from orchestrator.report._grid import many
from orchestrator.report._importance import ENOUGH, importance
from orchestrator.report._svg import Axis, Plot, fitting, labelled, thinned

__all__ = ["Figure", "StudyPart", "retention_figures", "study_parts"]

MOST_CURVES = 16
SLICE, CURVE = (216, 168), (272, 176)
MARGIN = (6, 8, 18, 38)
RAMP = ("#3d6fb6", "#2f93a8", "#55a868", "#b59a2f", "#d9742b")  # Read on white and on black.


@dataclass(frozen=True)
class Figure:
    """One chart and what it shows."""

    title: str
    chart: Markup


@dataclass(frozen=True)
class StudyPart:
    """One study.

    Attributes:
        name: Its recipe and, if there are several, its task.
        text: What came of it, in a few words.
        importance: Parameter to its share, the largest first.
        remark: Why there is no importance, or how it was found.
        slices: Objective over each parameter.
        curves: Learning curves.
        remarks: What the charts leave out.
    """

    name: str
    text: str
    importance: Sequence[tuple[str, float]]
    remark: str
    slices: Sequence[Figure]
    curves: Sequence[Figure]
    remarks: Sequence[str]


def study_parts(history: History) -> tuple[list[StudyPart], list[str]]:
    """Return the studies with something to draw, and the names of the others."""
    several = len({study.task for study in history.studies.values()}) > 1
    parts, others = [], []
    for study in history.studies.values():
        name = f"{study.recipe} on {study.task}" if several else study.recipe
        part = _part(study, history, name)
        if part.slices or part.curves:
            parts.append(part)
        else:
            others.append(name)
    return parts, others


def _part(study: StudyHistory, history: History, name: str) -> StudyPart:
    scored = [trial for trial in study.searched if trial.objective is not None]
    varied = [name for name in _parameters(scored) if len(_values(scored, name)) > 1]
    shares = importance(scored, varied)
    if not varied:
        remark = ""
    elif not shares:
        remark = f"{len(scored)} trials are too few to tell importance; {ENOUGH} are needed."
    else:
        remark = f"Share of the objective's variance (fANOVA, {len(scored)} trials)."
    drawn = _most_telling(study)
    left = len([trial for trial in study.searched if len(trial.epochs) > 1]) - len(drawn)
    return StudyPart(
        name=name,
        text=_outcome(study, history),
        importance=sorted(shares.items(), key=lambda pair: -pair[1]),
        remark=remark,
        slices=[_slice(scored, parameter, study, history) for parameter in varied],
        curves=[f for metric in ("ece", "acc") if (f := _learning(drawn, metric, study))],
        remarks=[f"Curves of the {len(drawn)} best trials; {left} are left out."] if left else [],
    )


def _outcome(study: StudyHistory, history: History) -> str:
    trials = study.searched
    counts = [
        f"{number} {status}"
        for status in ("finished", "failed", "pruned", "running")
        if (number := sum(trial.status == status for trial in trials))
    ]
    words = many(len(trials), "trial") + (f" ({', '.join(counts)})" if len(counts) > 1 else "")
    chosen = study.chosen_trial
    if chosen is None or chosen.objective is None:
        return words
    shown = column(history.objective)
    value = f"{shown.show(chosen.objective)}{' %' if shown.factor == 100 else ''}"
    return f"{words}; chosen: number {chosen.number}, objective {value}"


def _parameters(trials: Iterable[TrialHistory]) -> list[str]:
    return list(dict.fromkeys(name for trial in trials for name in trial.parameters))


def _values(trials: Iterable[TrialHistory], name: str) -> list[object]:
    return list(dict.fromkeys(t.parameters[name] for t in trials if name in t.parameters))


def _slice(
    trials: Sequence[TrialHistory], name: str, study: StudyHistory, history: History
) -> Figure:
    shown = column(history.objective)
    tried = [trial for trial in trials if name in trial.parameters]
    places, x, ticks = _horizontal(tried, name)
    heights = [shown.factor * (trial.objective or 0.0) for trial in tried]
    y = fitting(heights)
    plot = Plot(SLICE, x, y, f"validation {shown.label} against {name}", MARGIN)
    plot.frame(ticks, labelled(y.ticks(4)))
    for trial, place, height in zip(tried, places, heights, strict=True):
        title = f"trial {trial.number}: {name} {trial.parameters[name]}, objective {height:.4g}"
        if trial is study.chosen_trial:
            plot.dot(place, height, 7, "ring")
        plot.dot(place, height, 3.6, "mark search", title)
    return Figure(name, plot.svg())


def _horizontal(
    trials: Sequence[TrialHistory], name: str
) -> tuple[list[float], Axis, list[tuple[float, str]]]:
    """Return where trials stand, the axis, and its ticks; categories stand side by side."""
    values = [trial.parameters[name] for trial in trials]
    if any(isinstance(value, bool | str) for value in values):
        order = sorted({str(value) for value in values})
        places = [float(order.index(str(value))) for value in values]
        return places, Axis(-0.6, len(order) - 0.4), list(enumerate(order))
    places = [float(value) for value in values]
    axis = fitting(places, margin=0.08)
    return places, axis, list(labelled(axis.ticks(3)))


def _most_telling(study: StudyHistory) -> list[TrialHistory]:
    """Return the trials whose curves are drawn: the best ones, the chosen one among them."""
    trials = [trial for trial in study.searched if len(trial.epochs) > 1]

    def key(trial: TrialHistory) -> tuple[bool, float]:
        objective = math.inf if trial.objective is None else trial.objective
        return trial is not study.chosen_trial, objective

    return sorted(trials, key=key)[:MOST_CURVES]


def _learning(trials: Sequence[TrialHistory], metric: str, study: StudyHistory) -> Figure | None:
    shown = column(metric)
    curves = {trial.number: _curve(trial, f"val_{metric}", shown.factor) for trial in trials}
    return _lines(
        f"validation {shown.label} % by epoch",
        [
            (curve, "ours" if trial is study.chosen_trial else "other", f"trial {trial.number}", "")
            for trial in reversed(trials)
            if len(curve := curves[trial.number]) > 1
        ],
        None,
    )


def _curve(trial: TrialHistory, metric: str, factor: float = 1.0) -> list[tuple[float, float]]:
    points = zip(*trial.curve(metric), strict=True)
    return thinned([(float(step), factor * v) for step, v in points if math.isfinite(v)])


Line = tuple[list[tuple[float, float]], str, str, str]
"""Points, class, title and colour, which is empty where the class has one."""


def _lines(title: str, lines: Sequence[Line], y: Axis | None) -> Figure | None:
    if not lines:
        return None
    steps = [step for points, *_ in lines for step, _ in points]
    x = Axis(min(steps), max(steps))
    y = y or fitting([value for points, *_ in lines for _, value in points])
    plot = Plot(CURVE, x, y, title, MARGIN)
    ticks = [tick for tick in x.ticks(4) if tick == round(tick)]
    plot.frame(labelled(ticks), labelled(y.ticks(4)))
    for points, class_, label, colour in lines:
        plot.line(points, class_, label, colour)
    return Figure(title, plot.svg())


def retention_figures(history: History) -> list[Figure]:
    """Return q by epoch of every study with trials that report it, coloured by gamma."""
    several = len({study.task for study in history.studies.values()}) > 1
    figures = []
    for study in history.studies.values():
        trials = [t for t in study.searched if len(t.curve("q")[0]) > 1]
        trials = sorted(trials, key=lambda t: t is not study.chosen_trial)[:MOST_CURVES]
        gammas = sorted({_gamma(trial) for trial in trials})
        lines = [
            (
                _curve(trial, "q"),
                "q chosen" if trial is study.chosen_trial else "q",
                f"gamma {_gamma(trial):.4g}",
                _colour(gammas.index(_gamma(trial)), len(gammas)),
            )
            for trial in reversed(trials)
        ]
        name = f"{study.recipe} on {study.task}" if several else study.recipe
        span = " to ".join(f"{gamma:.3g}" for gamma in (*gammas[:1], *gammas[1:][-1:]))
        figure = _lines(f"{name}, gamma {span}", lines, Axis(0.0, 1.05))
        figures += [figure] if figure else []
    return figures


def _gamma(trial: TrialHistory) -> float:
    """Return the gamma of the part that comes last: the refinement's, not the loss's."""
    found = [float(part["gamma"]) for part in trial.configuration.values() if "gamma" in part]
    return found[-1] if found else math.nan


def _colour(rank: int, count: int) -> str:
    return RAMP[round(rank * (len(RAMP) - 1) / max(count - 1, 1))]

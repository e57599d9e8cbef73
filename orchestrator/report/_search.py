"""Charts of the search: metrics by parameter, Pareto fronts, learning curves, MaC-Cal's q."""

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from orchestrator.report._chart import Axis, Chart, Figure, Point, fitting, labelled, thinned
from orchestrator.report._scatter import unbeaten
from orchestrator.storage.ledger import Ledger, Study, Trial
from orchestrator.tables.columns import Column, column

CURVES = ("val_ece", "val_acc", "q")  # Metrics that are drawn by epoch.

SLICE, CURVE = (216, 168), (272, 176)
DOTS = 400  # Most trials of one chart: more hide each other.
RAMP = ("#3d6fb6", "#2f93a8", "#55a868", "#b59a2f", "#d9742b")  # Read on white and on black.


def colours(values: Iterable[float]) -> dict[float, str]:
    """Return a colour for each number by its rank, from blue for low to orange for high."""
    ordered = sorted(set(values))
    most = max(len(ordered) - 1, 1)
    return {value: _blend(rank * (len(RAMP) - 1) / most) for rank, value in enumerate(ordered)}


def _blend(place: float) -> str:
    """Return the colour at a place on the ramp, between two of its colours if need be."""
    low, share = int(place), place % 1
    ends = RAMP[low], RAMP[min(low + 1, len(RAMP) - 1)]
    pairs = [[int(end[i : i + 2], 16) for end in ends] for i in (1, 3, 5)]
    return "#" + "".join(f"{round(a + share * (b - a)):02x}" for a, b in pairs)


def searched_parameters(study: Study) -> dict[str, list[Trial]]:
    """Return the parameters that have scores for several values, and the scored trials."""
    scored = [trial for trial in study.searched if trial.objective is not None]
    names = dict.fromkeys(name for trial in scored for name in trial.parameters)
    trials = {name: [trial for trial in scored if name in trial.parameters] for name in names}
    return {n: t for n, t in trials.items() if len({trial.parameters[n] for trial in t}) > 1}


def objective_by_parameter(study: Study, history: Ledger) -> list[Figure]:
    """Return the objective over each parameter that varies, then each metric of ``pareto``.

    A ring is around the chosen trial. Trials are coloured by their number. Where one number alone
    varies, a line joins them. Of very many trials some are drawn.
    """
    searched = searched_parameters(study)
    for name, found in searched.items():
        kept = thinned(found, DOTS)
        searched[name] = kept + [t for t in found if t is study.chosen_trial and t not in kept]
    tones = colours(trial.number for trials in searched.values() for trial in trials)
    shown = _searched_metrics(history)
    figures = []
    for name, trials in searched.items():
        values = [trial.parameters[name] for trial in trials]
        places, x, ticks = _horizontal(values)
        for index, metric in enumerate(shown):
            heights = [metric.factor * searched_for(trial, history)[index] for trial in trials]
            y = fitting(heights)
            chart = Chart(SLICE, x, y, f"validation {metric.label} against {name}")
            chart.frame(ticks, labelled(y.ticks(4)))
            if len(searched) == 1 and not _are_names(values):
                chart.line(sorted(zip(places, heights, strict=True)), "other")
            word = metric.label if index else "objective"
            for trial, place, height in zip(trials, places, heights, strict=True):
                text = f"trial {trial.number}: {name} {trial.parameters[name]}, {word} {height:.4g}"
                if trial is study.chosen_trial:
                    chart.dot(place, height, 7, "ring")
                chart.dot(place, height, 3.6, "mark search", text, tones[trial.number])
            figures.append(Figure(f"{metric.label}, {name}" if len(shown) > 1 else name, chart))
    return figures


def _searched_metrics(history: Ledger) -> list[Column]:
    return [column(name) for name in (history.objective, *history.pareto)]


def searched_for(trial: Trial, history: Ledger) -> list[float]:
    """Return a trial's objective and the further metrics, as fractions."""
    return [trial.objective or 0.0, *(trial.metrics[f"val_{name}"] for name in history.pareto)]


class _Dot(NamedTuple):
    row: list[float]
    text: str
    colour: str
    chosen: bool


def fronts(study: Study, history: Ledger) -> list[Figure]:
    """Return each further metric that was searched for against the objective, if there is one.

    Trials are grey that another one beats in all of them together; a ring is around the chosen one.
    """
    trials = [trial for trial in study.searched if trial.objective is not None]
    shown = _searched_metrics(history)
    if len(shown) == 1 or len(trials) < 2:
        return []
    rows = [searched_for(trial, history) for trial in trials]
    signs = [-1 if found.higher else 1 for found in shown]
    kept = unbeaten([tuple(map(operator.mul, signs, row)) for row in rows])
    tones = colours(trial.number for trial in trials)
    dots = [
        _Dot(row, _told(trial, shown, row), tones[trial.number] * on, trial is study.chosen_trial)
        for trial, row, on in zip(trials, rows, kept, strict=True)
    ]
    if len(dots) > DOTS:
        others = [dot for dot in dots if not (dot.colour or dot.chosen)]
        dots = thinned(others, DOTS) + [dot for dot in dots if dot.colour or dot.chosen]
    return [_front(shown, place, dots) for place in range(1, len(shown))]


def _told(trial: Trial, shown: Sequence[Column], row: Sequence[float]) -> str:
    names = ["objective", *(found.label for found in shown[1:])]
    figures = [f"{n} {c.show(value)}" for n, c, value in zip(names, shown, row, strict=True)]
    parameters = [f"{name} {value}" for name, value in trial.parameters.items()]
    return f"trial {trial.number}: {', '.join(figures)}; {', '.join(parameters)}"


def _front(shown: Sequence[Column], place: int, dots: Sequence[_Dot]) -> Figure:
    across, up = shown[0], shown[place]
    points = [(across.factor * dot.row[0], up.factor * dot.row[place]) for dot in dots]
    x, y = (fitting(values) for values in zip(*points, strict=True))
    title = f"{up.label} against {across.label}"
    chart = Chart(SLICE, x, y, f"validation {title}")
    chart.frame(labelled(x.ticks(3)), labelled(y.ticks(4)))
    for dot, point in zip(dots, points, strict=True):
        if dot.chosen:
            chart.dot(*point, 7, "ring")
        style = "mark search" if dot.colour else "mark beaten"
        chart.dot(*point, 3.6, style, dot.text, dot.colour)
    return Figure(title, chart)


def _are_names(values: Iterable[object]) -> bool:
    return any(isinstance(value, bool | str) for value in values)


def _horizontal(values: Sequence[Any]) -> tuple[list[float], Axis, list[tuple[float, str]]]:
    """Return where values of a parameter stand, the axis, its ticks; names stand side by side."""
    if _are_names(values):
        order = sorted({str(value) for value in values})
        places = [float(order.index(str(value))) for value in values]
        return places, Axis(-0.6, len(order) - 0.4), list(enumerate(order))
    places = [float(value) for value in values]
    axis = fitting(places, margin=0.08)
    return places, axis, list(labelled(axis.ticks(3)))


def best_trials(study: Study, metric: str = "") -> list[Trial]:
    """Return the search trials with a curve (of a metric), the chosen one first, then the best."""
    trials = [t for t in study.searched if (len(t.curve(metric)[0]) if metric else t.epochs) > 1]

    def key(trial: Trial) -> tuple[bool, float]:
        objective = math.inf if trial.objective is None else trial.objective
        return trial is not study.chosen_trial, objective

    return sorted(trials, key=key)


def learning_curves(study: Study, trials: Sequence[Trial]) -> list[Figure]:
    """Return validation ECE and accuracy by epoch, a line a trial, coloured by its number."""
    tones = colours(trial.number for trial in trials)
    named = [(trial, f"trial {trial.number}", tones[trial.number]) for trial in reversed(trials)]
    figures = []
    for metric in ("ece", "acc"):
        lines = [_line(trial, f"val_{metric}", study, *words) for trial, *words in named]
        figures += _by_epoch(f"validation {column(metric).label} % by epoch", lines)
    return figures


def retention(title: str, study: Study, trials: Sequence[Trial]) -> list[Figure]:
    """Return the probability q that MaC-Cal keeps a weight with, by epoch, coloured by gamma.

    Trials of further seeds are dashed.
    """
    tones = colours(map(gamma, trials))
    lines = [
        _line(trial, "q", study, f"gamma {gamma(trial):.4g}", tones[gamma(trial)])
        for trial in reversed(trials)
    ]
    return _by_epoch(title, lines, Axis(0.0, 1.05))


def gamma(trial: Trial) -> float:
    """Return the gamma of the part that comes last: the refinement's, not the loss's."""
    found = [float(part["gamma"]) for part in trial.configuration.values() if "gamma" in part]
    return found[-1] if found else math.nan


class _Line(NamedTuple):
    points: list[Point]
    style: str
    text: str
    colour: str


def _line(trial: Trial, metric: str, study: Study, text: str, colour: str) -> _Line:
    """Return a trial's curve; one of the search may be the chosen one, another is of a seed."""
    factor = column(metric[4:]).factor if metric.startswith("val_") else 1.0
    found = zip(*trial.curve(metric), strict=True)
    points = thinned([(float(step), factor * v) for step, v in found if math.isfinite(v)])
    style = "chosen" if trial is study.chosen_trial else ""
    return _Line(points, style if trial.role == "search" else "seed", text, colour)


def _by_epoch(title: str, lines: Iterable[_Line], y: Axis | None = None) -> list[Figure]:
    """Return the chart of some lines, or nothing where none has two points."""
    drawn = [line for line in lines if len(line.points) > 1]
    if not drawn:
        return []
    steps = [step for line in drawn for step, _ in line.points]
    x = Axis(min(steps), max(steps))
    y = y or fitting(value for line in drawn for _, value in line.points)
    chart = Chart(CURVE, x, y, title)
    ticks = [tick for tick in x.ticks(4) if tick == round(tick)]
    chart.frame(labelled(ticks), labelled(y.ticks(4)))
    for line in drawn:
        chart.line(line.points, f"trial {line.style}".rstrip(), line.text, line.colour)
    return [Figure(title, chart)]

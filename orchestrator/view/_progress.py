"""Charts of recipes: the best objective so far by trial, and learning curves over seeds."""

import json
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from statistics import median
from typing import Any

from orchestrator.storage.ledger import Ledger, Study, Trial
from orchestrator.storage.results import trials_of_choice
from orchestrator.tables.columns import Column, column
from orchestrator.view._search import dots, in_unit, sampled
from trainables.charts.chart import (
    Chart,
    Spec,
    amount,
    curves,
    drawn,
    layer,
    names,
    pick,
    spread_widely,
    thinned,
    tips,
)

HEIGHT = 240
NAMED, LINE = 8, 9  # Recipes with a colour; pixels for each in a legend of two columns.
WHOLE = {"tickMinStep": 1, "format": "d"}


def progress(history: Ledger) -> list[Chart]:
    """Return the charts of all recipes, task by task."""
    tasks = defaultdict[str, list[Study]](list)
    for study in history.studies.values():
        tasks[study.task].append(study)
    charts = []
    for task, studies in tasks.items():
        ending = f", {task}" if len(tasks) > 1 else ""
        named = [study.recipe for study in sorted(studies, key=_lowest)[:NAMED]]
        studies.sort(key=lambda study: study.recipe in named)  # The last ones are in front.
        charts += best_by_recipe(studies, history, named, ending)
        charts += over_seeds(studies, named, ending)
    return charts


def _lowest(study: Study) -> float:
    return min((trial.objective or 0.0 for trial in study.scored), default=math.inf)


def best_by_recipe(
    studies: Sequence[Study], history: Ledger, named: Sequence[str], ending: str = ""
) -> list[Chart]:
    """Return the chart of each recipe's lowest objective so far; ``named`` recipes have colours."""
    scored = {study.recipe: study.scored for study in studies}
    if max(map(len, scored.values()), default=0) < 2:
        return []
    shown = column(history.objective)
    rows = [row for recipe, trials in scored.items() for row in _bests(recipe, trials, shown)]
    title = f"best validation {in_unit(shown)} so far by trial{ending}"
    click, opacity = pick("recipe")
    looks = {**_coloured(scored, named), "opacity": opacity}
    line = _line(shown, rows, looks, params=[click])
    return [drawn(title, title, [line], rows, height=_height(len(named)))]


def best_of_study(study: Study, history: Ledger) -> list[Chart]:
    """Return the chart of each trial's objective and the lowest so far; many trials are sampled."""
    scored, shown = study.scored, column(history.objective)
    if len(scored) < 2:
        return []
    every = [
        {**_point(trial, trial.objective, shown), "chosen": trial is study.chosen_trial}
        for trial in sampled(scored, study)
    ]
    rows = list(_bests(study.recipe, scored, shown))
    line = _line(shown, every, {"color": {"value": "var(--reference)"}}, rows=rows)
    at = {channel: line["encoding"][channel] for channel in ("x", "y")}
    tip = tips(trial="trial", value=f"validation {in_unit(shown)}")
    points = dots({**at, "tooltip": tip}, every, [row["trial"] for row in every])
    label = f"validation {in_unit(shown)} by trial, and the best so far"
    return [drawn("best so far", label, [line, *points], every)]


def _line(shown: Column, heights: Iterable[Spec], looks: Spec, **more: Any) -> Spec:
    """Return the line of the best objective so far, on an axis that suits ``heights``."""
    unit = f"validation {in_unit(shown)}"
    encoding = {
        "x": amount("trial", "trial number", axis=WHOLE),
        "y": amount("value", unit, log=spread_widely(row["value"] for row in heights)),
        "tooltip": tips(recipe="recipe", trial="trial", value=f"best {unit} so far"),
    }
    looks = {**encoding, **looks}
    return layer("best", "line", looks, interpolate="step-after", point={"size": 25}, **more)


def _point(trial: Trial, objective: float | None, shown: Column) -> Spec:
    return {"trial": trial.number, "value": shown.factor * (objective or 0.0)}


def _bests(recipe: str, trials: Sequence[Trial], shown: Column) -> Iterable[Spec]:
    """Yield a point for each trial that was the best so far, and for the last trial."""
    best = math.inf
    for trial in trials:
        objective = trial.objective or 0.0
        if objective < best or trial is trials[-1]:
            best = min(best, objective)
            yield {"recipe": recipe, **_point(trial, best, shown)}


def _coloured(recipes: Collection[str], named: Sequence[str]) -> Spec:
    """Return the channels that distinguish recipes: ``named`` have colours, others are grey."""
    known = [recipe for recipe in recipes if recipe in named]
    legend = {"orient": "bottom", "columns": 2, "labelLimit": 130}
    colour = names("recipe", "recipe", scale={"domain": known}, legend=legend)
    if len(known) == len(recipes):
        return {"color": colour}
    test = f"indexof({json.dumps(known)}, datum.recipe) >= 0"
    grey = {"condition": {"test": test, **colour}, "value": "var(--reference)"}
    return {"color": grey, "detail": {"field": "recipe"}}


def _height(recipes: int) -> int:
    """Return the height of a chart with this many recipes in its legend."""
    return HEIGHT + LINE * recipes


def over_seeds(
    studies: Sequence[Study], named: Sequence[str], ending: str = "", fewest: int = 1
) -> list[Chart]:
    """Return charts of validation ECE and accuracy by epoch of the chosen configurations.

    A line is the median over seeds; the area around it is the range. Recipes without a choice, with
    one epoch, or with fewer than ``fewest`` seeds are skipped.
    """
    charts = []
    for metric in ("ece", "acc"):
        bands = (_band(study, metric) for study in studies)
        rows = [row for row in bands if row and max(row["seeds"]) >= fewest]
        if rows:
            unit = f"validation {column(metric).label} %"
            charts.append(_bands(f"{unit} by epoch, range over seeds{ending}", unit, rows, named))
    return charts


def _band(study: Study, metric: str) -> Spec | None:
    """Return a metric's median and range over seeds by epoch, in %.

    The result is None without a chosen configuration, or below two epochs.
    """
    chosen = study.chosen_trial
    if chosen is None:
        return None
    values = defaultdict[int, list[float]](list)
    for trial in trials_of_choice(study, chosen, study.begun.values()):
        for step, value in zip(*trial.curve(f"val_{metric}"), strict=True):
            values[step].append(100 * value)
    if len(values) < 2:
        return None
    steps, found = zip(*thinned(sorted(values.items())), strict=True)
    return {
        **{"recipe": study.recipe, "epoch": list(steps), "seeds": list(map(len, found))},
        **{"value": list(map(median, found)), "low": list(map(min, found))},
        "high": list(map(max, found)),
    }


def _bands(title: str, unit: str, rows: Sequence[Spec], named: Sequence[str]) -> Chart:
    click, opacity = pick("recipe")
    log = spread_widely(value for row in rows for value in (*row["low"], *row["high"]))
    x = amount("epoch", "epoch", axis=WHOLE)
    y = {name: amount(name, unit, log=log) for name in ("value", "low")}
    titles = {"value": "median over seeds", "low": "lowest", "high": "highest", "seeds": "seeds"}
    tip = tips(recipe="recipe", epoch="epoch", **titles)
    looks = {"x": x, **_coloured([row["recipe"] for row in rows], named)}
    faint = {"condition": {**opacity["condition"], "value": 0.2}, "value": 0.03}
    band = {**looks, "y": y["low"], "y2": {"field": "high"}, "fillOpacity": faint}
    line = {**looks, "y": y["value"], "strokeOpacity": opacity, "tooltip": tip}
    layers = [
        layer("band", "area", band),
        layer("median", "line", line, params=[click], point="transparent"),
    ]
    flat = curves("epoch", "value", "low", "high", "seeds")
    return drawn(title, title, layers, rows, height=_height(len(named)), transform=flat)

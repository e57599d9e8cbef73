"""Charts of the search: metrics by parameter, Pareto fronts, learning curves, MaC-Cal's q."""

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from orchestrator.storage.ledger import Ledger, Study, Trial
from orchestrator.tables.columns import Column, column
from orchestrator.view._scatter import unbeaten
from trainables.charts.chart import (
    ZOOM,
    Chart,
    Spec,
    amount,
    curves,
    drawn,
    layer,
    names,
    pick,
    ramp,
    spread_widely,
    thinned,
    tips,
)

CURVES = ("val_ece", "val_acc", "q", "spared")  # Metrics that are drawn by epoch.
DOTS = 400  # About the maximum number of trials in one chart: more would overlap.


def in_unit(shown: Column) -> str:
    """Return a metric's label with its unit."""
    return f"{shown.label} %" if shown.factor == 100 else shown.label


def searched_parameters(study: Study) -> dict[str, list[Trial]]:
    """Return ``{parameter: scored trials}`` for parameters with several different values."""
    scored = study.scored
    found = dict.fromkeys(chain.from_iterable(trial.parameters for trial in scored))
    trials = {name: [trial for trial in scored if name in trial.parameters] for name in found}
    return {name: own for name, own in trials.items() if _vary(name, own)}


def _vary(name: str, trials: Sequence[Trial]) -> bool:
    first = trials[0].parameters[name]
    return any(trial.parameters[name] != first for trial in trials)


def objective_by_parameter(
    study: Study, history: Ledger, searched: Mapping[str, Sequence[Trial]]
) -> list[Chart]:
    """Return charts of the objective and of each metric in ``pareto`` by searched parameter."""
    charts, chosen = list[Chart](), study.chosen_trial
    numbers = [trial.number for trials in searched.values() for trial in (trials[0], trials[-1])]
    shown = _searched_metrics(history)
    for name, found in searched.items():
        kept = sampled(found, study)
        for index, metric in enumerate(shown):
            heights = [metric.factor * searched_for(trial, history)[index] for trial in kept]
            rows = [
                {
                    **{"x": trial.parameters[name], "value": str(trial.parameters[name])},
                    **{"y": height, "told": f"{height:.4g}", "trial": trial.number},
                    "chosen": trial is chosen,
                }
                for trial, height in zip(kept, heights, strict=True)
            ]
            word = metric.label if index else "objective"
            chart = _slice(name, metric, word, rows, numbers, joined=len(searched) == 1)
            title = f"{metric.label}, {name}" if len(shown) > 1 else name
            charts.append(replace(chart, title=title))
    return charts


def sampled(trials: Sequence[Trial], study: Study) -> list[Trial]:
    """Return at most about ``DOTS`` of the trials, including the chosen one."""
    kept, chosen = thinned(trials, DOTS), study.chosen_trial
    if any(trial is chosen for trial in kept):
        return kept
    return kept + [trial for trial in trials if trial is chosen]


def _slice(
    name: str, shown: Column, word: str, rows: list[Spec], numbers: Sequence[int], joined: bool
) -> Chart:
    """Return the chart of a metric by a parameter; ``numbers`` set the ends of the colour scale."""
    are_names = any(isinstance(row["x"], bool | str) for row in rows)
    if are_names:
        x = names("value", name, axis={"labelAngle": 0})
    else:
        x = amount("x", name, log=spread_widely(float(row["x"]) for row in rows))
    y = amount("y", f"validation {in_unit(shown)}", log=spread_widely(row["y"] for row in rows))
    tip = tips(trial="trial", value=name, told=word)
    layers = dots({"x": x, "y": y, "tooltip": tip}, rows, numbers, zoom=not are_names)
    if joined and not are_names:
        layers.insert(0, layer("other", "line", {"x": x, "y": y}, tone="reference"))
    return drawn("", f"validation {shown.label} against {name}", layers, rows)


def dots(
    encoding: Spec, rows: Sequence[Spec], numbers: Sequence[int], zoom: bool = True
) -> list[Spec]:
    """Return a layer of dots, one per trial and selectable, and a ring around the chosen trial."""
    click, opacity = pick("trial")
    at = {name: encoding[name] for name in ("x", "y")}
    chosen = [row for row in rows if row["chosen"]]
    colour = {"color": ramp("trial", "trial", numbers), "opacity": opacity}
    params = [click, ZOOM] if zoom else [click]
    # Vega warns of a layer without rows.
    ring = [layer("ring", "point", at, chosen, size=180, tone="ink")] if chosen else []
    every = layer("search", "point", {**encoding, **colour}, params=params, filled=True, size=50)
    return [*ring, every]


def _searched_metrics(history: Ledger) -> list[Column]:
    return [column(name) for name in (history.objective, *history.pareto)]


def searched_for(trial: Trial, history: Ledger) -> list[float]:
    """Return a trial's objective and its metrics in ``pareto``: fractions, or nats for NLL."""
    return [trial.objective or 0.0, *(trial.metrics[f"val_{name}"] for name in history.pareto)]


def fronts(study: Study, history: Ledger) -> list[Chart]:
    """Return a chart of each further searched metric against the objective.

    Dominated trials are grey. There is no chart if the search has only the objective, or fewer than
    two trials with a score.
    """
    trials, shown = study.scored if history.pareto else [], _searched_metrics(history)
    if len(trials) < 2:
        return []
    rows = [searched_for(trial, history) for trial in trials]
    signs = [-1 if found.higher else 1 for found in shown]
    kept = unbeaten([tuple(map(operator.mul, signs, row)) for row in rows])
    all_dots = [
        {**_dot(trial, shown, row), "kept": on, "chosen": trial is study.chosen_trial}
        for trial, row, on in zip(trials, rows, kept, strict=True)
    ]
    if len(all_dots) > DOTS:
        others = [dot for dot in all_dots if not (dot["kept"] or dot["chosen"])]
        all_dots = thinned(others, DOTS) + [d for d in all_dots if d["kept"] or d["chosen"]]
    return [_front(shown, place, all_dots) for place in range(1, len(shown))]


def _dot(trial: Trial, shown: Sequence[Column], row: Sequence[float]) -> Spec:
    """Return a trial's metrics ``m0``, ``m1``, ..., as numbers and as texts."""
    figures = {f"m{place}": c.factor * row[place] for place, c in enumerate(shown)}
    texts = {f"told{place}": c.show(row[place]) for place, c in enumerate(shown)}
    parameters = ", ".join(f"{name} {value}" for name, value in trial.parameters.items())
    return {**figures, **texts, "trial": trial.number, "parameters": parameters}


def _front(shown: Sequence[Column], place: int, rows: Sequence[Spec]) -> Chart:
    at = {
        channel: amount(
            f"m{index}",
            f"validation {in_unit(shown[index])}",
            log=spread_widely(row[f"m{index}"] for row in rows),
        )
        for channel, index in (("x", 0), ("y", place))
    }
    words = ["objective", *(metric.label for metric in shown[1:])]
    titles = {f"told{index}": word for index, word in enumerate(words)}
    tip = tips(trial="trial", **titles, parameters="parameters")
    layers = dots({**at, "tooltip": tip}, rows, [row["trial"] for row in rows])
    search = layers[-1]["encoding"]
    search["color"] = {
        "condition": {"test": "datum.kept", **search["color"]},
        "value": "var(--reference)",
    }
    title = f"{shown[place].label} against {shown[0].label}"
    return drawn(title, f"validation {title}", layers, rows)


def best_trials(study: Study, metric: str = "") -> list[Trial]:
    """Return the search trials with a curve: the chosen trial first, the others by objective.

    A curve has at least two epochs; with ``metric``, at least two values of that metric.
    """
    trials = [t for t in study.searched if (len(t.curve(metric)[0]) if metric else t.epochs) > 1]

    def key(trial: Trial) -> tuple[bool, float]:
        objective = math.inf if trial.objective is None else trial.objective
        return trial is not study.chosen_trial, objective

    return sorted(trials, key=key)


def learning_curves(study: Study, trials: Sequence[Trial]) -> list[Chart]:
    """Return charts of validation ECE and accuracy by epoch.

    For margin losses there is also the share of samples without penalty.
    """
    figures = []
    for metric in ("ece", "acc"):
        unit = f"validation {column(metric).label} %"
        lines = [_line(trial, f"val_{metric}", study) for trial in reversed(trials)]
        figures += _by_epoch(f"{unit} by epoch", lines, "trial", unit)
    lines, unit = [_line(trial, "spared", study) for trial in reversed(trials)], "spared samples"
    scale = {"domain": [0, 1.05], "padding": 0}
    return figures + _by_epoch(
        "share of samples without penalty by epoch", lines, "trial", unit, scale
    )


def retention(title: str, study: Study, trials: Sequence[Trial]) -> list[Chart]:
    """Return the chart of MaC-Cal's retention probability q by epoch; further seeds are dashed."""
    lines = [{**_line(trial, "q", study), "gamma": gamma(trial)} for trial in reversed(trials)]
    scale = {"domain": [0, 1.05], "padding": 0}
    return _by_epoch(title, lines, "gamma", "retention probability q", scale)


def gamma(trial: Trial) -> float | None:
    """Return the gamma of the recipe's last part that has one; None if no part has it."""
    gammas = [float(part["gamma"]) for part in trial.configuration.values() if "gamma" in part]
    return gammas[-1] if gammas else None


def _line(trial: Trial, metric: str, study: Study) -> Spec:
    """Return a trial's curve; its field ``seed`` is False for search trials."""
    factor = column(metric[4:]).factor if metric.startswith("val_") else 1.0
    found = zip(*trial.curve(metric), strict=True)
    points = thinned([(step, factor * v) for step, v in found if math.isfinite(v)])
    seed = trial.role != "search"
    return {
        **{"epoch": [step for step, _ in points], "value": [height for _, height in points]},
        **{"trial": trial.number, "line": trial.key, "seed": seed},
        "chosen": not seed and trial is study.chosen_trial,
    }


def _by_epoch(
    title: str, lines: Iterable[Spec], tone: str, unit: str, scale: Spec | None = None
) -> list[Chart]:
    """Return a chart of lines, coloured by the field ``tone``; [] if no line has two points."""
    rows = [line for line in lines if len(line["epoch"]) > 1]
    if not rows:
        return []
    log = scale is None and spread_widely(value for row in rows for value in row["value"])
    click, opacity = pick("trial")
    encoding = {
        "x": amount("epoch", "epoch", axis={"tickMinStep": 1, "format": "d"}),
        "y": amount("value", unit, log=log, scale=scale or {}),
        "detail": {"field": "line"},
        "color": ramp(tone, tone, (row[tone] for row in rows)),
        "strokeOpacity": opacity,
        "strokeWidth": {"condition": {"test": "datum.chosen", "value": 3}, "value": 1.4},
        "strokeDash": {"condition": {"test": "datum.seed", "value": [5, 3]}, "value": [1, 0]},
        "tooltip": tips(**{"trial": "trial", tone: tone, "epoch": "epoch", "value": unit}),
    }
    shown = layer("trial", "line", encoding, params=[click], point="transparent")
    return [drawn(title, title, [shown], rows, transform=curves("epoch", "value"))]

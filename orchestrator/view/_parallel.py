"""Parallel coordinates of a study: searched parameters and objective, one line per trial."""

import math
import operator
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from orchestrator.storage.ledger import Ledger, Study, Trial
from orchestrator.tables.columns import column
from orchestrator.view._search import in_unit, sampled
from trainables.charts.chart import (
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
    tips,
)

Value = bool | int | float | str
MARKS = 3  # Number of marks on a numeric axis.
LABEL: Spec = {"align": "left", "dx": 4, "fontSize": 11, "clip": False}


class _Axis(NamedTuple):
    """One axis: the trials' ``places``, from 0 (lowest) to 1, and the ``marks``."""

    name: str
    values: Sequence[Value]
    places: Sequence[float]
    marks: Sequence[tuple[float, str]]


def parallel_coordinates(
    study: Study, history: Ledger, searched: Mapping[str, Sequence[Trial]]
) -> list[Chart]:
    """Return a chart of the trials that have all searched parameters, or of a sample of them.

    There is no chart with fewer than two parameters or trials.
    """
    shown = column(history.objective)
    whole = [trial for trial in study.scored if searched.keys() <= trial.parameters.keys()]
    if len(searched) < 2 or len(whole) < 2:
        return []
    kept = sampled(whole, study)
    objectives = [shown.factor * (trial.objective or 0.0) for trial in kept]
    unit = f"validation {in_unit(shown)}"
    axes = [_axis(name, [trial.parameters[name] for trial in kept]) for name in searched]
    axes.append(_axis(unit, objectives))
    lines = [
        {
            **{"trial": trial.number, "objective": objective},
            "chosen": trial is study.chosen_trial,
            "axis": [axis.name for axis in axes],
            "place": [axis.places[index] for axis in axes],
            "told": [_text(axis.values[index], 5) for axis in axes],
        }
        for index, (trial, objective) in enumerate(zip(kept, objectives, strict=True))
    ]
    label = f"searched parameters and {unit} of each trial"
    lines.sort(key=operator.itemgetter("chosen"))  # The thick line is on top.
    return [drawn("", label, _layers(axes, unit, lines), height=320, width=900)]


def _axis(name: str, values: Sequence[Value]) -> _Axis:
    if any(isinstance(value, bool | str) for value in values):
        known = sorted(set(values), key=str)
        place = {value: index / max(1, len(known) - 1) for index, value in enumerate(known)}
        marks = [(at, _text(value, 3)) for value, at in place.items()]
        return _Axis(name, values, [place[value] for value in values], marks)
    log = spread_widely(map(float, values))
    heights = [math.log(float(value)) if log else float(value) for value in values]
    low, high = min(heights), max(heights)
    places = [(height - low) / (high - low) if high > low else 0.0 for height in heights]
    ends = [low + (high - low) * step / (MARKS - 1) for step in range(MARKS)]
    found = [math.exp(end) if log else end for end in ends]
    marks = [(step / (MARKS - 1), _text(value, 3)) for step, value in enumerate(found)]
    return _Axis(name, values, places, marks if high > low else marks[:1])


def _text(value: Value, digits: int) -> str:
    is_name = isinstance(value, bool | str)
    return str(value) if is_name else f"{value:.{digits}g}"


def _layers(axes: Sequence[_Axis], unit: str, lines: Sequence[Spec]) -> list[Spec]:
    click, opacity = pick("trial")
    domain = [axis.name for axis in axes]
    title = "searched parameter; the last axis is the objective"
    axis = {"labelAngle": -20 if len(axes) > 5 else 0, "labelLimit": 110, "domain": False}
    x = names("axis", title, scale={"domain": domain}, axis=axis)
    bounds = {"domain": [0, 1], "padding": 0}
    unmarked = {"labels": False, "ticks": False, "grid": False, "domain": False}
    y = amount("place", "lowest to highest value", scale=bounds, axis=unmarked)
    colour = ramp("objective", unit, (line["objective"] for line in lines))
    encoding: Spec = {
        **{"x": x, "y": y, "detail": {"field": "trial"}, "strokeOpacity": opacity},
        "color": {**colour, "legend": None},
        "strokeWidth": {"condition": {"test": "datum.chosen", "value": 3.5}, "value": 1.2},
        "tooltip": tips(trial="trial", axis="axis", told="value", objective=unit),
    }
    ends = [{"axis": name, "place": 0, "end": 1} for name in domain]
    marks = [
        {"axis": axis.name, "place": at, "text": text} for axis in axes for at, text in axis.marks
    ]
    flat = curves("axis", "place", "told")
    text = {"x": x, "y": y, "text": {"field": "text"}}
    return [
        layer("axes", "rule", {"x": x, "y": y, "y2": {"field": "end"}}, ends, tone="soft"),
        layer(
            "trial", "line", encoding, lines, params=[click], transform=flat, point="transparent"
        ),
        layer("halo", "text", text, marks, stroke="var(--paper)", strokeWidth=3, **LABEL),
        layer("marks", "text", text, marks, **LABEL),
    ]

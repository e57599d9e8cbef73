"""Plots of a sweep from its journal: slices of the search, learning curves, MaC-Cal's q."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator._history import History, StudyHistory, TrialHistory, read_history
from orchestrator._table import COLUMNS
from trainables.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["write_plots"]

DPI = 150
CHOSEN = "#c1272d"
WIDE = 20.0  # Ratio of the largest to the smallest value from which an axis is logarithmic.
DECADES = 90.0  # Ratio from which only powers of ten have room for a tick's label.
PANELS = 4  # Slices side by side.
CURVES = ("ece", "acc")


def write_plots(events: Iterable[Mapping[str, Any]], directory: str | Path) -> list[Path]:
    """Draw what a journal tells and write it as PNG files, named by study and kind of plot.

    ``-slice``: each searched parameter against the objective, one point a trial, coloured by its
    number, the chosen one marked; for studies of several trials. ``-learning``: validation ECE and
    accuracy per epoch, one line a trial. ``-q``: for trials that report it, MaC-Cal's retention
    probability per epoch, coloured by gamma.

    Needs no display, and touches no global state of matplotlib.

    Args:
        events: The events of one journal, from its start; the sweep may still be running.
        directory: Where to write; made if it is missing.

    Returns:
        The files, in the order of the studies; a study without anything to draw has none.

    Raises:
        InputError: If the directory cannot be written.
    """
    history = read_history(events)
    folder = Path(directory)
    written = []
    for study in history.studies.values():
        for kind, figure in _figures(study, history):
            path = folder / f"{_file_name(study.name)}-{kind}.png"
            try:
                folder.mkdir(parents=True, exist_ok=True)
                figure.savefig(path, dpi=DPI)
            except OSError as error:
                raise InputError(f"plot {path} cannot be written: {error.strerror}") from error
            written.append(path)
    return written


def _file_name(study: str) -> str:
    return re.sub(r"[^A-Za-z0-9.+-]+", "-", study.replace("|", "--"))


def _figures(study: StudyHistory, history: History) -> list[tuple[str, Figure]]:
    drawn = (
        ("slice", _slice_figure(study, history)),
        ("learning", _learning_figure(study)),
        ("q", _retention_figure(study)),
    )
    return [(kind, figure) for kind, figure in drawn if figure is not None]


def _new_figure(title: str, width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, parse_math=False, fontsize="medium")
    return figure


def _slice_figure(study: StudyHistory, history: History) -> Figure | None:
    """Draw each searched parameter that varies against the objective."""
    trials = [trial for trial in study.searched if trial.objective is not None]
    names = [name for name in _parameters(trials) if len(_values(trials, name)) > 1]
    if not names:
        return None
    rows, columns = -(-len(names) // PANELS), min(len(names), PANELS)
    figure = _new_figure(study.name, 1.2 + 2.9 * max(columns, 2), 0.7 + 2.9 * rows)
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True)
    colours = _Palette("viridis", [trial.number for trial in trials])
    for position, axes in enumerate(panels.flat):
        if position >= len(names):
            axes.set_visible(False)
            continue
        _draw_slice(axes, trials, names[position], history, colours, study.chosen_trial)
        if len(names) == 1:
            _join(axes, trials, names[0], history)
    for row in panels:
        row[0].set_ylabel(_objective_label(history))
    # Inside the axes it would hide points, which lie anywhere.
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center")
    if len(trials) > 1:
        figure.colorbar(colours.mappable, ax=panels, label="trial", ticks=_whole_ticks(trials))
    return figure


def _parameters(trials: Sequence[TrialHistory]) -> list[str]:
    return list(dict.fromkeys(name for trial in trials for name in trial.parameters))


def _values(trials: Sequence[TrialHistory], name: str) -> list[Any]:
    return list(dict.fromkeys(trial.parameters[name] for trial in trials))


def _draw_slice(
    axes: Axes,
    trials: Sequence[TrialHistory],
    name: str,
    history: History,
    colours: _Palette,
    chosen: TrialHistory | None,
) -> None:
    places, heights = _points(trials, name, history)
    shown = [colours(trial.number) for trial in trials]
    axes.scatter(places, heights, 32, shown, edgecolors="white", linewidths=0.5, zorder=3)
    if chosen is not None and chosen in trials:
        x, y = _points([chosen], name, history, trials)
        ring = axes.scatter(x, y, 130, zorder=4, label="chosen", linewidths=1.8)
        ring.set(facecolor="none", edgecolor=CHOSEN)
    values = _values(trials, name)
    if _is_category(values):
        axes.set_xticks(range(len(values)), [str(value) for value in sorted(values, key=str)])
        axes.margins(x=0.25)
    elif _is_wide(values):
        _make_logarithmic(axes, "x", values)
    if _is_wide(heights):
        _make_logarithmic(axes, "y", heights)
    axes.set_xlabel(name)
    axes.grid(alpha=0.25)


def _points(
    trials: Sequence[TrialHistory],
    name: str,
    history: History,
    among: Sequence[TrialHistory] | None = None,
) -> tuple[list[float], list[float]]:
    """Return the places of trials; categories stand side by side in the order of their names."""
    values = _values(among or trials, name)
    if _is_category(values):
        order = {value: place for place, value in enumerate(sorted(values, key=str))}
        places = [float(order[trial.parameters[name]]) for trial in trials]
    else:
        places = [float(trial.parameters[name]) for trial in trials]
    factor = COLUMNS[history.objective].factor
    return places, [factor * trial.objective for trial in trials if trial.objective is not None]


def _join(axes: Axes, trials: Sequence[TrialHistory], name: str, history: History) -> None:
    """Join the points of a curve: where a single number varies, once a value."""
    values = _values(trials, name)
    if _is_category(values) or len(values) != len(trials):
        return
    ordered = sorted(zip(*_points(trials, name, history), strict=True))
    axes.plot(*zip(*ordered, strict=True), color="0.6", linewidth=1, zorder=2)


def _is_category(values: Sequence[Any]) -> bool:
    return any(isinstance(value, bool | str) for value in values)


def _is_wide(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) / min(values) > WIDE


def _make_logarithmic(axes: Axes, which: str, values: Sequence[float]) -> None:
    """Make an axis logarithmic, with ticks in plain figures, fewer over many decades."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    steps = (1.0, 2.0, 5.0) if max(values) / min(values) < DECADES else (1.0,)
    axes.set(**{f"{which}scale": "log"})
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(LogLocator(subs=steps))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _objective_label(history: History) -> str:
    label = f"validation {_label(history.objective)}"
    return f"{label}\n+ lost accuracy beyond tolerance" if history.guarded else label


def _label(metric: str) -> str:
    column = COLUMNS[metric]
    return f"{column.label} %" if column.factor == 100 else column.label


def _learning_figure(study: StudyHistory) -> Figure | None:
    """Draw validation ECE and accuracy of each trial per epoch."""
    trials = [trial for trial in study.searched if len(trial.epochs) > 1]
    if not trials:
        return None
    figure = _new_figure(study.name, 8.4, 3.8)
    panels = figure.subplots(1, len(CURVES))
    colours = _Palette("viridis", [trial.number for trial in trials])
    for axes, metric in zip(panels, CURVES, strict=True):
        heights: list[float] = []
        for trial in trials:
            marked = trial is study.chosen_trial
            heights += _draw_curve(axes, trial, metric, colours, marked and len(trials) > 1)
        if metric == "ece" and heights and _is_wide(heights):
            _make_logarithmic(axes, "y", heights)
        axes.set(xlabel="epoch", ylabel=f"validation {_label(metric)}")
        axes.grid(alpha=0.25)
    if len(trials) > 1:
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center")
        figure.colorbar(colours.mappable, ax=panels, label="trial", ticks=_whole_ticks(trials))
    return figure


def _draw_curve(
    axes: Axes, trial: TrialHistory, metric: str, colours: _Palette, marked: bool
) -> list[float]:
    steps, values = trial.curve(f"val_{metric}")
    heights = [COLUMNS[metric].factor * value for value in values]
    style: dict[str, Any] = {"color": colours(trial.number), "linewidth": 1.1}
    if marked:
        style = {"color": CHOSEN, "linewidth": 2.0, "zorder": 3, "label": "chosen"}
    axes.plot(steps, heights, **style)
    return heights


def _retention_figure(study: StudyHistory) -> Figure | None:
    """Draw q of each trial per epoch, coloured by gamma; further seeds are dashed."""
    trials = [trial for trial in study.trials.values() if trial.curve("q")[0]]
    if not trials:
        return None
    figure = _new_figure(study.name, 6.4, 4.0)
    axes = figure.subplots()
    gammas = sorted({_gamma(trial) for trial in trials})
    # By rank: the interesting values crowd just below 1.
    colours = _Palette("plasma", range(len(gammas)), end=0.9)
    seen = set()
    for trial in sorted(trials, key=lambda trial: (_gamma(trial), trial.role)):
        gamma = _gamma(trial)
        axes.plot(
            *trial.curve("q"),
            color=colours(gammas.index(gamma)),
            linewidth=1.4,
            linestyle="-" if trial.role == "search" else "--",
            label=None if gamma in seen else f"{gamma:.4g}",
        )
        seen.add(gamma)
    axes.set(xlabel="epoch", ylabel="retention probability q", ylim=(-0.03, 1.03))
    axes.grid(alpha=0.25)
    columns = -(-len(gammas) // 16)
    figure.legend(title="gamma", loc="outside right upper", ncols=columns)
    return figure


def _gamma(trial: TrialHistory) -> float:
    """Return the gamma of the part that comes last: the refinement's, not the loss's."""
    found = [float(part["gamma"]) for part in trial.configuration.values() if "gamma" in part]
    return found[-1] if found else float("nan")


class _Palette:
    """Colours of numbers, from the first ``end`` of a colour map."""

    def __init__(self, name: str, values: Sequence[float], end: float = 1.0) -> None:
        from matplotlib import colormaps
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import Normalize

        low, high = min(values), max(values)
        self._scale = Normalize(low, low + ((high - low) or 1.0) / end)
        self._map = colormaps[name]
        self.mappable = ScalarMappable(self._scale, self._map)

    def __call__(self, value: float) -> tuple[float, float, float, float]:
        """Return red, green, blue and opacity."""
        return self._map(float(self._scale(value)))


def _whole_ticks(trials: Sequence[TrialHistory]) -> list[int]:
    numbers = [trial.number for trial in trials]
    step = max(1, (max(numbers) - min(numbers)) // 8)
    return list(range(min(numbers), max(numbers) + 1, step))

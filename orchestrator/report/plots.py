"""Plots of a sweep from its journal: the report's charts of the search as PNG files."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D

from orchestrator.report import _search
from orchestrator.report._chart import Chart, Figure, Mark
from orchestrator.storage.events import Event
from orchestrator.storage.ledger import Ledger, Study
from orchestrator.tables.columns import column
from trainables.common.errors import InputError

DPI = 150
PIXELS = 72.0  # Of a chart, in an inch.
BESIDE = 4  # Charts side by side.
HEAD, GAP, KEY = 62, 26, 96  # Room above all charts, above each, and for the key, in pixels.
KEYS = 12  # Numbers in a key.
# Colour and width of a style of marks, as the page's style sheet has them on white.
STYLES = {
    "grid": ("#dde1e6", 0.8),
    "tick": ("#59626c", 0.8),
    "other": ("#a9b1ba", 1.0),
    "chosen": ("", 3.0),
    "ring": ("#16191d", 1.4),
    "beaten": ("#a9b1ba", 1.0),
    "": ("#59626c", 1.4),
}


class Plot(NamedTuple):
    """One file: charts side by side, and what their colours mean.

    Attributes:
        kind: ``slice``, ``front``, ``learning`` or ``q``.
        title: What the charts show together.
        measure: What the colours stand for.
        key: Number to its colour.
    """

    kind: str
    title: str
    charts: Sequence[Figure]
    measure: str
    key: Mapping[float, str]


def write_plots(events: Iterable[Event], directory: str | Path) -> list[Path]:
    """Draw what a journal tells and write it as PNG files, named by study and kind of plot.

    ``-slice``: each searched parameter against the objective, one point a trial, coloured by its
    number, the chosen one ringed; for studies of several trials. ``-front``: what was searched
    for beside the objective, against it; grey trials are beaten. ``-learning``: validation ECE and
    accuracy per epoch, one line a trial, the chosen one thick. ``-q``: for trials that report it,
    MaC-Cal's retention probability per epoch, coloured by gamma; further seeds are dashed.

    Needs no display, and touches no global state of matplotlib. The events are those of one journal
    from its start; the sweep may still be running.

    Returns:
        The files, in the order of the studies; a study without anything to draw has none.

    Raises:
        InputError: If the directory cannot be written.
    """
    history = Ledger(events, _search.CURVES)
    folder = Path(directory)
    written = []
    for study in history.studies.values():
        for plot in study_plots(study, history):
            stem = re.sub(r"[^A-Za-z0-9.+-]+", "-", study.name.replace("|", "--"))
            path = folder / f"{stem}-{plot.kind}.png"
            try:
                folder.mkdir(parents=True, exist_ok=True)
                _draw(plot).savefig(path, dpi=DPI)
            except OSError as error:
                raise InputError(f"plot {path} cannot be written: {error.strerror}") from error
            written.append(path)
    return written


def study_plots(study: Study, history: Ledger) -> Iterator[Plot]:
    """Yield the plots of one study that have something to show."""
    shown = column(history.objective)
    objective = f"validation {shown.label}{' %' if shown.factor == 100 else ''}"
    if history.guarded:
        objective += " + lost accuracy beyond tolerance"
    trials = _search.best_trials(study)
    kept = _search.best_trials(study, "q")
    kept += [t for t in study.begun.values() if t.role != "search" and len(t.curve("q")[0]) > 1]
    scored = chain.from_iterable(_search.searched_parameters(study).values())
    slices = _search.objective_by_parameter(study, history)
    fronts = _search.fronts(study, history)
    curves = _search.learning_curves(study, trials)
    retained = _search.retention("retention probability q by epoch", study, kept)
    by_number = [_search.colours(trial.number for trial in part) for part in (scored, trials)]
    by_gamma = _search.colours(map(_search.gamma, kept))
    for plot in (
        Plot("slice", f"{objective} by parameter, ringed: chosen", slices, "trial", by_number[0]),
        Plot("front", "grey: beaten in all, ringed: chosen", fronts, "trial", by_number[0]),
        Plot("learning", "thick: chosen", curves, "trial", by_number[1]),
        Plot("q", "thick: chosen, dashed: further seeds", retained, "gamma", by_gamma),
    ):
        if plot.charts:
            yield plot._replace(title=f"{study.name}\n{plot.title}")


def _draw(plot: Plot) -> Canvas:
    """Put the charts of a plot into rows, the key to their right."""
    width, height = plot.charts[0].chart.size
    rows, columns = -(-len(plot.charts) // BESIDE), min(len(plot.charts), BESIDE)
    wide = max(columns, 2) * (width + GAP) + KEY  # Room for the title even above one chart.
    high = HEAD + rows * (height + GAP)
    canvas = Canvas(figsize=(wide / PIXELS, high / PIXELS))
    FigureCanvasAgg(canvas)
    canvas.text(10 / wide, 1 - 10 / high, plot.title, va="top", parse_math=False)
    for position, (name, chart, _) in enumerate(plot.charts):
        row, place = divmod(position, BESIDE)
        left, top = place * (width + GAP) + 8, HEAD + row * (height + GAP)
        corner = (left / wide, 1 - (top + height) / high)
        axes = canvas.add_axes((*corner, width / wide, height / high))
        axes.set_title(name, loc="left", parse_math=False, fontsize="small")
        _paint(axes, chart)
    _add_key(canvas, plot, columns * (width + GAP) / wide)
    return canvas


def _paint(axes: Axes, chart: Chart) -> None:
    """Draw the marks of a chart into axes whose units are its pixels."""
    axes.set(xlim=(0, chart.size[0]), ylim=(chart.size[1], 0))
    axes.axis("off")
    for mark in chart.marks:
        colour, width = _look(mark)
        x, y = zip(*mark.points, strict=True)
        if mark.tag == "text":
            align = {"start": "left", "middle": "center", "end": "right"}[mark.anchor]
            axes.text(x[0], y[0], mark.text, ha=align, color=colour, fontsize=8, parse_math=False)
        elif mark.tag == "circle":
            face, edge = ("none", colour) if mark.style == "ring" else (colour, "white")
            size = 2 * mark.radius
            axes.plot(x, y, "o", ms=size, mfc=face, mec=edge, mew=width, clip_on=False)
        else:
            dashes = "--" if "seed" in mark.style.split() else "-"
            axes.plot(x, y, dashes, color=colour, linewidth=width, clip_on=False)


def _look(mark: Mark) -> tuple[str, float]:
    """Return colour and width of a mark: those of the last of its styles that has some."""
    named = [style for style in mark.style.split() if style in STYLES]
    colour, width = STYLES[named[-1] if named else ""]
    return mark.colour or colour, width


def _add_key(canvas: Canvas, plot: Plot, left: float) -> None:
    """Name the numbers that the colours stand for, a few of many, right of the charts."""
    numbers = sorted(plot.key)
    step = -(-len(numbers) // KEYS)
    lines = [
        Line2D([], [], color=plot.key[number], linewidth=3, label=f"{number:.4g}")
        for number in numbers[::step]
    ]
    if len(numbers) > 1:
        key = canvas.legend(handles=lines, title=plot.measure, loc="center left", frameon=False)
        key.set_bbox_to_anchor((left, 0.5))

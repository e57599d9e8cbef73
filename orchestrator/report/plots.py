"""Plots of a sweep from its journal: the report's charts of the search as SVG files."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from orchestrator.report import _search
from orchestrator.report._chart import Figure
from orchestrator.report._page import environment
from orchestrator.storage.events import Event
from orchestrator.storage.ledger import Ledger, Study
from orchestrator.tables.columns import column
from trainables.common.errors import UnwrittenError
from trainables.common.files import write_whole, writing

KEYS = 12  # Numbers in a key.


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

    @property
    def shown_key(self) -> list[tuple[str, str]]:
        """Return a few of many numbers with their colours; of a single one nothing."""
        numbers = sorted(self.key) if len(self.key) > 1 else []
        step = -(-len(numbers) // KEYS) or 1
        return [(f"{number:.4g}", self.key[number]) for number in numbers[::step]]


def write_plots(events: Iterable[Event], directory: str | Path) -> list[Path]:
    """Draw what a journal tells and write it as SVG files, named by study and kind of plot.

    ``-slice``: each searched parameter against the objective, and against each further metric that
    was searched for, one point a trial, coloured by its number, the chosen one ringed; for studies
    of several trials. ``-front``: each further searched metric against the objective; grey
    trials are beaten. ``-learning``: validation ECE and accuracy per epoch, one line a trial, the
    chosen one thick. ``-q``: for trials that report it, MaC-Cal's retention probability per epoch,
    coloured by gamma; further seeds are dashed.

    The events are those of one journal from its start; the sweep may still be running.

    Returns:
        The files, in the order of the studies; a study without anything to draw has none.

    Raises:
        UnwrittenError: If the directory cannot be written.
    """
    history = Ledger(events, _search.CURVES)
    folder, template = Path(directory), environment().get_template("plot.svg")
    written, stems = [], set[str]()
    for study in history.studies.values():
        stem = re.sub(r"[^A-Za-z0-9.+-]+", "-", study.name.replace("|", "--"))
        while stem in stems:  # Of a study whose name differs in signs alone.
            stem += "-2"
        stems.add(stem)
        for plot in study_plots(study, history):
            path = folder / f"{stem}-{plot.kind}.svg"
            with writing(f"plot {path}", UnwrittenError):
                folder.mkdir(parents=True, exist_ok=True)
                write_whole(path, template.render(plot=plot))
            written.append(path)
    return written


def study_plots(study: Study, history: Ledger) -> Iterator[Plot]:
    """Yield the plots of one study that have something to show."""
    shown = column(history.objective)
    objective = f"validation {shown.label}{' %' if shown.factor == 100 else ''}"
    if history.guarded:
        objective += " + lost accuracy beyond tolerance"
    for other in map(column, history.pareto):
        objective += f", {other.label}{' %' if other.factor == 100 else ''}"
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

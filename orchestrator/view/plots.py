"""Writes the report's charts of the search as files."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from orchestrator.storage.events import Event
from orchestrator.storage.ledger import Ledger, Study
from orchestrator.tables.columns import column
from orchestrator.view import _search
from trainables.charts.chart import Chart, side_by_side
from trainables.common.errors import UnwrittenError
from trainables.common.files import drafted, writing


class Plot(NamedTuple):
    """One file of charts side by side; ``kind`` is ``slice``, ``front``, ``learning`` or ``q``."""

    kind: str
    title: str
    charts: Sequence[Chart]

    def image(self) -> bytes:
        """Return the file's content."""
        return side_by_side(self.title.split("\n"), self.charts).image(".svg")


def write_plots(events: Iterable[Event], directory: str | Path) -> list[Path]:
    """Draw the searches of a journal as SVG files, named by study and kind of plot.

    ``-slice``: objective, and further searched metrics, against each searched parameter; one point
    per trial, coloured by its number, with a ring around the chosen one. ``-front``: each further
    searched metric against the objective; dominated trials are grey. ``-learning``: validation ECE
    and accuracy by epoch, and for margin losses the share of samples without penalty; one line per
    trial, the chosen one thick. ``-q``: MaC-Cal's retention probability by epoch, coloured by
    gamma; further seeds are dashed.

    The events are those of one journal from its start; the sweep may still be running.

    Returns:
        The files, in the order of the studies; a study with nothing to draw has none.
    """
    history = Ledger(events, _search.CURVES)
    folder = Path(directory)
    written, stems = [], set[str]()
    for study in history.studies.values():
        stem = re.sub(r"[^A-Za-z0-9.+-]+", "-", study.name.replace("|", "--"))
        while stem in stems:  # Names of two studies may differ only in special characters.
            stem += "-2"
        stems.add(stem)
        for plot in study_plots(study, history):
            path = folder / f"{stem}-{plot.kind}.svg"
            with writing(f"plot {path}", UnwrittenError):
                folder.mkdir(parents=True, exist_ok=True)
                with drafted(path) as draft:
                    draft.write_bytes(plot.image())
            written.append(path)
    return written


def study_plots(study: Study, history: Ledger) -> Iterator[Plot]:
    """Yield the plots of one study that are not empty."""
    shown = column(history.objective)
    objective = f"validation {_search.in_unit(shown)}"
    if history.guarded:
        objective += " + lost accuracy beyond tolerance"
    for other in map(column, history.pareto):
        objective += f", {_search.in_unit(other)}"
    trials = _search.best_trials(study)
    kept = _search.best_trials(study, "q")
    kept += [t for t in study.begun.values() if t.role != "search" and len(t.curve("q")[0]) > 1]
    searched = _search.searched_parameters(study)
    slices = _search.objective_by_parameter(study, history, searched)
    fronts = _search.fronts(study, history)
    curves = _search.learning_curves(study, trials)
    retained = _search.retention("retention probability q by epoch", study, kept)
    for plot in (
        Plot("slice", f"{objective} by parameter, ringed: chosen", slices),
        Plot("front", "grey: dominated, ringed: chosen", fronts),
        Plot("learning", "thick: chosen", curves),
        Plot("q", "thick: chosen, dashed: further seeds", retained),
    ):
        if plot.charts:
            yield plot._replace(title=f"{study.name}\n{plot.title}")

"""The published figure of a cell, where it can be compared with ours."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from orchestrator.layouts._layout import Layout, LayoutRow
from orchestrator.published import load_published

__all__ = ["BINNED", "BINS", "Figure", "Figures", "PublishedKey", "published_key"]

BINS = 15
"""Bins of every binned metric here."""

BINNED = ("ece", "aece", "cwece", "cwaece", "mce")
# The published names of what is called otherwise here.
METRICS = {"seconds": "train_seconds"}
CALIBRATORS = {"meta-mis": "metamis", "meta-acc": "metaacc"}
# A second stage on plain cross-entropy that the papers list as a method of its own.
STAGES = ("tst", "vtst")
# Words of notes on figures that are probably not what the paper measured.
DOUBTS = ("conflicts", "garbled", "implausible", "missing", "outlier", "suspicious")


class PublishedKey(NamedTuple):
    """How a published table names a row.

    Attributes:
        method: Training method.
        stage2: Second stage, or empty.
        posthoc: Calibrator, with the loss it was fitted with, or empty.
        note: What the note of the row begins with; empty for any.
    """

    method: str
    stage2: str = ""
    posthoc: str = ""
    note: str = ""


def published_key(row: LayoutRow) -> PublishedKey:
    """Return how a published table names a row of a layout."""
    method, *others = row.recipes[0].split("+")
    key = PublishedKey(method)
    for part in others:
        if part in STAGES:
            key = key._replace(method=part)
        elif part.startswith("macal"):
            key = key._replace(stage2="macal")
        else:
            key = key._replace(posthoc=CALIBRATORS.get(part, part.replace("-", "+", 1)))
    return key._replace(**row.published)


class Figure(NamedTuple):
    """A published figure.

    Attributes:
        value: As printed, in percent or seconds.
        note: Where it is from, and what is doubtful about it.
        bins: Number of bins, if stated.
    """

    value: float
    note: str
    bins: int | None

    @property
    def doubt(self) -> str:
        """Return what is doubtful about it, or nothing."""
        return self.note if any(word in self.note for word in DOUBTS) else ""


class Figures:
    """The figures of one published table."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._found = _index(layout)

    def find(self, row: LayoutRow, dataset: str, model: str, metric: str) -> Figure | None:
        """Return a published figure, or None if there is none to compare with.

        Args:
            row: The row.
            dataset: Data set as published.
            model: Model as published.
            metric: Metric as it is called here, without a suite.
        """
        if {"all", dataset, model} & set(self.layout.incomparable):
            return None
        key = published_key(row)
        place = (dataset, model, *key[:3], METRICS.get(metric, metric))
        for figure in self._found.get(place, []):
            if figure.note.startswith(key.note) and figure.bins in (None, BINS):
                return figure
        return None

    def states_bins(self) -> bool:
        """Return whether the table says how many bins its calibration errors have."""
        return any(figure.bins for found in self._found.values() for figure in found)


def _index(layout: Layout) -> dict[tuple[str, ...], list[Figure]]:
    """Return the figures of a table by data set, model, method, stage2, posthoc and metric."""
    table = load_published("results")
    ours = table[(table["paper"] == layout.paper) & (table["table"] == layout.table)]
    found: dict[tuple[str, ...], list[Figure]] = defaultdict(list)
    for row in ours.dropna(subset="value").itertuples(index=False):
        place = (row.dataset, row.model, row.method, row.stage2, row.posthoc, row.metric)
        bins = int(str(row.n_bins)) if str(row.n_bins).isdigit() else None
        found[tuple(map(str, place))].append(Figure(float(str(row.value)), str(row.note), bins))
    return dict(found)

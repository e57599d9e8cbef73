"""Metrics of predictions that do not fit into memory, computed in one pass."""

import numpy as np

from trainables.common.fields import check_count
from trainables.common.later import Tensor, torch
from trainables.metrics._scores import (
    BLOCK_ELEMENTS,
    ArrayLike,
    chance_gaps,
    check_values,
    read_labels,
    read_values,
    width_edges,
)
from trainables.metrics._smooth import GRID, grid_cell, smooth_error_of

OCTAVES, STEPS = 40, 1 << 15  # Octaves of confidences from 0.5 to 0 (or 1), and cells per octave.
CLASS_STEPS = 1 << 10  # Number of cells in a bin of equal width, in the histograms of classes.
CACHED_ELEMENTS = 1 << 19


class StreamedReport:
    """``evaluation_report`` of rows that are added in parts, with the IoU of segmented classes.

    Noise floors are not included: see ``noise_floors_of_groups``. ``debiased_ece`` subtracts the
    bias of independent rows, which is too little for the pixels of an image.

    Only one part is in memory. All metrics equal those of the report up to the rounding of sums,
    except ``aece`` and ``cwaece``, whose edges are rounded to the cells of a histogram: scores in
    the cell of an edge share a bin. For ``aece``, the width of a cell is at most 2^-15 of its
    distance to 0 or 1, whichever is nearer. ``aece_error`` bounds the difference: it is below 1e-4
    unless many different confidences are in one cell, as for an untrained network. For ``cwaece``,
    a cell has 1/1024 of the width of a bin.

    Args:
        num_classes: K, at least 2.
        bins: Number of bins of every binned metric, at least 1.

    Raises:
        ValueError: If an argument is too small.
    """

    def __init__(self, num_classes: int, bins: int = 15) -> None:
        check_count("num_classes", num_classes, 2)
        self._bins = bins = check_count("bins", bins)
        self._top, self._top_cells = _Sums(1, bins), _Sums(1, CELLS)
        self._classes = _Sums(num_classes, bins * CLASS_STEPS)
        self._proper = torch.zeros(2, dtype=torch.float64)  # NLL and Brier score.
        self._confusion = torch.zeros(num_classes, num_classes, dtype=torch.int64)

    def add(self, logits: ArrayLike, labels: ArrayLike) -> None:
        """Add rows: logits (N, K) and labels (N,), as for ``calibration_report``."""
        rows = read_values(logits, "logits")
        if rows.shape[1] != len(self._confusion):
            raise ValueError(f"logits: {rows.shape[1]} classes, expected {len(self._confusion)}")
        truth = read_labels(labels, rows)
        # On a CPU, blocks should fit in the cache; otherwise memory access takes most of the time.
        elements = CACHED_ELEMENTS if rows.device.type == "cpu" else BLOCK_ELEMENTS
        step = max(1, elements // rows.shape[1])
        self._proper = self._proper.to(rows.device)
        for block, known in zip(rows.split(step), truth.split(step), strict=True):
            self._add(block.double(), known)

    def _add(self, block: Tensor, labels: Tensor) -> None:
        """Add some rows, float64 (M, K), and their labels (M,)."""
        largest, predicted = block.max(dim=1)
        check_values(block, largest, "logits")
        logs = block.gather(1, labels[:, None]).squeeze(1) - largest
        probs = block.sub(largest[:, None]).exp_()
        scale = probs.sum(dim=1)
        probs.div_(scale[:, None])
        confidence, correct = scale.reciprocal(), (predicted == labels).double()
        edges = width_edges(self._bins, torch.float64, block.device)
        self._top.add(torch.searchsorted(edges[1:-1], confidence), confidence, correct)
        self._top_cells.add(_cell(confidence), confidence, correct)
        true = probs.gather(1, labels[:, None]).squeeze(1)
        self._proper[0] += (scale.log() - logs).sum()
        self._proper[1] += probs.square().sum() + (1 - 2 * true).sum()
        self._confusion = _add_at(self._confusion, labels * len(self._confusion) + predicted)
        cells = self._bins * CLASS_STEPS
        # Despite rounding, cells end exactly at the edges of bins of equal width.
        index = (probs * cells).ceil_().long().sub_(1).clamp_(min=0)
        index += torch.arange(0, cells * probs.shape[1], cells, device=probs.device)
        self._classes.add(index.flatten(), probs.flatten())
        self._classes.hits = _add_at(self._classes.hits, index.gather(1, labels[:, None])[:, 0])

    def report(self) -> dict[str, float]:
        """Return the metrics in the order of ``METRICS``; all but NLL and Brier are fractions.

        Raises:
            ValueError: If no row was added.
        """
        rows = int(self._confusion.sum())
        if rows == 0:
            raise ValueError("no rows to report; call add first")
        top, cells, classes = self._top, self._top_cells, self._classes
        mean_gaps = top.gaps.abs() / top.counts.clamp(min=1)
        chance = chance_gaps(mean_gaps, top.counts, top.hits)
        # Each cell of the histogram is inside one of the smooth error's cells.
        means = (cells.scores / cells.counts.clamp(min=1)).squeeze(0).cpu().numpy()
        by_cell = np.bincount(grid_cell(means), cells.gaps.squeeze(0).cpu().numpy(), GRID)
        by_width = classes.gaps.view(len(classes.counts), self._bins, -1).sum(2)
        return {
            "acc": float(self._confusion.trace()) / rows,
            "nll": float(self._proper[0]) / rows,
            "brier": float(self._proper[1]) / rows,
            "ece": float(top.gaps.abs().sum()) / rows,
            "aece": float(_mass_gaps(cells, self._bins).abs().sum()) / rows,
            "cwece": float(by_width.abs().sum(1).mean()) / rows,
            "cwaece": float(_mass_gaps(classes, self._bins).abs().sum(1).mean()) / rows,
            "mce": float(mean_gaps.max()),
            "debiased_ece": float((top.counts * (mean_gaps - chance)).sum()) / rows,
            "smooth_ece": smooth_error_of(by_cell / rows),
            "miou": float(self.class_iou().nanmean()),
        }

    def class_iou(self) -> Tensor:
        """Return the intersection over union of each class, (K,), in [0, 1].

        A class that is neither a label nor a prediction of any row has the value NaN.
        """
        both = self._confusion.diagonal().double()
        return both / (self._confusion.sum(0) + self._confusion.sum(1) - both)

    @property
    def aece_error(self) -> float:
        """Return the largest possible difference of ``aece`` from ``calibration_report``.

        Rows in the cell of an edge may belong to the bin above or below. Moving them changes each
        bin's sum of confidence minus hit by at most the number of wrong rows in the cell or the
        cell's sum of 1 - confidence, whichever is larger. The sum of the two absolute gaps changes
        only if the gaps may have different signs.
        """
        sums = self._top_cells
        cells, gaps = _edge_cells(sums.counts, self._bins), _mass_gaps(sums, self._bins)
        wrong, excess = (sums.counts - sums.hits).gather(1, cells), sums.gaps.gather(1, cells)
        most = torch.maximum(wrong, wrong - excess)
        certain = (gaps[:, :-1] * gaps[:, 1:] > 0) & (
            torch.minimum(gaps[:, :-1].abs(), gaps[:, 1:].abs()) > 2 * most
        )
        return float(2 * most[~certain].sum() / sums.counts.sum())


class _Sums:
    """Sums by class and bin, each (C, bins), float64, on the device of the added rows."""

    def __init__(self, classes: int, bins: int) -> None:
        self.counts = torch.zeros(classes, bins, dtype=torch.float64)
        self.scores, self.hits = torch.zeros_like(self.counts), torch.zeros_like(self.counts)

    @property
    def gaps(self) -> Tensor:
        return self.scores - self.hits

    def add(self, index: Tensor, scores: Tensor, hits: Tensor | None = None) -> None:
        """Add scores (N,), float64, at ``index`` (N,) in the flattened sums."""
        self.counts = _add_at(self.counts, index)
        self.scores = _add_at(self.scores, index, scores)
        if hits is not None:
            self.hits = _add_at(self.hits, index, hits)


def _add_at(sums: Tensor, index: Tensor, values: Tensor | None = None) -> Tensor:
    """Return sums (C, bins) after adding values (N,), or ones, at ``index`` (N,)."""
    sums = sums.to(index.device)
    if index.device.type == "cpu" and sums.numel() < len(index):
        # Several times faster if there are fewer sums than values.
        weights = None if values is None else values.numpy()
        sums += torch.from_numpy(np.bincount(index.numpy(), weights, sums.numel())).view(sums.shape)
        return sums
    added = sums.new_ones(1) if values is None else values
    sums.view(-1).index_add_(0, index, added.expand(len(index)))
    return sums


CELLS = 2 * ((OCTAVES - 1) * STEPS + 1)


def _cell(scores: Tensor) -> Tensor:
    """Return the number of each score's cell; numbers rise with the score in [0, 1].

    The leading bits of a float32, the distance to the nearer of 0 and 1, divide each octave of this
    distance into cells of equal width.
    """
    near_zero = scores <= 0.5
    distance = torch.where(near_zero, scores, 1 - scores).float()
    bits = (distance.view(torch.int32) >> (24 - STEPS.bit_length())).long()
    cell = (bits - (127 - OCTAVES) * STEPS).clamp(min=0)
    return torch.where(near_zero, cell, CELLS - 1 - cell)


def _edge_cells(counts: Tensor, bins: int) -> Tensor:
    """Return the cells of the inner edges of bins of equal mass, (C, bins - 1)."""
    rows = counts.sum(1, keepdim=True)
    ranks = (torch.arange(1, bins, device=counts.device) * rows / bins).floor()
    return torch.searchsorted(counts.cumsum(1), ranks, right=True).clamp(max=counts.shape[1] - 1)


def _mass_gaps(sums: _Sums, bins: int) -> Tensor:
    """Return scores minus hits of each bin of equal mass, (C, bins)."""
    running = sums.gaps.cumsum(1)
    inner = running.gather(1, _edge_cells(sums.counts, bins))
    until = torch.cat((inner, running[:, -1:]), dim=1)
    return until.diff(dim=1, prepend=until.new_zeros(len(until), 1))

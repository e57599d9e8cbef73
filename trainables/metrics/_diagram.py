"""The reliability diagram as a figure that belongs to nobody but its caller."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from trainables.metrics._reliability import ReliabilityCurve, reliability_curve
from trainables.metrics._scores import ArrayLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Fixed, because a layout that is fitted to the texts draws everything twice.
MARGINS = {"left": 0.15, "right": 0.97, "bottom": 0.1, "top": 0.93, "hspace": 0.08}


def reliability_diagram(
    curve: ReliabilityCurve | None = None,
    *,
    logits: ArrayLike | None = None,
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    bins: int = 15,
    title: str = "",
) -> Figure:
    """Draw accuracy over confidence, the gap to the diagonal, and the share of rows of each bin.

    No global state of matplotlib is touched, so it needs no display and is safe in threads:
    ``figure.savefig(path)`` writes it. The title is drawn as it is, never read as mathematics.

    Args:
        curve: What ``reliability_curve`` returned; or leave it out and give predictions.
        logits: See ``calibration_report``.
        probs: See ``calibration_report``.
        labels: See ``calibration_report``.
        bins: Number of equal-width bins where predictions are given.
        title: Text above the diagram.

    Raises:
        ValueError: If both a curve and predictions are given; see also ``calibration_report``.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if curve is None:
        curve = reliability_curve(logits, probs, labels, bins)
    elif any(given is not None for given in (logits, probs, labels)):
        raise ValueError("give either a curve or predictions, got both")
    figure = Figure(figsize=(4.0, 4.8))
    FigureCanvasAgg(figure)
    main, share = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1), gridspec_kw=MARGINS)
    _draw_bars(main, curve)
    _draw_share(share, curve)
    main.set_title(title, parse_math=False)
    return figure


def _draw_bars(axes: Axes, curve: ReliabilityCurve) -> None:
    filled = curve.count > 0
    left, width = curve.edges[:-1][filled], np.diff(curve.edges)[filled]
    accuracy, gap = curve.accuracy[filled], (curve.confidence - curve.accuracy)[filled]
    bars = partial(axes.bar, left, width=width, align="edge", edgecolor="black", linewidth=0.5)
    bars(height=accuracy, color="#4c72b0", label="accuracy")
    bars(height=gap, bottom=accuracy, color="#c44e52", alpha=0.4, label="gap")
    axes.plot((0, 1), (0, 1), linestyle="--", color="0.4", linewidth=1)
    box = {"facecolor": "white", "alpha": 0.8, "edgecolor": "none"}
    text = f"error {100 * curve.error:.2f} %"
    axes.text(0.97, 0.05, text, ha="right", transform=axes.transAxes, bbox=box)
    axes.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy")
    axes.legend(loc="upper left", frameon=False)


def _draw_share(axes: Axes, curve: ReliabilityCurve) -> None:
    share = curve.count / curve.count.sum()
    axes.bar(curve.edges[:-1], share, np.diff(curve.edges), align="edge", color="0.6")
    axes.set(xlabel="confidence", ylabel="share")

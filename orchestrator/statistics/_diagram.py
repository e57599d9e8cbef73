"""The critical-difference diagram of Demsar (2006)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.statistics._ranks import RankComparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STEP = 0.24  # Inches between two names.


def critical_difference_diagram(comparison: RankComparison, title: str = "") -> Figure:
    """Draw average ranks on a line; bars join recipes that do not differ pairwise.

    The bars follow the Wilcoxon tests with Holm's correction. Where nothing is testable there are
    no bars, and the diagram says so. No global state of matplotlib is touched, and no name is read
    as mathematics.

    Raises:
        ValueError: If the comparison is with a control only.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = list(comparison.ranks)
    if len(comparison.pairs) != math.comb(len(names), 2):
        raise ValueError(f"{len(comparison.pairs)} pairs of {len(names)} recipes; expected all")
    cliques = comparison.cliques() if comparison.testable else []
    ranks, half = list(comparison.ranks.items()), (len(names) + 1) // 2
    lines = half + len(cliques) / 2
    figure = Figure(figsize=(8.0, 1.3 + STEP * lines), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    span = max(len(names) - 1, 1)
    axes.set(xlim=(1 - 0.45 * span, len(names) + 0.45 * span), ylim=(-lines - 1.5, 1.2))
    axes.axis("off")
    _draw_scale(axes, len(names))
    _draw_cliques(axes, comparison.ranks, cliques)
    _draw_names(axes, ranks[:half], len(cliques) / 2, 1 - 0.06 * span, "right")
    _draw_names(axes, ranks[half:][::-1], len(cliques) / 2, len(names) + 0.06 * span, "left")
    axes.set_title(title, parse_math=False, fontsize="medium")
    axes.text(
        (1 + len(names)) / 2, -lines - 1.2, _caption(comparison), ha="center", fontsize="small"
    )
    return figure


def _draw_scale(axes: Axes, count: int) -> None:
    axes.plot((1, count), (0, 0), color="black", linewidth=1)
    step = max(1, count // 12)
    for rank in range(1, count + 1, step):
        axes.plot((rank, rank), (0, 0.25), color="black", linewidth=1)
        axes.text(rank, 0.4, str(rank), ha="center", va="bottom", fontsize="small")


def _draw_cliques(axes: Axes, ranks: dict[str, float], cliques: Sequence[tuple[str, ...]]) -> None:
    for level, clique in enumerate(cliques):
        height = -0.4 - level / 2
        ends = (ranks[clique[0]] - 0.03, ranks[clique[-1]] + 0.03)
        axes.plot(ends, (height, height), color="#c1272d", linewidth=3, solid_capstyle="round")


def _draw_names(
    axes: Axes, ranks: Sequence[tuple[str, float]], offset: float, edge: float, align: str
) -> None:
    for line, (name, rank) in enumerate(ranks):
        height = -1 - offset - line
        axes.plot((rank, rank, edge), (0, height, height), color="0.4", linewidth=0.8)
        text = f"{name}  {rank:.2f} " if align == "right" else f" {rank:.2f}  {name}"
        axes.text(edge, height, text, ha=align, va="center", fontsize="small", parse_math=False)


def _caption(comparison: RankComparison) -> str:
    blocks = f"average rank, 1 is best; blocks: {comparison.blocks}"
    if not comparison.testable:
        return f"{blocks}; too few to test differences (not testable)"
    return f"{blocks}; bars join what Wilcoxon's test with Holm's correction does not tell apart"

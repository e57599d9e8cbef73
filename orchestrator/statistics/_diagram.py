"""The critical-difference diagram of Demsar (2006)."""

import math
from collections.abc import Sequence
from typing import Any

from orchestrator.statistics._ranks import RankComparison
from trainables.charts.chart import Chart, Spec, amount, drawn, layer

LINE, LEVEL = 20, 9  # Pixels between two names, and between two bars.


def critical_difference_diagram(comparison: RankComparison, title: str = "") -> Chart:
    """Draw average ranks on a line; bars join recipes that do not differ pairwise.

    The bars follow the Wilcoxon tests with Holm's correction. If no pair is testable, the diagram
    has a note instead of bars.

    Raises:
        ValueError: If the comparison is with a control only.
    """
    count = len(comparison.ranks)
    if len(comparison.pairs) != math.comb(count, 2):
        raise ValueError(f"{len(comparison.pairs)} pairs of {count} recipes; expected all")
    cliques = comparison.cliques() if comparison.testable else []
    rows = _names(list(comparison.ranks.items()), len(cliques))
    height = max(row["height"] for row in rows) + LINE
    span = max(count - 1, 1)
    domain = [1 - 0.6 * span, count + 0.6 * span]
    ranked = range(1, count + 1, max(1, count // 12))
    ticks = {"orient": "top", "values": list(ranked), "domain": False}
    scale = {"domain": domain, "padding": 0}
    x = amount("rank", "average rank, 1 is best", scale=scale, axis=ticks)
    scale = {"domain": [height, 0], "nice": False}
    y = {"field": "height", "type": "quantitative", "axis": None, "scale": scale}
    line, end = {"x": x, "x2": {"field": "end"}, "y": {"value": 0}}, {"field": "end"}
    bars = _bars(comparison, cliques)
    layers = [
        layer("scale", "rule", line, [{"rank": 1, "end": count}], tone="ink"),
        layer("stem", "rule", {"x": x, "y": y, "y2": {"datum": 0}}, tone="soft"),
        layer("arm", "rule", {"x": x, "x2": {"field": "edge"}, "y": y}, tone="soft"),
        layer("clique", "rule", {"x": x, "x2": end, "y": y}, bars, tone="orange", size=4),
        *(_texts(side, rows, y) for side in ("left", "right")),
    ]
    label = f"{f'{title}: ' * bool(title)}critical-difference diagram of average ranks"
    size = {"height": height + 45, "width": 720}
    return drawn(title, label, layers, rows, text=_caption(comparison), **size)


def _names(ranks: Sequence[tuple[str, float]], bars: int) -> list[dict[str, Any]]:
    """Return places of names: the better half left, best first; the others right, worst first."""
    half, span = (len(ranks) + 1) // 2, max(len(ranks) - 1, 1)
    sides = {"left": ranks[:half], "right": ranks[half:][::-1]}
    edges = {"left": 1 - 0.06 * span, "right": len(ranks) + 0.06 * span}
    return [
        {
            **{"name": name, "rank": rank, "side": side, "edge": edges[side]},
            "height": LEVEL * (bars + 1) + LINE * (line + 1),
            "text": f"{name}  {rank:.2f}" if side == "left" else f"{rank:.2f}  {name}",
        }
        for side, own in sides.items()
        for line, (name, rank) in enumerate(own)
    ]


def _bars(comparison: RankComparison, cliques: Sequence[tuple[str, ...]]) -> list[dict[str, Any]]:
    ranks = comparison.ranks
    return [
        {"rank": ranks[names[0]], "end": ranks[names[-1]], "height": LEVEL * (level + 1)}
        for level, names in enumerate(cliques)
    ]


def _texts(side: str, rows: Sequence[dict[str, Any]], y: Spec) -> Spec:
    own = [row for row in rows if row["side"] == side]
    at = {"x": {"field": "edge", "type": "quantitative"}, "y": y, "text": {"field": "text"}}
    align, gap = {"left": ("right", -4), "right": ("left", 4)}[side]
    return layer(side, "text", at, own, align=align, dx=gap, clip=False)


def _caption(comparison: RankComparison) -> str:
    if not comparison.testable:
        return f"blocks: {comparison.blocks}; too few to test differences (not testable)"
    joined = "bars join recipes that do not differ (Wilcoxon's test with Holm's correction)"
    return f"blocks: {comparison.blocks}; {joined}"

"""Charts: Vega-Lite specifications that pages show and ``Chart.save`` writes as SVG, PDF or PNG.

A chart is data, so that a test reads from it which figures are shown. No chart is drawn by our own
code: Vega draws in the browser (``bundle``), ``vl_convert`` in files. design/charts.md says why.
"""

from trainables.charts._bundle import bundle
from trainables.charts._chart import (
    COLOURS,
    KINDS,
    RAMP,
    ZOOM,
    Chart,
    Rows,
    Spec,
    amount,
    curves,
    drawn,
    layer,
    names,
    pick,
    ramp,
    side_by_side,
    spread_widely,
    thinned,
    tips,
    writable,
)
from trainables.charts._reliability import reliability_diagram

__all__ = [
    "COLOURS",
    "KINDS",
    "RAMP",
    "ZOOM",
    "Chart",
    "Rows",
    "Spec",
    "amount",
    "bundle",
    "curves",
    "drawn",
    "layer",
    "names",
    "pick",
    "ramp",
    "reliability_diagram",
    "side_by_side",
    "spread_widely",
    "thinned",
    "tips",
    "writable",
]

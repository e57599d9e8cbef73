"""Charts: Vega-Lite specifications that pages show and ``Chart.save`` writes as SVG, PDF or PNG.

A chart is data, so that a test reads from it which figures are shown. No chart is drawn by our own
code: Vega draws in the browser (``bundle``), ``vl_convert`` in files. design/charts.md says why.
"""

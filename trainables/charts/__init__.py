"""Charts: Vega-Lite specifications for pages and for files; see design/charts.md."""

"""The report of a sweep: one HTML page that needs neither a network nor a server.

``from_folder`` gathers what a sweep's folder holds, ``write_report`` writes the page. What cannot
be shown, such as diagrams of predictions that are gone, is told on the page.
"""

from orchestrator.report._page import render_report, write_report
from orchestrator.report._source import ReportSource, from_folder

__all__ = ["ReportSource", "from_folder", "render_report", "write_report"]

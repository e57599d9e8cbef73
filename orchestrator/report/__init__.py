"""The report of a sweep: one HTML page that needs neither a network nor a server.

``from_folder`` gathers what a sweep's folder holds, ``write_report`` writes the page. What cannot
be shown, such as diagrams of predictions that are gone, is told on the page. Its ``environment`` of
templates and the charts of a study are there for other pages too.
"""

from orchestrator.report._maps import map_picture
from orchestrator.report._page import environment, render_report, write_report
from orchestrator.report._search import CURVES, searched_for
from orchestrator.report._source import ReportSource, from_folder
from orchestrator.report._studies import MOST_CURVES, distribution, study_part, trial_curves

__all__ = [
    "CURVES",
    "MOST_CURVES",
    "ReportSource",
    "distribution",
    "environment",
    "from_folder",
    "map_picture",
    "render_report",
    "searched_for",
    "study_part",
    "trial_curves",
    "write_report",
]

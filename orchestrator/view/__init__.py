"""All HTML pages: one set of templates, one style, one script.

``from_folder`` reads a stored sweep, and ``write_report`` writes its page as one file that needs no
server. ``orchestrator.view.server`` serves the pages while sweeps run. Published and nightly pages
use the same ``environment`` of templates.
"""

from orchestrator.view._lines import LIVE, study_lines, study_state
from orchestrator.view._maps import map_picture
from orchestrator.view._page import details, environment, overview, render_report, write_report
from orchestrator.view._search import CURVES, searched_for
from orchestrator.view._source import ReportSource, from_folder
from orchestrator.view._studies import MOST_CURVES, distribution, study_part, trial_curves

__all__ = [
    "CURVES",
    "LIVE",
    "MOST_CURVES",
    "ReportSource",
    "details",
    "distribution",
    "environment",
    "from_folder",
    "map_picture",
    "overview",
    "render_report",
    "searched_for",
    "study_lines",
    "study_part",
    "study_state",
    "trial_curves",
    "write_report",
]

"""All HTML pages: one set of templates, one style, one script.

``from_folder`` gathers everything that is stored of a sweep, and ``write_report`` writes its page
as one file that asks no server. ``orchestrator.view.server`` serves the pages while sweeps run.
Published and nightly pages use the same ``environment`` of templates.
"""

from orchestrator.view._maps import map_picture
from orchestrator.view._page import environment, render_report, write_report
from orchestrator.view._search import CURVES, searched_for
from orchestrator.view._source import ReportSource, from_folder
from orchestrator.view._studies import MOST_CURVES, distribution, study_part, trial_curves

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

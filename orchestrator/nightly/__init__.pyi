from .book import Acceptance, Book, BusyError, Night
from .commits.bisect import Bisection, bisect_night
from .commits.gate import Gate, gate
from .config import Nightly, benchmark_file, load_nightly
from .page import figure, headline, plotted, series_of, sparkline, to_csv, told
from .publish import publish_failure
from .record import COULD_NOT_RUN, CellKey, Finding, NightRecord, Row, Shape, Verdict
from .run import NightOutcome, run_night
from .schedule.clock import Schedule, make_schedule
from .schedule.entry import KubernetesOptions
from .schedule.install import Installation, Request, install, installation, preview, uninstall
from .schedule.ray_job import submit_night
from .verdict.groups import grouped
from .verdict.judge import detectable, judge
from .verdict.limits import MEASURES, Bounds, Limits, Threshold

__all__ = [
    "COULD_NOT_RUN",
    "MEASURES",
    "Acceptance",
    "Bisection",
    "Book",
    "Bounds",
    "BusyError",
    "CellKey",
    "Finding",
    "Gate",
    "Installation",
    "KubernetesOptions",
    "Limits",
    "Night",
    "NightOutcome",
    "NightRecord",
    "Nightly",
    "Request",
    "Row",
    "Schedule",
    "Shape",
    "Threshold",
    "Verdict",
    "benchmark_file",
    "bisect_night",
    "detectable",
    "figure",
    "gate",
    "grouped",
    "headline",
    "install",
    "installation",
    "judge",
    "load_nightly",
    "make_schedule",
    "plotted",
    "preview",
    "publish_failure",
    "run_night",
    "series_of",
    "sparkline",
    "submit_night",
    "to_csv",
    "told",
    "uninstall",
]

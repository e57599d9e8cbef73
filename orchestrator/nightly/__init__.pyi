from .book import Acceptance, Book, Night
from .config import Nightly, benchmark_file, load_nightly
from .lock import BusyError
from .page import figure, headline, plotted, series_of, sparkline, to_csv
from .publish import publish_failure
from .record import COULD_NOT_RUN, CellKey, Finding, NightRecord, Shape, Verdict
from .run import NightOutcome, run_night
from .schedule.clock import Schedule, make_schedule
from .schedule.entry import KubernetesOptions
from .schedule.install import Installation, Request, install, installation, preview, uninstall
from .schedule.ray_job import submit_night
from .verdict.judge import judge
from .verdict.limits import MEASURES, Bounds, Limits, Threshold

__all__ = [
    "COULD_NOT_RUN",
    "MEASURES",
    "Acceptance",
    "Book",
    "Bounds",
    "BusyError",
    "CellKey",
    "Finding",
    "Installation",
    "KubernetesOptions",
    "Limits",
    "Night",
    "NightOutcome",
    "NightRecord",
    "Nightly",
    "Request",
    "Schedule",
    "Shape",
    "Threshold",
    "Verdict",
    "benchmark_file",
    "figure",
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
    "uninstall",
]

from .book import Acceptance, Book, BusyError, Night
from .commits.gate import Gate, gate
from .config import Nightly, benchmark_file, load_nightly
from .page import figure, headline, plotted, series_of, sparkline, to_csv, told
from .publish import publish_failure
from .record import COULD_NOT_RUN, CellKey, Finding, NightRecord, Row, Shape, Verdict
from .run import NightOutcome, run_night
from .verdict.groups import grouped
from .verdict.judge import detectable, judge
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
    "Gate",
    "Limits",
    "Night",
    "NightOutcome",
    "NightRecord",
    "Nightly",
    "Row",
    "Shape",
    "Threshold",
    "Verdict",
    "benchmark_file",
    "detectable",
    "figure",
    "gate",
    "grouped",
    "headline",
    "judge",
    "load_nightly",
    "plotted",
    "publish_failure",
    "run_night",
    "series_of",
    "sparkline",
    "to_csv",
    "told",
]

from ._conformal import Rows
from ._curves import (
    ReliabilityCurve,
    RiskCoverageCurve,
    bin_table,
    predicted_rows,
    reliability_curve,
    risk_coverage_curve,
)
from ._floor import (
    NoiseFloor,
    bin_spread_of_groups,
    noise_floor,
    noise_floors,
    noise_floors_of_groups,
)
from ._metrics import FLOORED, METRICS, REPORTED, Metric, metrics_digest, of_sets
from ._report import (
    calibration_report,
    column_report,
    evaluation_report,
    registered_report,
    row_terms,
    rows_or_value,
)
from ._scores import Binned, bin_index, width_edges
from ._smooth import estimated_error
from ._streamed import StreamedReport

__all__ = [
    "FLOORED",
    "METRICS",
    "REPORTED",
    "Binned",
    "Metric",
    "NoiseFloor",
    "ReliabilityCurve",
    "RiskCoverageCurve",
    "Rows",
    "StreamedReport",
    "bin_index",
    "bin_spread_of_groups",
    "bin_table",
    "calibration_report",
    "column_report",
    "estimated_error",
    "evaluation_report",
    "metrics_digest",
    "noise_floor",
    "noise_floors",
    "noise_floors_of_groups",
    "of_sets",
    "predicted_rows",
    "registered_report",
    "reliability_curve",
    "risk_coverage_curve",
    "row_terms",
    "rows_or_value",
    "width_edges",
]

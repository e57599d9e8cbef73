"""What a search may minimise on validation rows, also beyond the report of every epoch."""

from collections.abc import Mapping

from torch import Tensor

from trainables.calibrators import nll_after_ts_terms
from trainables.metrics import METRICS, registered_report, row_terms
from trainables.store.artifacts import Artifact

VALIDATION = "val_"


def objective_terms(objective: str, logits: Tensor, labels: Tensor) -> Tensor:
    """Return terms (N,), float64, whose mean over rows of logits (N, K) is an objective.

    Raises:
        ValueError: If it has no terms (see ``row_terms``), or the rows are wrong.
    """
    if objective == "nll_after_ts":
        return nll_after_ts_terms(logits, labels)
    return row_terms(objective, logits, labels)


def with_objective(metrics: Mapping[str, float], name: str, found: Artifact) -> dict[str, float]:
    """Return the metrics of a stored outcome, with ``val_*`` of that name and of all plugins.

    One that was stored for a search by another objective may lack it.
    """
    known = dict(metrics)
    if METRICS.plugged:
        rows = found.tensors("validation")
        own = registered_report(rows["logits"], rows["labels"])
        known |= {f"{VALIDATION}{metric}": value for metric, value in own.items()}
    if name in known or not name.startswith(VALIDATION):
        return known
    rows = found.tensors("validation")
    terms = objective_terms(name.removeprefix(VALIDATION), rows["logits"], rows["labels"])
    return {**known, name: float(terms.mean())}


def lasting(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics that are stored: not those of plugins, whose code is in no key."""
    return {k: v for k, v in metrics.items() if METRICS.code(k.removeprefix(VALIDATION)) is None}

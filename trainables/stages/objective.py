"""What a search may minimise on validation rows, also beyond the report of every epoch."""

from collections.abc import Mapping

from torch import Tensor

from trainables.calibrators import nll_after_ts_terms
from trainables.metrics import row_terms
from trainables.store.artifacts import Artifact

VALIDATION = "val_"


def objective_terms(objective: str, logits: Tensor, labels: Tensor) -> Tensor:
    """Return terms (N,), float64, whose mean is an objective: see ``row_terms``.

    Args:
        objective: A metric that a search can minimise, or ``acc``.
        logits: (N, K).
        labels: (N,).

    Raises:
        ValueError: If it has no terms, or the rows are wrong.
    """
    if objective == "nll_after_ts":
        return nll_after_ts_terms(logits, labels)
    return row_terms(objective, logits, labels)


def with_objective(metrics: Mapping[str, float], name: str, found: Artifact) -> dict[str, float]:
    """Return the metrics of a stored outcome, with ``val_*`` of that name in any case.

    One that was stored for a search by another objective may lack it.
    """
    if name in metrics or not name.startswith(VALIDATION):
        return dict(metrics)
    rows = found.tensors("validation")
    terms = objective_terms(name.removeprefix(VALIDATION), rows["logits"], rows["labels"])
    return {**metrics, name: float(terms.mean())}

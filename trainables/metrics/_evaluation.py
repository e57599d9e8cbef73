"""All that is said of a chosen configuration on test data."""

from __future__ import annotations

from trainables.metrics._debiased import debiased_ece
from trainables.metrics._floor import noise_floors
from trainables.metrics._report import calibration_report
from trainables.metrics._scores import ArrayLike
from trainables.metrics._smooth import smooth_ece


def evaluation_report(logits: ArrayLike, labels: ArrayLike, bins: int = 15) -> dict[str, float]:
    """Return the report and what its 15-bin errors are to be read beside.

    The keys of ``calibration_report``, then ``debiased_ece``, ``smooth_ece``, and the mean noise
    floors ``ece_floor``, ``aece_floor`` and ``cwece_floor``; all fractions but ``nll`` and
    ``brier``.

    Args:
        logits: (N, K), logits or log-probabilities.
        labels: (N,), integers in [0, K).
        bins: Number of bins of every binned metric.

    Raises:
        ValueError: See ``calibration_report``.
    """
    floors = noise_floors(logits, bins=bins)
    return {
        **calibration_report(logits=logits, labels=labels, bins=bins),
        "debiased_ece": debiased_ece(logits=logits, labels=labels, bins=bins),
        "smooth_ece": smooth_ece(logits=logits, labels=labels),
        **{f"{metric}_floor": floor.mean for metric, floor in floors.items()},
    }

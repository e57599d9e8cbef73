"""All metrics of one set of predictions."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor

from trainables.common.checks import check_choice, check_count
from trainables.metrics._binning import Binned, mass_edges, width_edges
from trainables.metrics._floor import NoiseFloor, noise_floors
from trainables.metrics._metrics import FLOORED
from trainables.metrics._scores import ArrayLike, Scores
from trainables.metrics._smooth import smooth_error


def calibration_report(
    logits: ArrayLike | None = None,
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    bins: int = 15,
    direction: bool = False,
    metrics: Iterable[str] | None = None,
) -> dict[str, float]:
    """Return accuracy, proper scores and calibration errors of one set of predictions.

    Softmax and sums are computed in float64, whatever the precision of the input, on its device.

    ======== =====================================================================================
    acc      Share of rows whose first largest score is the label's, in [0, 1].
    nll      Mean ``-log p_y`` in nats, in [0, inf]; infinite if ``probs`` gives a label 0.
    brier    ``sum_k (p_k - [k = y])^2``, mean over rows, in [0, 2] (not divided by K).
    ece      Top-label error over equal-width bins (Guo et al. 2017), in [0, 1].
    aece     The same over equal-mass bins (Nguyen and O'Connor 2015), in [0, 1].
    cwece    Mean over all K classes of the error of ``p_k`` for ``[k = y]``, equal width (Kull et
             al. 2019; Nixon et al. 2019), in [0, 1]; it shrinks with K.
    cwaece   The same with equal mass in each class, in [0, 1].
    mce      Largest gap of a non-empty equal-width bin, in [0, 1].
    ======== =====================================================================================

    Bins are ``(a, b]``, the first one closed below, so that a probability of exactly 0 or 1 counts.
    Given probabilities are compared with edges rounded to their own precision. For ``aece`` and
    ``cwaece`` equal scores share a bin, the first that ends at or above them, so that the order of
    rows does not count; released code leaves the lowest edge open and drops the rows on it. A class
    that never occurs as a label counts with its false confidence.

    A binned error is biased upwards: with 10,000 rows even a perfectly calibrated model shows an
    ``ece`` near 0.004. Do not rank methods by differences below that, and do not compare ``cwece``
    between tasks with different K or ``mce`` between small test sets (one sparse bin decides it).

    Args:
        logits: (N, K), unnormalised or log-probabilities, floating; minus infinity is allowed.
        probs: (N, K), rows summing to 1. Exactly one of ``logits`` and ``probs``.
        labels: (N,), integers in [0, K).
        bins: Number of bins of every binned metric, at least 1.
        direction: Also split ``ece`` into ``ece_over``, what bins contribute whose mean confidence
            exceeds their accuracy (overconfidence), and ``ece_under``, what the others do; both in
            [0, 1].
        metrics: Names of those wanted; all if left out. Without the class-wise errors, which sort
            every class, 100 classes take a twentieth of the time.

    Returns:
        The metrics by name, all as fractions; in the order of ``REPORTED``.

    Raises:
        ValueError: If there is no such metric, both or none of ``logits`` and ``probs`` are given,
            shapes do not fit, a label is out of range, a score is NaN or infinite, or ``probs`` are
            no probabilities.
    """
    known = {**_REPORT, **_DIRECTION} if direction else _REPORT
    names = set(known if metrics is None else metrics)
    for name in names:
        check_choice("metric", name, list(known))
    wanted = {name: metric for name, metric in known.items() if name in names}
    return _compute(wanted, Predictions(Scores(logits, probs, labels), bins))


def evaluation_report(logits: ArrayLike, labels: ArrayLike, bins: int = 15) -> dict[str, float]:
    """Return the report and what its 15-bin errors are to be read beside.

    The keys of ``calibration_report``, then ``debiased_ece``, ``smooth_ece``, and the mean noise
    floors ``ece_floor``, ``aece_floor`` and ``cwece_floor``; all fractions but ``nll`` and
    ``brier``. For arguments and errors see ``calibration_report``.
    """
    return _compute(EVALUATION, Predictions(Scores(logits, None, labels), bins))


class Predictions:
    """Checked scores of one set of predictions; what several metrics need is computed once."""

    def __init__(self, scores: Scores, bins: int = 15) -> None:
        self.scores = scores
        self._bins = check_count("bins", bins)
        self._edges = width_edges(self._bins, scores.edge_dtype, scores.labels.device)
        self._top = scores.confidence[None], scores.correct[None]

    @cached_property
    def width(self) -> Binned:
        """The top-label confidences in bins of equal width."""
        return Binned(*self._top, self._edges)

    @cached_property
    def mass(self) -> Binned:
        """The top-label confidences in bins of equal mass."""
        return Binned(*self._top, mass_edges(self._top[0], self._bins))

    def classes(self) -> Iterator[tuple[Binned, Binned]]:
        """Yield the probabilities of some classes at a time in bins of equal width and mass."""
        for columns, hits in self.scores.columns():
            mass = mass_edges(columns, self._bins)
            yield Binned(columns, hits, self._edges), Binned(columns, hits, mass)

    @cached_property
    def by_class(self) -> Tensor:
        """The class-wise errors of equal width and of equal mass, (2,)."""
        sums = torch.zeros(2, dtype=torch.float64, device=self._edges.device)
        for pair in self.classes():
            sums += torch.stack([binned.error().sum() for binned in pair])
        return sums / self.scores.num_classes

    @cached_property
    def floors(self) -> dict[str, NoiseFloor]:
        """The noise floor of each metric that has one; of logits only."""
        return noise_floors(self.scores.values, bins=self._bins)


Metric: TypeAlias = Callable[[Predictions], Tensor | float]


def _floor(name: str) -> Metric:
    return lambda found: found.floors[name].mean


_REPORT: Mapping[str, Metric] = {
    "acc": lambda found: found.scores.correct.mean(),
    "nll": lambda found: found.scores.nll.mean(),
    "brier": lambda found: found.scores.brier.mean(),
    "ece": lambda found: found.width.error(),
    "aece": lambda found: found.mass.error(),
    "cwece": lambda found: found.by_class[0],
    "cwaece": lambda found: found.by_class[1],
    "mce": lambda found: found.width.largest_gap(),
}
_DIRECTION: Mapping[str, Metric] = {
    "ece_over": lambda found: found.width.excess(),
    "ece_under": lambda found: found.width.error() - found.width.excess(),
}
EVALUATION: Mapping[str, Metric] = {
    **_REPORT,
    "debiased_ece": lambda found: found.width.debiased_error(),
    "smooth_ece": lambda found: smooth_error(found.scores),
    **{f"{name}_floor": _floor(name) for name in FLOORED},
}


def _compute(metrics: Mapping[str, Metric], predictions: Predictions) -> dict[str, float]:
    # On the device until the last one is there: one wait for all of them.
    device = predictions.scores.labels.device
    found = [metric(predictions) for metric in metrics.values()]
    values = [torch.as_tensor(v, dtype=torch.float64, device=device).reshape(1) for v in found]
    return dict(zip(metrics, torch.cat(values).tolist(), strict=True))

r"""Compares estimators of calibration error on data whose true error is known.

The script reads real networks' probabilities (`.npz` files as for `calsweep logits calibrate`) and
fits calibration maps of several families to all rows of each file. The outputs of a map are the
true probabilities: labels are drawn from them, so the true error of the network's probabilities
(also of sharper and flatter ones) is known. Each estimator gets some rows and one draw of labels:

    OMP_NUM_THREADS=1 python benchmarks/estimators.py ../shared/data/logits --kind probs

Two errors are estimated. The error of the top-label confidence, ``E|c - P(correct | c)|``, is
estimated by ECE and similar metrics. The error of all probabilities, ``E sum_k |p_k - P(k | p)|``,
is the L1 error of V-ECE (repository probkit/V-ECE). Its variational estimate is
``E <sign(g(p) - p), y - p>`` with g fitted on other rows. It is too low on average; a worse map g
lowers it further.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from _page import Table, load, options, publish, setting, table
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor
from torch.nn import functional as F

from trainables.calibrators import build_calibrator, cross_fit
from trainables.data import read_logits
from trainables.metrics import estimated_error, row_terms

TRUTHS = ("svs", "isotonic", "spline")
TEMPERATURES = (0.7, 1.0, 1.5)
NEIGHBOURS = 50  # Number of rows with similar scores over which true probabilities are averaged.
COLUMNS = ["estimator", "rows", "bias, points", "error / truth, %", "pooled, %", "too high, %"]
COLUMNS += ["rank correlation", "CPU ms per 1,000 rows"]
GOAL = "The goal is an error of at most 38 % of the truth at 30 ms per 1,000 rows."


@dataclass(frozen=True)
class Case:
    """Probabilities with a known truth.

    Attributes:
        log_probs: The predictions for N rows and K classes, (N, K).
        truth: True probability of each label, (N, K).
    """

    name: str
    log_probs: Tensor
    truth: Tensor

    @property
    def top(self) -> float:
        """The true error of the top-label confidence."""
        confidence, predicted = self.log_probs.exp().max(1)
        right = self.truth.gather(1, predicted[:, None]).squeeze(1)
        return conditional_gap(confidence, right)

    @property
    def classwise(self) -> float:
        """The true class-wise error, the mean over classes."""
        pairs = zip(self.log_probs.exp().T, self.truth.T, strict=True)
        return float(np.mean([conditional_gap(own, true) for own, true in pairs]))

    @property
    def whole(self) -> float:
        """The true L1 error of all probabilities."""
        return float((self.log_probs.exp() - self.truth).abs().sum(1).mean())


def conditional_gap(scores: Tensor, chances: Tensor) -> float:
    """Estimate the mean of ``|s - E[chance | s]|``, averaging over rows with adjacent scores."""
    rows = len(scores) // NEIGHBOURS * NEIGHBOURS
    gaps = (scores - chances)[scores.argsort()][:rows]
    return float(gaps.view(-1, NEIGHBOURS).mean(1).abs().mean())


def reported(name: str) -> Callable[[Tensor, Tensor], float]:
    """Return the estimator of a test metric."""
    return lambda log_probs, labels: float(row_terms(name, log_probs, labels).mean())


def variational(calibrator: str) -> Callable[[Tensor, Tensor], float]:
    """Return V-ECE's estimator of the L1 error of all probabilities, with a cross-fitted map."""

    def estimate(log_probs: Tensor, labels: Tensor) -> float:
        probs = log_probs.exp()
        mapped = cross_fit(lambda: build_calibrator(calibrator), log_probs, labels).exp()
        away = F.one_hot(labels, probs.shape[1]) - probs
        return max(0.0, float(((mapped - probs).sign() * away).sum(1).mean()))

    return estimate


def distance(calibrator: str) -> Callable[[Tensor, Tensor], float]:
    """Return an estimator: the mean L1 distance to a map that is fitted to the same rows."""

    def estimate(log_probs: Tensor, labels: Tensor) -> float:
        mapped = build_calibrator(calibrator).fit(log_probs, labels)(log_probs).exp()
        return float((mapped - log_probs.exp()).abs().sum(1).mean())

    return estimate


def top_variational(log_probs: Tensor, labels: Tensor) -> float:
    """Return V-ECE's estimate of the top-label error, with cross-fitted beta calibration."""
    confidence, predicted = log_probs.exp().max(1)
    right = (predicted == labels).long()
    pair = torch.stack([torch.log1p(-confidence.clamp(max=1 - 1e-12)), confidence.log()], 1)
    mapped = cross_fit(lambda: build_calibrator("beta"), pair, right).exp()[:, 1]
    return max(0.0, float(((mapped - confidence).sign() * (right - confidence)).mean()))


TOP: dict[str, Callable[[Tensor, Tensor], float]] = {
    "ECE, 15 bins": reported("ece"),
    "AECE, 15 bins": reported("aece"),
    "debiased ECE": reported("debiased_ece"),
    "smooth ECE": reported("smooth_ece"),
    "variational, beta map": top_variational,
    "**estimated_error**": lambda log_probs, labels: estimated_error(log_probs, None, labels),
}
classwise = reported("cwece")
CLASSWISE = {"cwECE, 15 bins": classwise}
WHOLE = {
    "variational, ts": variational("ts"),
    "variational, svs": variational("svs"),
    "variational, sms": variational("sms"),
    "distance to ts": distance("ts"),
    "distance to svs": distance("svs"),
    "K times cwECE": lambda log_probs, labels: log_probs.shape[1] * classwise(log_probs, labels),
}


def cases(paths: list[Path], kind: str | None) -> Iterator[Case]:
    """Yield a case for every file, truth and temperature."""
    for path in paths:
        rows = read_logits(path, kind).rows
        log_probs = torch.as_tensor(rows.logits).double().log_softmax(1)
        labels = torch.as_tensor(rows.labels)
        for family in TRUTHS:
            truth = build_calibrator(family).fit(log_probs, labels)(log_probs).exp()
            for temperature in TEMPERATURES:
                judged = (log_probs / temperature).log_softmax(1)
                yield Case(f"{path.stem} {family} {temperature}", judged, truth)


def judge(
    found: list[Case],
    truths: NDArray[np.float64],
    estimate: Callable[[Tensor, Tensor], float],
    rows: int,
    draws: int,
) -> dict[str, float]:
    """Return the errors of an estimator's values on redrawn labels."""
    values = np.empty((draws, len(found)))
    seconds = 0.0
    for draw in range(draws):
        for place, case in enumerate(found):
            generator = torch.Generator().manual_seed(1000 * draw + place)
            chosen = torch.randperm(len(case.truth), generator=generator)[:rows]
            labels = torch.multinomial(case.truth[chosen], 1, generator=generator).squeeze(1)
            started = time.process_time()
            values[draw, place] = estimate(case.log_probs[chosen], labels)
            seconds += time.process_time() - started
    gaps = values - truths
    return {
        "bias": 100 * float(gaps.mean()),
        "error": 100 * float((np.abs(gaps) / truths).mean()),
        "pooled": 100 * float(np.abs(gaps).mean() / truths.mean()),
        "over": 100 * float((gaps > 0).mean()),
        "ranks": float(np.mean([stats.spearmanr(row, truths)[0] for row in values])),
        "ms": 1e6 * seconds / values.size / rows,
    }


def rows_of(
    found: list[Case],
    truths: list[float],
    estimators: dict[str, Callable[[Tensor, Tensor], float]],
    wanted: argparse.Namespace,
) -> Iterator[list[str]]:
    """Yield the lines of one table: one line per estimator and number of rows."""
    for name, estimate in estimators.items():
        for rows in wanted.rows:
            row = judge(found, np.array(truths), estimate, rows, wanted.draws)
            shown = (f"{row[key]:.0f}" for key in ("error", "pooled", "over"))
            ranks = f"{row['ranks']:.2f}", f"{row['ms']:.1f}"
            yield [name, str(rows), f"{row['bias']:+.2f}", *shown, *ranks]


def main() -> None:
    """Judge every estimator and print the page."""
    parser = options(__doc__)
    parser.add_argument("place", type=Path, help="a file of logits or probabilities, or a folder")
    parser.add_argument("--kind", choices=("logits", "probs"))
    parser.add_argument("--rows", type=int, nargs="+", default=[500, 1000, 5000])
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--parts", nargs="+", default=["top", "classwise", "whole"])
    wanted = parser.parse_args()
    place = wanted.place
    paths = sorted(place.glob("*.np*")) if place.is_dir() else [place]
    if not paths:
        parser.error(f"{place} holds no .npz or .npy file")
    torch.set_num_threads(1)
    found = list(cases(paths, wanted.kind))
    parts = {
        "top": ("", [case.top for case in found], TOP),
        "classwise": ("-classwise", [case.classwise for case in found], CLASSWISE),
        "whole": ("-whole", [case.whole for case in found], WHOLE),
    }
    files: dict[str, Table] = {}
    for suffix, truths, estimators in (parts[part] for part in wanted.parts):
        files[suffix] = COLUMNS, list(rows_of(found, truths, estimators, wanted))
    own = parts[wanted.parts[0]]
    said = f"True errors from {100 * min(own[1]):.2f} to {100 * max(own[1]):.2f} %. {GOAL}"
    where = (
        f"{len(found)} cases of {len(paths)} files, {wanted.draws} draws of labels each; 1 thread, "
        f"{setting('torch')}; load average {load()}."
    )
    shown = [*table(*files[own[0]]), "", said]
    question = "Which estimator of calibration error is closest to the true error?"
    publish(question, shown, where, wanted.out, files)


if __name__ == "__main__":
    main()

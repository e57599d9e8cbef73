from array import array
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from trainables.calibrators._base import CALIBRATORS
from trainables.calibrators._binary import Curve, CurveCalibrator
from trainables.common.fields import fitted

STARTS_AT_ONCE = 256


@CALIBRATORS.register("venn-abers")
class VennAbersCalibration(CurveCalibrator):
    """The isotonic curve with the row itself added, once as a hit and once as a miss.

    Inductive Venn-Abers predictors: Vovk et al., Large-scale probabilistic predictors with and
    without guarantees of validity, NeurIPS 2015. Each class is calibrated against the rest; the two
    values p1 and p0 become p1 / (1 - p0 + p1). No curve reaches 0 or 1. Accuracy may change. The
    calibrator stores three numbers per fitting row and class, so do not use it if both are many.
    See ``MixedCalibrator`` for ``variant``.
    """

    scores: Tensor = fitted()
    as_hit: Tensor = fitted()
    as_miss: Tensor = fitted()

    def _curve(self, scores: Tensor, hits: Tensor) -> Curve:
        values, right = scores.double().cpu().numpy(), hits.cpu().numpy()
        # Hits come first among equal scores, so that these always share a stretch.
        order = np.lexsort((~right, values))
        columns = values[order], *added_values(right[order])
        return tuple(array("d", column.tobytes()) for column in columns)

    def _keep(self, curves: Sequence[Curve]) -> None:
        self.scores, self.as_hit, self.as_miss = (
            torch.from_numpy(np.array(column)) for column in zip(*curves, strict=True)
        )

    def _map(self, probabilities: Tensor) -> Tensor:
        wanted = probabilities.T.cpu().contiguous()
        before, behind = (torch.searchsorted(self.scores, wanted, right=r) for r in (False, True))
        # An added hit is placed before the rows of equal score, an added miss after them.
        hit, miss = self.as_hit.gather(1, before), self.as_miss.gather(1, behind)
        return (hit / (1 - miss + hit)).T.to(probabilities.device)

    def _summary(self) -> dict[str, float]:
        """Return the mean distance between the two values over fitting rows and classes."""
        return {"width_mean": float((self.as_hit - self.as_miss).mean())}


def added_values(hits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the isotonic values of a row added at each place, as hit and as miss, (N + 1,) each.

    ``hits`` (N,) are in the order of the scores. By the max-min formula, the value is the maximum
    over a of the minimum over b of the share of hits in the rows a to b around the place. The best
    stretches begin at a hit or the added row, and end before a hit or at the last row. So all
    places between two hits share most of the work.
    """
    places = np.flatnonzero(hits)
    total, count = len(places), len(hits)
    ends, ended = np.append(places, count), np.arange(total + 1)
    from_hit, from_miss = _from_a_hit(places, ends, ended)
    group = np.concatenate([[0], np.cumsum(hits)])
    as_hit = np.empty(count + 1)
    first = 0
    for before in range(total + 1):
        last = int(ends[before])
        own = np.arange(first, last + 1)[:, None]
        shares = (ended[before:] - before + 1) / (ends[before:] - own + 1)
        as_hit[first : last + 1] = np.maximum(from_hit[before], shares.min(1))
        first = last + 1
    return as_hit, from_miss[group]


def _from_a_hit(
    places: np.ndarray, ends: np.ndarray, ended: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the max-min over stretches that begin at a hit, (M + 1,) each.

    Entry m is for an added row with m of the M hits before it. The added row is a hit in the first
    result and a miss in the second; both are 0 for m = 0. ``places`` has the positions of the hits,
    ``ends`` (M + 1,) the positions where stretches may end, and ``ended`` the number of hits before
    each end.
    """
    best = np.zeros((2, len(ends)))
    for start in range(0, len(places), STARTS_AT_ONCE):
        starts = np.arange(start, min(start + STARTS_AT_ONCE, len(places)))[:, None]
        inside, length = ended - starts, ends - places[starts] + 1
        for row, added in zip(best, (1, 0), strict=True):
            shares = np.where(length > 1, (inside + added) / np.maximum(length, 1), np.inf)
            least = np.minimum.accumulate(shares[:, ::-1], axis=1)[:, ::-1]
            allowed = np.where(starts < np.arange(len(ends)), least, 0.0)
            np.maximum(row, allowed.max(0), out=row)
    return best[0], best[1]

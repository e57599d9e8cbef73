import torch
from torch import Tensor

from trainables.calibrators._base import CALIBRATORS, first_argmax
from trainables.calibrators._meta import MetaCalibrator
from trainables.common.errors import InputError
from trainables.common.fields import number


@CALIBRATORS.register("meta-mis")
class MetaMiscoverage(MetaCalibrator):
    """Rejects uncertain rows, but at most a share ``alpha`` of the correctly classified ones.

    Ma and Blaschko, Meta-Cal, ICML 2021, algorithm 1. The threshold is the upper (1 - alpha)
    quantile of the entropy over a tenth of the right rows (at most 500). Rejected rows become
    exactly uniform, so their first class wins: accuracy falls, and ECE looks too good. Never read
    its ECE without its accuracy; do not use it if every row needs a decision.

    Args:
        alpha: Largest share of right rows to reject, in (0, 1).
        seed: Selects the rows for the threshold.
    """

    alpha: float = number(default=0.05, low=0.0, high=1.0, open_low=True, open_high=True)

    def _threshold_rows(self, logits: Tensor, labels: Tensor) -> Tensor:
        right = (first_argmax(logits) == labels).nonzero().squeeze(1)
        if len(right) == 0:
            raise InputError("meta-mis: no fitting row is classified correctly; use other rows")
        return self._draw(right)

    def _find_threshold(self, entropies: Tensor, labels: Tensor, logits: Tensor) -> Tensor:
        return torch.quantile(entropies, 1 - self.alpha, interpolation="higher")

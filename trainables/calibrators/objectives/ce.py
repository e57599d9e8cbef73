"""Cross-entropy as a fitting objective."""

from torch import Tensor

from trainables.calibrators.objectives._base import Objective, RowTerms
from trainables.calibrators.objectives._registry import OBJECTIVES


@OBJECTIVES.register("ce")
class CrossEntropy(Objective):
    """Mean negative log-likelihood: what temperature scaling was proposed with."""

    def per_row(self, terms: RowTerms) -> Tensor:
        """Return ``-log p_y``."""
        return -terms.log_p

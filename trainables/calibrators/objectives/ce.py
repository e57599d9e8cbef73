from torch import Tensor

from trainables.calibrators.objectives._base import OBJECTIVES, Objective, RowTerms


@OBJECTIVES.register("ce")
class CrossEntropy(Objective):
    """Mean negative log-likelihood, the objective for which temperature scaling was proposed."""

    log_loss = True

    def per_row(self, terms: RowTerms) -> Tensor:
        return -terms.log_p

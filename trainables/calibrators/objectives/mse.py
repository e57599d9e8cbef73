from torch import Tensor

from trainables.calibrators.objectives._base import OBJECTIVES, Objective, RowTerms


@OBJECTIVES.register("mse")
class SquaredError(Objective):
    """Squared error of the probabilities, averaged over rows and classes: the Brier score over K.

    The released Mix-n-Match code fits its temperature and its ensemble weights with it. Confident
    mistakes have less effect than with ``ce``; prefer ``ce`` if the log-likelihood is reported.
    """

    needs_square = True

    def per_row(self, terms: RowTerms) -> Tensor:
        """Return the mean squared distance of the calibrated row from its one-hot label."""
        return (terms.sum_p2 - 2 * terms.log_p.exp() + 1) / terms.num_classes

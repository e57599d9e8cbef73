"""TST: a new linear classifier on frozen features."""

from torch import nn

from trainables.refinements._base import Refinement
from trainables.refinements._registry import REFINEMENTS


@REFINEMENTS.register("tst")
class TwoStageTraining(Refinement):
    """Two-stage training (Jordahn & Olmos, 2024): retrains the classifier from scratch.

    The paper's own second head is a small perceptron; here, as in the MaC-Cal comparison, it is a
    single linear layer like the one it replaces, trained with cross-entropy.

    Args:
        epochs: Epochs.
        lr: Learning rate.

    Raises:
        ValueError: If an argument is out of its range.
    """

    def __init__(self, *, epochs: int = 40, lr: float = 0.1) -> None:
        super().__init__(epochs=epochs, lr=lr)

    def build_head(self, feature_dim: int, num_classes: int) -> nn.Linear:
        """Return a linear layer with fresh weights."""
        return nn.Linear(feature_dim, num_classes)

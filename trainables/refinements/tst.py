from collections.abc import Hashable

from torch import nn

from trainables.common.fields import count
from trainables.refinements._base import REFINEMENTS, Refinement


def latent_encoder(feature_dim: int, latent_dim: int) -> nn.Sequential:
    """Return the perceptron D -> 3Z -> Z of Jordahn & Olmos' released code."""
    return nn.Sequential(
        nn.Linear(feature_dim, 3 * latent_dim), nn.ReLU(), nn.Linear(3 * latent_dim, latent_dim)
    )


@REFINEMENTS.register("tst")
class TwoStageTraining(Refinement):
    """Two-stage training (Jordahn & Olmos, 2024): retrains the classifier from scratch.

    The loss is cross-entropy. The default is a linear layer like the one it replaces, so that
    comparisons measure retraining and not a larger head. A positive ``latent_dim`` gives the
    perceptron of the released code. Learning rate and epochs are those of the MaC-Cal paper's
    comparison; the released code uses Adam at 1e-4.

    Args:
        latent_dim: Z of the perceptron D -> 3Z -> Z -> K, or 0 for a single linear layer.
    """

    latent_dim: int = count(default=0, low=0)

    def build_head(self, feature_dim: int, num_classes: int) -> nn.Module:
        """Return a linear layer or a perceptron with fresh weights."""
        if self.latent_dim == 0:
            return nn.Linear(feature_dim, num_classes)
        encoder = latent_encoder(feature_dim, self.latent_dim)
        return nn.Sequential(encoder, nn.Linear(self.latent_dim, num_classes))

    def together_key(self) -> Hashable:
        """Return whether the head is a perceptron, and the number of epochs."""
        return ("tst", self.latent_dim > 0, self.epochs)

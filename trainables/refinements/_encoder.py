"""The latent layer of two-stage training."""

from torch import nn


def latent_encoder(feature_dim: int, latent_dim: int) -> nn.Sequential:
    """Return the perceptron D -> 3Z -> Z of Jordahn & Olmos' released code."""
    return nn.Sequential(
        nn.Linear(feature_dim, 3 * latent_dim), nn.ReLU(), nn.Linear(3 * latent_dim, latent_dim)
    )

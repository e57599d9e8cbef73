"""Losses of one batch under several targets."""

from torch import Tensor

from trainables.losses._base import Loss


def loss_aside(
    loss: Loss, logits: Tensor, targets: Tensor, indices: Tensor | None = None
) -> Tensor:
    """Return a loss, with gradient, of a batch that its history is not to count.

    Methods that judge a batch twice, under other targets or by another head, call the loss itself
    once and this for the rest, so that a history counts each sample once an epoch.
    """
    training = loss.training
    loss.eval()
    try:
        return loss(logits, targets, indices)
    finally:
        loss.train(training)

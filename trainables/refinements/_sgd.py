"""Stochastic gradient descent that leaves single weights alone."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class MaskedSGD:
    """SGD with momentum and weight decay in which single weights can stand still.

    Without masks it takes the steps of ``torch.optim.SGD``. Zeroing a gradient is not enough to
    hold a weight: its velocity and the weight decay would still move it. Here weight and velocity
    are both kept and continue from there once the weight is released.

    Args:
        parameters: What to train, by name.
        lr: Learning rate.
        momentum: Factor of the velocity.
        weight_decay: Factor of the L2 penalty's gradient.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        lr: float,
        momentum: float,
        weight_decay: float,
    ) -> None:
        self._parameters = dict(parameters)
        self.lr = lr
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.velocities = {n: torch.zeros_like(p) for n, p in self._parameters.items()}

    @torch.no_grad()
    def step(self, movable: Mapping[str, Tensor]) -> None:
        """Move every weight, except those that are False in the mask of their parameter."""
        for name, parameter in self._parameters.items():
            if parameter.grad is None:
                continue
            velocity = self.velocities[name]
            gradient = parameter.grad.add(parameter, alpha=self.weight_decay)
            moved = velocity.mul(self.momentum).add_(gradient)
            if name in movable:
                mask = movable[name]
                velocity.copy_(torch.where(mask, moved, velocity))
                moved = torch.where(mask, moved, 0)
            else:
                velocity.copy_(moved)
            parameter.add_(moved, alpha=-self.lr)

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for parameter in self._parameters.values():
            parameter.grad = None

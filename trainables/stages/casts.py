from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

# Layers with weights that autocast computes in bfloat16.
_LOWERED = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


class CastWeights:
    """Casts the weights of convolutions and linear layers together, instead of one by one.

    Autocast would cast each weight and each gradient separately: the values are the same, but each
    step has two more kernel launches per weight. Autocast leaves bfloat16 weights as they are.

    Args:
        module: A module that runs under autocast to bfloat16; it keeps its parameter objects.
    """

    def __init__(self, module: nn.Module) -> None:
        self._places: list[tuple[dict[str, Any], str, nn.Parameter]] = [
            (layer._parameters, name, weight)
            for layer in module.modules()
            if isinstance(layer, _LOWERED)
            for name in ("weight", "bias")
            # A reparametrised weight is not in its layer's parameters.
            if (weight := layer._parameters.get(name)) is not None
        ]
        self._weights = list(dict.fromkeys(weight for *_, weight in self._places))

    @contextmanager
    def cast(self) -> Iterator[None]:
        """Use cast weights in the layers; the original parameters receive the gradients."""
        lowered = dict(zip(self._weights, _cast(self._weights), strict=True))
        try:
            for parameters, name, weight in self._places:
                parameters[name] = lowered[weight]
            yield
        finally:
            for parameters, name, weight in self._places:
                parameters[name] = weight


def _cast(weights: Sequence[Tensor]) -> list[Tensor]:
    """Return the weights in bfloat16, without gradients for frozen ones."""
    learning = [weight for weight in weights if weight.requires_grad]
    moving = iter(_Cast.apply(*learning) if learning else ())
    frozen = iter(_copied([w for w in weights if not w.requires_grad], torch.bfloat16))
    return [next(moving if weight.requires_grad else frozen) for weight in weights]


class _Cast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple(_copied(weights, torch.bfloat16))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor | None) -> tuple[Tensor | None, ...]:
        full = iter(_copied([slope for slope in slopes if slope is not None], torch.float32))
        return tuple(None if slope is None else next(full) for slope in slopes)


@torch.no_grad()
def _copied(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    copies = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    if copies:
        torch._foreach_copy_(copies, list(tensors))
    return copies

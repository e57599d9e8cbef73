"""The losses by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainables.common.registry import Registry

if TYPE_CHECKING:
    from trainables.losses._base import Loss

LOSSES: Registry[Loss] = Registry(
    "loss", "trainables.losses", "trainables.losses._base.Loss", "methods"
)


def build_loss(name: str, **parameters: Any) -> Loss:
    """Make a loss by name, for example ``build_loss("mbls", margin=6.0, weight=0.1)``.

    Args:
        name: A name from ``LOSSES.names()``.
        **parameters: The loss's hyper-parameters; those left out keep their published default.

    Returns:
        A module that maps logits (N, K) or (N, K, H, W) and targets (N,) or (N, H, W) to a scalar.

    Raises:
        InputError: If the name or a parameter's name is unknown (a ``ValueError``).
        ValueError: If a value is out of its range.
    """
    return LOSSES.build(name, **parameters)

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from trainables.common.fields import CheckedFields
from trainables.losses import Loss
from trainables.models import Network
from trainables.schemes._registry import SCHEMES as SCHEMES


class Scheme(CheckedFields):
    """A change of the training procedure: frozen layers, another head, a weighting.

    The base class trains without changes; a subclass declares its arguments as fields and overrides
    the steps that it changes. State that a resumed trial needs must be in ``state_dict`` or in the
    network that ``attach`` returns.

    Attributes:
        forms_loss: Whether it replaces ``training_loss``, so that it cannot be combined with an
            augmentation, which does the same.
        freezes: Whether it decides which weights learn, so that ``learns: head`` is not allowed.
        not_for: Why it cannot be used with a kind of data, by the kind's name.

    Raises:
        ValueError: If an argument is out of its range.
    """

    forms_loss: ClassVar[bool] = False
    freezes: ClassVar[bool] = False
    not_for: ClassVar[Mapping[str, str]] = {}

    def attach(self, network: Network, num_classes: int) -> Network:
        """Return the network to train, which may be a wrapped or extended one.

        Its ``features`` must be those of ``network``, because refinements use them.
        """
        return network

    def prepare(self, num_samples: int) -> None:
        """Prepare for the training set before the first epoch."""

    def start_epoch(self, network: Network, epoch: int, epochs: int) -> None:
        """Prepare epoch ``epoch`` (from 0) of ``epochs``, for example freeze parameters."""

    def training_loss(
        self, network: Network, loss: Loss, inputs: Tensor, targets: Tensor, indices: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the scalar to minimise and the logits (N, K).

        State must be in tensors on the device, because a GPU may replay a recorded step without
        calling this again.
        """
        logits = network(inputs)
        return loss(logits, targets, indices), logits

    def end_epoch(self, network: Network, epoch: int) -> dict[str, float]:
        """Finish an epoch and return metrics to track, such as a fitted weight."""
        return {}

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state for ``load_state_dict``."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Resume from ``state``."""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from trainables.common.fields import CheckedFields
from trainables.losses import Loss
from trainables.models import Network
from trainables.schemes._registry import SCHEMES as SCHEMES


class Scheme(CheckedFields):
    """A change of the training procedure itself: frozen layers, another head, a weighting.

    The base class trains as usual; a subclass declares its arguments as fields and overrides the
    steps that it changes. State that an interrupted
    trial needs goes through ``state_dict`` and ``load_state_dict``, or lives in the network that
    ``attach`` returns.

    Attributes:
        forms_loss: Whether ``training_loss`` is the scheme's own, so that an augmentation, which
            forms the loss too, cannot be combined with it.
        freezes: Whether it decides which weights learn, so that ``learns: head`` cannot.
        not_for: Why it cannot be used with a kind of data, by the kind's name.

    Raises:
        ValueError: If an argument is out of its range.
    """

    forms_loss: ClassVar[bool] = False
    freezes: ClassVar[bool] = False
    not_for: ClassVar[Mapping[str, str]] = {}

    def attach(self, network: Network, num_classes: int) -> Network:
        """Return the network to train, which may be a wrapped or extended one.

        Its ``features`` are those that a refinement retrains on; only ``classify`` may differ.
        """
        return network

    def prepare(self, num_samples: int) -> None:
        """Prepare for the training set before the first epoch."""

    def start_epoch(self, network: Network, epoch: int, epochs: int) -> None:
        """Prepare epoch ``epoch`` (from 0) of ``epochs``, such as by freezing parameters."""

    def training_loss(
        self, network: Network, loss: Loss, inputs: Tensor, targets: Tensor, indices: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the scalar to minimise and the logits (N, K).

        What it keeps of a step has its place in tensors on the device: a GPU that repeats a
        recorded step does not call this again.
        """
        logits = network(inputs)
        return loss(logits, targets, indices), logits

    def end_epoch(self, network: Network, epoch: int) -> dict[str, float]:
        """Finish an epoch and return figures worth tracking, such as a searched weight."""
        return {}

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state that ``load_state_dict`` needs to resume."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Resume from ``state``."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from torch import Generator, Tensor

from trainables.augmentations._registry import AUGMENTATIONS as AUGMENTATIONS
from trainables.common.fields import CheckedFields
from trainables.losses import Loss
from trainables.models import Network


class Augmentation(CheckedFields, ABC):
    """Another way to compute the training loss of a batch than ``loss(network(inputs))``.

    A subclass declares its arguments as fields and keeps no state between batches. Random numbers
    are drawn before the step, so that a GPU can replay a recorded step, and from the given
    generator, so that a resumed trial draws the same numbers.

    Attributes:
        not_for: Why it cannot be used with a kind of data, by the kind's name.

    Raises:
        ValueError: If an argument is out of its range.
    """

    not_for: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def draw(self, network: Network, inputs: Tensor, generator: Generator) -> tuple[Tensor, ...]:
        """Return a batch's random values, on the CPU.

        Batches with inputs of the same shape have values of the same shapes.

        Args:
            network: The network to train.
            inputs: (N, ...); only the shape is used.
            generator: CPU source of random numbers.
        """

    @abstractmethod
    def training_loss(
        self,
        network: Network,
        loss: Loss,
        inputs: Tensor,
        targets: Tensor,
        indices: Tensor,
        *drawn: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the scalar to minimise and the network's logits (N, K).

        Args:
            network: The network in training mode.
            loss: Any loss.
            inputs: (N, ...), inputs of the network.
            targets: (N,), int64.
            indices: Position of each sample in the training set, (N,).
            drawn: The result of ``draw``, on the inputs' device.
        """

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import scipy
import torch
from torch import Tensor

from trainables.augmentations._base import AUGMENTATIONS
from trainables.augmentations._mixing import PairAugmentation, Pairs
from trainables.common.fields import choice, number
from trainables.losses import Loss
from trainables.models import Network

VARIANTS = ("l", "a")
DRAWS = 1024
RAREST = 1e-4

Layers = Callable[[Tensor], Tensor]
Ratios = Tensor | tuple[float, float]


@AUGMENTATIONS.register("mit")
class MixupInferenceInTraining(PairAugmentation):
    """Mixes each pair of inputs twice and solves for the outputs of the unmixed inputs.

    The ratios l1 >= 0.5 and l2 <= 0.5 of the two mixtures are at least ``margin`` apart. The
    outputs of the mixtures give two linear equations for the unmixed outputs, and each of these has
    the loss of its own target. ``variant`` is the place where the equations are solved:

    - ``l`` (MIT-L): at the logits.
    - ``a`` (MIT-A): after every block of the network, before mixing again in new ratios; the
      pooling and the classifier are the last block. Blocks are the stages of a network
      (``Network.blocks``); a network that is not a sequence has two, extractor and classifier.

    ``l`` is the default: it is the same for every network, and the code of the BalCAL and MaC-Cal
    authors compares with it (there without a margin, so that the quotient explodes if l1 and l2 are
    close). ``margin`` and ``alpha`` are those of the released commands.

    Source: Wang et al., On the Pitfall of Mixup for Uncertainty Calibration, CVPR 2023.

    Costs two passes per step. Batch statistics are those of mixed inputs only.

    Args:
        alpha: Both parameters of the ratios' beta distribution, > 0.
        margin: Smallest distance of l1 and l2, in [0, 1).
        variant: ``l`` or ``a``.

    Raises:
        ValueError: If ``alpha`` makes ratios with a distance of ``margin`` too rare to draw.
    """

    not_for: ClassVar = {"images-with-masks": "it decouples a network's outputs for whole images"}

    margin: float = number(default=0.5, low=0.0, high=1.0, open_high=True)
    variant: str = choice(default="l", choices=VARIANTS)

    def __post_init__(self) -> None:
        super().__post_init__()
        # A lower bound: it is sufficient that both ratios are half the margin from 0.5.
        one_side = 2 * scipy.special.betaincc(self.alpha, self.alpha, 0.5 + self.margin / 2)
        if one_side**2 < RAREST:
            raise ValueError(
                f"margin={self.margin!r} is too large for alpha={self.alpha!r}: less than one in "
                f"{1 / RAREST:.0f} pairs of ratios are so far apart; use a smaller margin"
            )

    def draw_mixture(
        self, network: Network, shape: torch.Size, source: np.random.Generator
    ) -> tuple[Tensor]:
        """Return l1 and l2 for each of the S parts of ``_steps``, (S, 2).

        They are float64, because their difference may be small.
        """
        ratios = [self.draw_ratios(source) for _ in self._steps(network)]
        return (torch.tensor(ratios, dtype=torch.float64),)

    def loss_of_pairs(
        self, network: Network, loss: Loss, pairs: Pairs, *mixture: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the mean loss of both inputs of the pairs, and the first inputs' logits."""
        (ratios,) = mixture
        logits, other = self.run(pairs, self._steps(network), list(ratios))
        return pairs.loss(loss, logits, other, (0.5, 0.5)), logits

    def run(
        self, pairs: Pairs, steps: list[Layers], ratios: Sequence[Ratios]
    ) -> tuple[Tensor, Tensor]:
        """Return the unmixed logits of both inputs, (N, K) each; every step mixes and unmixes."""
        a, b = pairs.inputs, pairs.other_inputs
        for layers, (first, second) in zip(steps, ratios, strict=True):
            mixed = layers(first * a + (1 - first) * b)
            other_mixed = layers(second * a + (1 - second) * b)
            # Solve two linear equations for the two unmixed outputs.
            gap = first - second
            a = ((1 - second) * mixed - (1 - first) * other_mixed) / gap
            b = (first * other_mixed - second * mixed) / gap
        return a, b

    def draw_ratios(self, source: np.random.Generator) -> tuple[float, float]:
        """Return l1 >= 0.5 and l2 <= 0.5, at least ``margin`` apart and different."""
        while True:
            draws = source.beta(self.alpha, self.alpha, size=(DRAWS, 2))
            first = np.maximum(draws[:, 0], 1 - draws[:, 0])
            second = np.minimum(draws[:, 1], 1 - draws[:, 1])
            gaps = first - second
            wide = np.flatnonzero((gaps >= self.margin) & (gaps > 0))
            if len(wide):
                return float(first[wide[0]]), float(second[wide[0]])

    def _steps(self, network: Network) -> list[Layers]:
        """Return the parts of the network whose outputs are unmixed."""
        if self.variant == "l":
            return [network]
        *blocks, pooling = network.blocks()
        return [*blocks, lambda maps: network.classify(pooling(maps))]

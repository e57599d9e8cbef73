"""Several heads on the same features, trained together."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from trainables.refinements._bundle import HeadBundle
from trainables.refinements._trainer import HeadTrainer

__all__ = ["HeadGroup"]

# Filling heads up to the largest of a bundle costs at most so much more than they need.
WIDEST_TO_NARROWEST = 1.5


class HeadGroup:
    """Takes the epochs of several ``HeadTrainer`` at once, with equal results to float tolerance.

    Every member keeps its own random numbers, order, masks, learning rate and feedback; what is
    shared is the pass: the weights of heads of about the same size are stacked, and a step is one
    large product instead of one small product a head. Where a step costs its launch rather than its
    arithmetic, many heads take hardly longer than one; where arithmetic is all of it (wide heads on
    a CPU), there is little to win.

    Args:
        trainers: Members whose refinements give the same ``pass_key``, on the same views, at the
            same epoch. They are updated in place, an epoch at a time.

    Raises:
        ValueError: If there is no member, or two cannot share a pass.
    """

    def __init__(self, trainers: Sequence[HeadTrainer]) -> None:
        keys = {trainer.refinement.pass_key() for trainer in trainers}
        if len(keys) != 1 or None in keys:
            raise ValueError(f"{len(trainers)} trainers with pass keys {keys} cannot share a pass")
        self.trainers = list(trainers)
        self._bundles = _bundles(self.trainers)

    def train_epoch(self) -> list[dict[str, float]]:
        """Train every member one epoch; return what ``HeadTrainer.train_epoch`` returns of each."""
        figures: dict[int, dict[str, float]] = {}
        for bundle in self._bundles:
            found = bundle.train_epoch()
            figures |= {id(one): own for one, own in zip(bundle.trainers, found, strict=True)}
        return [figures[id(trainer)] for trainer in self.trainers]

    def logits(self, features: Tensor) -> list[Tensor]:
        """Return every member's logits (N, K), in eval mode, of features (N, D)."""
        found: dict[int, Tensor] = {}
        for bundle in self._bundles:
            logits = bundle.logits(features)
            found |= {id(one): own for one, own in zip(bundle.trainers, logits, strict=True)}
        return [found[id(trainer)] for trainer in self.trainers]

    def drop(self, trainer: HeadTrainer) -> None:
        """Go on without a member, such as one that diverged."""
        self.trainers.remove(trainer)
        self._bundles = _bundles(self.trainers)

    def __len__(self) -> int:
        """Return the number of members."""
        return len(self.trainers)


def _bundles(trainers: Sequence[HeadTrainer]) -> list[HeadBundle]:
    """Return bundles of members of about the same size."""
    by_size, bundles = sorted(trainers, key=_size), []
    while by_size:
        limit = WIDEST_TO_NARROWEST * _size(by_size[0])
        count = sum(_size(trainer) <= limit for trainer in by_size)
        bundles.append(HeadBundle(by_size[:count]))
        by_size = by_size[count:]
    return bundles


def _size(trainer: HeadTrainer) -> int:
    return sum(parameter.numel() for parameter in trainer.head.parameters())

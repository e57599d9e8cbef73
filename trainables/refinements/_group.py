"""Several heads on the same features, trained together in one pass."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional as F

from trainables.refinements._trainer import HeadTrainer

__all__ = ["HeadGroup"]

Tensors = dict[str, Tensor]


class HeadGroup:
    """Takes the epochs of several ``HeadTrainer`` at once, with equal results to float tolerance.

    Every member keeps its own random numbers, order, masks, learning rate and feedback; what is
    shared is the pass: the weights of all heads are stacked, and a step is one batched product
    instead of one small product a head. With small features a step costs next to nothing but its
    launch, so that many heads take hardly longer than one. Narrower layers are filled up with
    zeros, which neither count nor move: their gradients are zero too.

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
        self._first = self.trainers[0]
        self._template = copy.deepcopy(self._first.head)

    def train_epoch(self) -> list[dict[str, float]]:
        """Train every member one epoch; return what ``HeadTrainer.train_epoch`` returns of each."""
        first = self._first
        view = first.view()
        orders, noises = zip(*(trainer.draw_order() for trainer in self.trainers), strict=True)
        for trainer, noise in zip(self.trainers, noises, strict=True):
            trainer.head.train()
            trainer.refinement.start_epoch(trainer.head, trainer.epoch, noise)
        totals = self._train(view, torch.stack(orders))
        means = (totals / len(view)).tolist()
        return [t.end_epoch(view, *mean) for t, mean in zip(self.trainers, means, strict=True)]

    def _train(self, view: Tensor, orders: Tensor) -> Tensor:
        """Go through the training set once; return sums of loss, hits and confidence, (M, 3)."""
        weights, velocities, buffers = self._stacked()
        masks = self._masks()
        gradients = vmap(grad_and_value(self._loss, has_aux=True))
        totals = torch.zeros(len(self.trainers), 3, dtype=torch.float64, device=view.device)
        self._template.train()
        for rows in orders.split(self._first.batch_size, dim=1):
            targets = self._first.labels[rows]
            slopes, (losses, logits) = gradients(weights, buffers, view[rows].float(), targets)
            self._step(weights, velocities, slopes, masks)
            totals += _sums(losses.detach(), logits.detach(), targets)
        self._return(weights, velocities)
        return totals

    def _loss(
        self, weights: Tensors, buffers: Tensors, features: Tensor, targets: Tensor
    ) -> tuple[Tensor, Tensor]:
        logits = functional_call(self._template, (weights, buffers), (features,))
        return F.cross_entropy(logits, targets), logits

    @torch.no_grad()
    def _step(self, weights: Tensors, velocities: Tensors, slopes: Tensors, masks: Tensors) -> None:
        """Take the step of ``MaskedSGD`` for every member."""
        optimizers = [trainer.optimizer for trainer in self.trainers]
        decay, momentum = optimizers[0].weight_decay, optimizers[0].momentum
        for name, weight in weights.items():
            lr = weight.new_tensor([optimizer.lr for optimizer in optimizers])
            lr = lr.view(-1, *[1] * (weight.ndim - 1))
            moved = velocities[name].mul(momentum).add_(slopes[name].add(weight, alpha=decay))
            if name in masks:
                velocities[name] = torch.where(masks[name], moved, velocities[name])
                moved = torch.where(masks[name], moved, 0)
            else:
                velocities[name] = moved
            weights[name] = weight - lr * moved

    def _stacked(self) -> tuple[Tensors, Tensors, Tensors]:
        heads = [trainer.head for trainer in self.trainers]
        named = [dict(head.named_parameters()) for head in heads]
        weights = {name: _stack(named, name) for name in named[0]}
        stored = [dict(head.named_buffers()) for head in heads]
        buffers = {name: _stack(stored, name) for name in stored[0]}
        moving = [trainer.optimizer.velocities for trainer in self.trainers]
        return weights, {name: _stack(moving, name) for name in moving[0]}, buffers

    def _masks(self) -> Tensors:
        found = [trainer.refinement.movable(trainer.head) for trainer in self.trainers]
        return {name: _stack(found, name) for name in found[0]}

    @torch.no_grad()
    def _return(self, weights: Tensors, velocities: Tensors) -> None:
        """Write weights and velocities back into the members."""
        for position, trainer in enumerate(self.trainers):
            for name, parameter in trainer.head.named_parameters():
                own = _corner(position, parameter)
                parameter.copy_(weights[name][own])
                trainer.optimizer.velocities[name].copy_(velocities[name][own])

    def drop(self, trainer: HeadTrainer) -> None:
        """Go on without a member, such as one that diverged."""
        self.trainers.remove(trainer)

    def __len__(self) -> int:
        """Return the number of members."""
        return len(self.trainers)


def _stack(members: Sequence[Any], name: str) -> Tensor:
    """Return one tensor of all members (M, ...), each filled up with zeros to the largest."""
    tensors = [member[name].detach() for member in members]
    sizes = [max(size) for size in zip(*(tensor.shape for tensor in tensors), strict=True)]
    stacked = tensors[0].new_zeros(len(tensors), *sizes)
    for position, tensor in enumerate(tensors):
        stacked[_corner(position, tensor)] = tensor
    return stacked


def _corner(position: int, tensor: Tensor) -> tuple[int | slice, ...]:
    """Return where a member's own tensor lies in the stacked one."""
    return (position, *(slice(size) for size in tensor.shape))


def _sums(losses: Tensor, logits: Tensor, targets: Tensor) -> Tensor:
    confidences, predictions = logits.softmax(dim=2).max(dim=2)
    hits = (predictions == targets).sum(dim=1)
    return torch.stack([losses * targets.shape[1], hits, confidences.sum(dim=1)], dim=1)

"""Trains several heads on the same features together, with one matrix product per step."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call, vmap

from trainables.refinements._base import Refinement
from trainables.refinements._trainer import EVALUATION_BATCH, HeadTrainer, hits_and_confidence

# Number of rows per pass, summed over the heads; on a GPU, few large passes save launches.
EVALUATION_BATCH_ON_GPU = 65536
# Padding heads to the largest one of a stack costs at most this factor.
WIDEST_TO_NARROWEST = 1.5

Tensors = dict[str, Tensor]
Found = TypeVar("Found")


class HeadsTogether:
    """Runs the epochs of several ``HeadTrainer`` at once, with the same results up to rounding.

    Each trainer (member) keeps its own random numbers, order, masks, learning rate and feedback.
    Heads of about the same size are stacked, so that a step is one large product instead of one
    small product per head. If launches take most of the time, many heads take hardly longer than
    one; if arithmetic does (wide heads on a CPU), the gain is small.

    Members have refinements with the same ``together_key``, and the same views and epoch. They are
    updated in place.

    Raises:
        ValueError: If there are no members, or some cannot be trained together.
    """

    def __init__(self, trainers: Sequence[HeadTrainer]) -> None:
        keys = {trainer.refinement.together_key() for trainer in trainers}
        if len(keys) != 1 or None in keys:
            raise ValueError(
                f"expected trainers with the same key, got {len(trainers)} with the keys {keys}"
            )
        self._trainers = list(trainers)
        self._stacks = _stacks(self._trainers)

    def train_epoch(self) -> list[dict[str, float]]:
        """Train every member one epoch; return the ``HeadTrainer.train_epoch`` metrics of each."""
        return self._for_each(_HeadStack.train_epoch)

    def logits(self, features: Tensor) -> list[Tensor]:
        """Return every member's logits (N, K), in eval mode, for features (N, D)."""
        return self._for_each(lambda stack: list(stack.logits(features)))

    def drop(self, trainer: HeadTrainer) -> None:
        """Continue without a member, such as one that diverged."""
        self._trainers.remove(trainer)
        self._stacks = _stacks(self._trainers)

    def _for_each(self, compute: Callable[[_HeadStack], list[Found]]) -> list[Found]:
        found: dict[HeadTrainer, Found] = {}
        for stack in self._stacks:
            found.update(zip(stack.trainers, compute(stack), strict=True))
        return [found[trainer] for trainer in self._trainers]


def _stacks(trainers: Sequence[HeadTrainer]) -> list[_HeadStack]:
    by_size, stacks = sorted(trainers, key=_size), []
    while by_size:
        limit = WIDEST_TO_NARROWEST * _size(by_size[0])
        count = sum(_size(trainer) <= limit for trainer in by_size)
        stacks.append(_HeadStack(by_size[:count]))
        by_size = by_size[count:]
    return stacks


def _size(trainer: HeadTrainer) -> int:
    return sum(parameter.numel() for parameter in trainer.head.parameters())


class _HeadStack:
    """Heads of about the same size, stacked; narrow ones are padded with constant zeros."""

    def __init__(self, trainers: Sequence[HeadTrainer]) -> None:
        self.trainers = trainers
        self._first = trainers[0]
        self._template = copy.deepcopy(self._first.head)
        # Cached, because looking up names is slow; the tensors stay the same objects.
        self._parameters = [dict(trainer.head.named_parameters()) for trainer in trainers]
        self._buffers = [dict(trainer.head.named_buffers()) for trainer in trainers]

    def train_epoch(self) -> list[dict[str, float]]:
        view = self._first.view()
        orders, noises = zip(*(trainer.draw_order() for trainer in self.trainers), strict=True)
        for trainer, noise in zip(self.trainers, noises, strict=True):
            trainer.head.train()
            trainer.refinement.start_epoch(trainer.head, trainer.epoch, noise)
        means = self._train(view, orders, noises) / len(view)
        rows = torch.cat([means, self._feedback(view, means[:, 1:])], dim=1).tolist()
        return [t.end_epoch(*row) for t, row in zip(self.trainers, rows, strict=True)]

    def logits(self, features: Tensor) -> Tensor:
        """Return the logits (M, N, K), in eval mode, for features (N, D)."""
        parts = self._evaluate(self._template.eval(), *self._stacked(), features)
        return torch.cat(list(parts), dim=1)

    def _feedback(self, view: Tensor, trained_on: Tensor) -> Tensor:
        """Return accuracy and mean confidence for each refinement's ``end_epoch``, (M, 2).

        They are ``trained_on``, those of the training steps, unless the refinement has a
        ``second_pass``.
        """
        second_pass = [trainer.refinement.second_pass for trainer in self.trainers]
        if not any(second_pass):
            return trained_on
        probe = _Feedback(self._first.refinement, self._template).eval()
        weights, buffers = ({f"head.{n}": t for n, t in each.items()} for each in self._stacked())
        totals = torch.zeros(len(self.trainers), 2, dtype=torch.float64, device=view.device)
        features, labels = self._first.feedback_rows(view)
        parts = self._evaluate(probe, weights, buffers, features)
        for logits, targets in zip(parts, labels.split(self._rows), strict=True):
            totals += hits_and_confidence(logits, targets)
        chosen = torch.tensor(second_pass, device=view.device)[:, None]
        return torch.where(chosen, totals / len(labels), trained_on)

    @property
    def _rows(self) -> int:
        """Return the number of rows to evaluate at once, which limits the memory."""
        on_cpu = self._first.labels.device.type == "cpu"
        limit = EVALUATION_BATCH if on_cpu else EVALUATION_BATCH_ON_GPU
        return max(1, limit // len(self.trainers))

    @torch.no_grad()
    def _evaluate(
        self, module: nn.Module, weights: Tensors, buffers: Tensors, features: Tensor
    ) -> Iterator[Tensor]:
        forward = vmap(_call, in_dims=(None, 0, 0, None))
        for rows in features.split(self._rows):
            yield forward(module, weights, buffers, rows.float())

    def _train(self, view: Tensor, orders: Sequence[Tensor], noises: Sequence[Generator]) -> Tensor:
        """Train for one pass; return the sums of loss, hits and confidence, (M, 3)."""
        # Members with the same seed have the same order and share every batch.
        shared = all(torch.equal(order, orders[0]) for order in orders)
        order = orders[0] if shared else torch.stack(list(orders))
        weights, buffers = self._stacked()
        step = _StackedSGD(weights, self.trainers)
        self._template.train()
        forward = vmap(_call, in_dims=(None, 0, 0, None if shared else 0))
        totals = torch.zeros(len(self.trainers), 3, dtype=torch.float64, device=view.device)
        draw = self._first.refinement.start_batches_together(
            [trainer.head for trainer in self.trainers], buffers, noises
        )
        drawn: Tensors = {}
        for rows in order.split(self._first.batch_size, dim=-1):
            if draw is not None:
                drawn = draw()
                buffers |= drawn
            elif self._first.refinement.changes_batches:
                for trainer, noise in zip(self.trainers, noises, strict=True):
                    trainer.refinement.start_batch(trainer.head, noise)
                buffers = _stack_all(self._buffers)
                step.take_masks(self.trainers)
            targets = self._first.labels[rows].expand(len(self.trainers), -1)
            logits = forward(self._template, weights, buffers, view[rows].float())
            slopes, sums = _cross_entropy(logits.detach(), targets)
            step(torch.autograd.grad(logits, list(weights.values()), slopes))
            totals += sums
        self._write_back(weights, step.velocities, drawn)
        return totals

    def _stacked(self) -> tuple[Tensors, Tensors]:
        weights = _stack_all(self._parameters)
        for weight in weights.values():
            weight.requires_grad_()
        return weights, _stack_all(self._buffers)

    @torch.no_grad()
    def _write_back(self, weights: Tensors, velocities: Tensors, drawn: Tensors) -> None:
        for position, trainer in enumerate(self.trainers):
            for name, values in drawn.items():
                buffer = self._buffers[position][name]
                buffer.copy_(values[_corner(position, buffer)])
            for name, parameter in self._parameters[position].items():
                own = _corner(position, parameter)
                parameter.copy_(weights[name][own])
                trainer.optimizer.velocities[name].copy_(velocities[name][own])


class _Feedback(nn.Module):
    def __init__(self, refinement: Refinement, head: nn.Module) -> None:
        super().__init__()
        self._refinement = refinement
        self.head = head

    def forward(self, features: Tensor) -> Tensor:
        return self._refinement.feedback_logits(self.head, features)


class _StackedSGD:
    """``MaskedSGD`` for all members at once."""

    def __init__(self, weights: Tensors, trainers: Sequence[HeadTrainer]) -> None:
        optimizers = [trainer.optimizer for trainer in trainers]
        self._weights = weights
        self._decay, self._momentum = optimizers[0].weight_decay, optimizers[0].momentum
        self.velocities = _stack_all([optimizer.velocities for optimizer in optimizers])
        self._plain_rates = {
            name: _rates([optimizer.lr for optimizer in optimizers], weight)
            for name, weight in weights.items()
        }
        self.take_masks(trainers)

    def take_masks(self, trainers: Sequence[HeadTrainer]) -> None:
        """Use the present masks of weights that may change."""
        masks = _stack_all([trainer.refinement.movable(trainer.head) for trainer in trainers])
        self._rates = {name: r * masks.get(name, 1) for name, r in self._plain_rates.items()}
        self._masks = {name: mask.to(self._weights[name].dtype) for name, mask in masks.items()}

    @torch.no_grad()
    def __call__(self, slopes: Sequence[Tensor]) -> None:
        """Update the weights; overwrites ``slopes``."""
        for (name, weight), slope in zip(self._weights.items(), slopes, strict=True):
            velocity = self.velocities[name]
            change = slope.add_(weight, alpha=self._decay).add_(velocity, alpha=self._momentum - 1)
            if name in self._masks:
                change.mul_(self._masks[name])
            velocity.add_(change)
            weight.addcmul_(velocity, self._rates[name], value=-1)


def _call(module: nn.Module, weights: Tensors, buffers: Tensors, features: Tensor) -> Tensor:
    return functional_call(module, (weights, buffers), (features,), tie_weights=False)


def _rates(rates: Sequence[float], weight: Tensor) -> Tensor:
    return weight.new_tensor(rates).view(-1, *[1] * (weight.ndim - 1))


def _cross_entropy(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of mean cross-entropies by logits (M, B, K), and sums (M, 3).

    The sums are those of loss, hits and confidence.
    """
    index = targets.unsqueeze(2)
    largest, predictions = logits.max(dim=2, keepdim=True)
    chosen = (logits.gather(2, index) - largest).squeeze(2)
    slopes = (logits - largest).exp_()
    total = slopes.sum(2)
    slopes.div_(total.unsqueeze(2)).scatter_add_(2, index, -torch.ones_like(largest))
    hits = predictions == index
    sums = [(total.log() - chosen).sum(1), hits.sum((1, 2)), total.reciprocal().sum(1)]
    return slopes.div_(targets.shape[1]), torch.stack(sums, dim=1)


def _stack_all(members: Sequence[Mapping[str, Any]]) -> Tensors:
    return {name: _stack([member[name] for member in members]) for name in members[0]}


def _stack(members: Sequence[Tensor]) -> Tensor:
    """Stack members to one tensor (M, ...), padded with zeros to the largest."""
    if len({tensor.shape for tensor in members}) == 1:
        return torch.stack([tensor.detach() for tensor in members])
    sizes = [max(size) for size in zip(*(tensor.shape for tensor in members), strict=True)]
    stacked = members[0].detach().new_zeros(len(members), *sizes)
    for position, tensor in enumerate(members):
        stacked[_corner(position, tensor)] = tensor.detach()
    return stacked


def _corner(position: int, tensor: Tensor) -> tuple[int | slice, ...]:
    return (position, *(slice(size) for size in tensor.shape))

import math
import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import pairwise

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from trainables.common.fields import choice, count, flag, number
from trainables.refinements._base import REFINEMENTS, Refinement

DEPLOYED = ("deployed", "validation")  # Feedback measured on the outputs of inference.


def clip_bound(eta_init: float, eta_final: float, step: int, horizon: int) -> float:
    """Return the limit of a change of q at t = ``step`` of T = ``horizon`` (eq. 13).

    It falls from ``eta_init`` at step 0 to ``eta_final`` at the horizon, both positive.
    """
    return eta_init * math.exp(math.log(eta_final / eta_init) * step / horizon)


def sparsity_step(q: float, accuracy: float, confidence: float, gamma: float, eta: float) -> float:
    """Return the next q (eq. 12): it grows while confidence exceeds gamma * accuracy.

    The change is clipped to [-eta, eta] and the result to [0, 1]. Accuracy and mean confidence are
    those of the epoch, as fractions.
    """
    change = min(max(confidence - gamma * accuracy, -eta), eta)
    return min(max(q + change, 0.0), 1.0)


class MaskedHead(nn.Module):
    """Linear layers with ReLU between them; single weights can be masked in training.

    Args:
        widths: D, the hidden widths if any, K.
        q: Initial q, a share of the weights.
        q_role: Whether q is the share that masks ``keep`` or ``drop``.
        inference: Weights in eval mode: ``scaled`` by the share that is kept, unchanged
            (``dense``), or only those of the ``last`` mask.
        mask_gradient: Whether the gradient of a masked weight is zero, instead of the gradient
            that it would have unmasked.
    """

    q: Tensor
    next_q: Tensor
    updates: Tensor

    def __init__(
        self,
        widths: tuple[int, ...],
        q: float,
        *,
        q_role: str = "keep",
        inference: str = "scaled",
        mask_gradient: bool = False,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(*pair) for pair in pairwise(widths)])
        self.register_buffer("q", torch.tensor(q, dtype=torch.float64))
        self.register_buffer("next_q", torch.tensor(q, dtype=torch.float64))
        self.register_buffer("updates", torch.tensor(0))
        for name, weight in self._weights():
            self.register_buffer(_mask_name(name), torch.ones_like(weight, dtype=torch.bool))
        self.q_role = q_role
        self.inference = inference
        self.mask_gradient = mask_gradient

    @property
    def keep(self) -> Tensor:
        """Return the probability of keeping a weight."""
        return self.q if self.q_role == "keep" else 1 - self.q

    @property
    def most_q(self) -> float:
        """Return the largest q that ``ours`` may reach.

        Masks that drop this share of weights keep one weight per logit on average. If q = 1 dropped
        all weights, accuracy would be 1/K and confidence at least as high, so that eq. 12 with
        gamma below 1 would keep q at 1 forever.
        """
        last: Tensor = operator.attrgetter("weight")(self.layers[-1])
        return 1 - 1 / last.shape[1]

    def forward(self, features: Tensor) -> Tensor:
        """Return logits (N, K) of features (N, D); in training mode with the mask."""
        return self._run(features, self._masked if self.training else self._deployed)

    def dense(self, features: Tensor) -> Tensor:
        """Return the logits (N, K) with all weights, neither masked nor scaled."""
        return self._run(features, self._tensor)

    def resample(self, generator: Generator) -> None:
        """Draw a new mask for every weight matrix, each entry kept with probability ``keep``."""
        keep = self.keep
        for mask in self.masks().values():
            noise = torch.rand(mask.shape, generator=generator, device=mask.device)
            mask.copy_(noise < keep)

    def masks(self) -> dict[str, Tensor]:
        """Return the mask of each weight matrix by parameter name; biases have none."""
        return {name: self.get_buffer(_mask_name(name)) for name, _ in self._weights()}

    def _run(self, features: Tensor, weight: Callable[[str], Tensor]) -> Tensor:
        for position in range(len(self.layers)):
            if position:
                features = features.relu()
            name = f"layers.{position}"
            features = F.linear(features, weight(f"{name}.weight"), self._tensor(f"{name}.bias"))
        return features

    def _masked(self, name: str) -> Tensor:
        weight = self._tensor(name)
        mask = self.get_buffer(_mask_name(name))
        if self.mask_gradient:
            return weight * mask
        # Mask only the value, not the gradient: the optimiser decides which weights move, so that
        # masking and gradient restriction can be studied separately.
        return weight - (weight * ~mask).detach()

    def _deployed(self, name: str) -> Tensor:
        weight = self._tensor(name)
        if self.inference == "last":
            return weight * self.get_buffer(_mask_name(name))
        return weight * self.keep.to(weight.dtype) if self.inference == "scaled" else weight

    def _tensor(self, name: str) -> Tensor:
        # Not get_parameter: a functional call replaces parameters by plain tensors.
        return operator.attrgetter(name)(self)

    def _weights(self) -> list[tuple[str, nn.Parameter]]:
        return [(n, p) for n, p in self.named_parameters() if n.endswith(".weight")]


@REFINEMENTS.register("macal")
class MaCCal(Refinement):
    """MaC-Cal (Ni et al., 2025): retrains a new classifier under random weight masks.

    Random Bernoulli masks keep or drop each weight; by default a dropped weight is not changed by
    the gradient. After each epoch q, which determines the mask's density, changes by confidence -
    gamma * accuracy, within a decaying limit. These are the rows of the paper's ablation (Table 5);
    each adds one part:

    ===========================  ==================================================================
    Vanilla                      no refinement
    + Masked Retraining          ``restrict_gradient=False, restructure=False, sparsity="fixed"``
    + Gradient Restriction       ``restructure=False, sparsity="fixed"``
    + Classifier Restructure     ``sparsity="fixed"``
    + Static Adaptive Sparsity   ``sparsity="adaptive"``
    + Decaying Adaptive Sparsity defaults
    ===========================  ==================================================================

    No code was released. ``variant`` gives the defaults of four fields, which can also be set one
    by one:

    ==========  ==========  =========  ============  =============  ==================
    variant     ``q_role``  optimizer  ``resample``  ``feedback``   q is at most
    ==========  ==========  =========  ============  =============  ==================
    ``paper``   keep        masked     epoch         training       1
    ``ours``    drop        plain      batch         deployed       1 - 1/width
    ==========  ==========  =========  ============  =============  ==================

    ``paper`` follows the text of sec. 4.2: it drops a weight with probability 1 - q, eq. 11
    restricts updates, a mask lasts an epoch, and eq. 12 measures the training set during training.
    ``ours`` is the default because it also calibrates networks that fit their training set
    perfectly; ``docs/results/macal-readings.md`` and ``macal-networks.md`` have the evidence for
    these four fields and for ``inference`` and ``views``. Eq. 8 and 9 are read as masks of the
    forward pass: masks that set weights to zero permanently would cost accuracy under every
    reading. ``clock``, ``feedback: validation`` and ``accept`` are ours.
    The text gives no values of ``gamma`` and ``hidden``. On a training set that is fitted
    perfectly, deployed confidence ends near gamma, so a good gamma is slightly above the accuracy
    expected on other data and has to be searched. ``feedback: validation`` with a gamma of 1 needs
    no search and calibrated as well or better (thirteen ResNet-18 of ``macal-networks.md``).

    The extractor stays frozen, so features do not improve.

    Args:
        gamma: Factor of the accuracy in eq. 12, > 0; the paper's range is (0, 1).
        q0: Initial q, in [0, 1).
        eta_init: Limit of a change of q at t = 0, > 0.
        eta_final: Limit of a change of q at t = T, > 0.
        epochs: Epochs, also the horizon T of the decay.
        hidden: Width of the bottleneck.
        restrict_gradient: Whether a masked weight is not changed by the gradient that it would have
            unmasked; see ``optimizer``.
        restructure: Whether the new classifier has two layers instead of one.
        sparsity: ``fixed`` keeps q0; ``adaptive`` changes q by at most ``eta_init`` per epoch;
            ``decaying`` by at most the decaying limit.
        resample: A new mask each ``epoch`` (the text) or each ``batch`` (Algorithm 1).
        clock: Whether t of eq. 13 counts epochs from the ``start``, beginning at 1, or stays at 1
            until the ``crossing``, the first epoch whose confidence exceeds gamma * accuracy.
        inference: ``scaled`` multiplies each weight by its probability of being kept, as after
            dropout; ``dense`` uses all weights unchanged; ``last`` uses those of the last mask.
        feedback: Outputs whose confidence and accuracy enter eq. 12: ``deployed`` means the outputs
            of inference, ``dense`` the outputs with all weights unchanged, ``training`` the masked
            outputs of the training steps, and ``validation`` the outputs of inference on validation
            rows. All but ``training`` need another pass per epoch. Use ``validation`` with a gamma
            of 1, because confidence should equal accuracy there; it fits one number, q, to the rows
            that also choose configurations.
        variant: ``ours`` or ``paper``, see above; it also limits q.
        q_role: Whether q is the share of weights that masks ``keep`` or ``drop``.
        optimizer: ``plain`` SGD, whose velocity and decay still change weights with a zero
            gradient, or ``masked`` SGD, which does not change masked weights; no effect unless
            ``restrict_gradient``.
        views: Features of the training set, ``augmented`` or ``original``.
        accept: Whether the new classifier replaces the network's own ``always`` or only if it is
            ``better``, see ``Refinement``.
    """

    gamma: float = number(default=0.95, low=0.0, open_low=True)
    q0: float = number(default=0.5, low=0.0, high=1.0, open_high=True)
    eta_init: float = number(default=0.1, low=0.0, open_low=True)
    eta_final: float = number(default=0.001, low=0.0, open_low=True)
    hidden: int = count(default=128)
    restrict_gradient: bool = flag(default=True)
    restructure: bool = flag(default=True)
    sparsity: str = choice(default="decaying", choices=("fixed", "adaptive", "decaying"))
    resample: str = choice(default="batch", choices=("epoch", "batch"), variants={"paper": "epoch"})
    clock: str = choice(default="start", choices=("start", "crossing"))
    inference: str = choice(default="scaled", choices=("scaled", "dense", "last"))
    feedback: str = choice(
        default="deployed", choices=("dense", "training", *DEPLOYED), variants={"paper": "training"}
    )
    q_role: str = choice(default="drop", choices=("keep", "drop"), variants={"paper": "keep"})
    optimizer: str = choice(
        default="plain", choices=("masked", "plain"), variants={"paper": "masked"}
    )
    views: str = choice(default="augmented", choices=("augmented", "original"))
    accept: str = choice(default="always", choices=("always", "better"))
    variant: str = choice(default="ours", choices=("paper", "ours"), kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._adapts = self.sparsity != "fixed"
        self.second_pass = self._adapts and self.feedback != "training"
        self.held_out = self.second_pass and self.feedback == "validation"
        self.changes_batches = self.resample == "batch"

    def build_head(self, feature_dim: int, num_classes: int) -> MaskedHead:
        """Return the new classifier: two layers, or one if ``restructure`` is off."""
        middle = (self.hidden,) if self.restructure else ()
        return MaskedHead(
            (feature_dim, *middle, num_classes),
            self.q0,
            q_role=self.q_role,
            inference=self.inference,
            mask_gradient=self.restrict_gradient and self.optimizer == "plain",
        )

    def start_epoch(self, head: nn.Module, epoch: int, generator: Generator) -> None:
        """Use the new q, and draw a mask if ``resample`` is ``epoch``."""
        head = _masked(head)
        head.q.copy_(head.next_q)
        if not self.changes_batches:
            head.resample(generator)

    def start_batch(self, head: nn.Module, generator: Generator) -> None:
        """Draw the batch's mask, if ``resample`` is ``batch``."""
        if self.changes_batches:
            _masked(head).resample(generator)

    def start_batches_together(
        self,
        heads: Sequence[nn.Module],
        buffers: Mapping[str, Tensor],
        generators: Sequence[Generator],
    ) -> Callable[[], dict[str, Tensor]] | None:
        """Return a function that draws a batch's masks.

        Return None if a mask lasts an epoch, or if the optimiser needs the masks.
        """
        if not self.changes_batches or self.movable(heads[0]):
            return None
        keep = buffers["q"] if self.q_role == "keep" else 1 - buffers["q"]
        return _Masks([_masked(head).masks() for head in heads], keep, generators).draw

    def end_epoch(self, head: nn.Module, accuracy: float, confidence: float) -> dict[str, float]:
        """Change q; return ``q`` of this epoch and ``next_q`` of the next.

        Inference uses ``q`` until the next epoch begins, because the weights were fitted with it.
        """
        head = _masked(head)
        before = after = float(head.q)
        if self._adapts:
            eta = self.eta_init
            if self.sparsity == "decaying":
                eta = clip_bound(eta, self.eta_final, int(head.updates) + 1, self.epochs)
            after = sparsity_step(before, accuracy, confidence, self.gamma, eta)
            after = min(after, self._most_q(head))
        head.next_q.fill_(after)
        if self.clock == "start" or head.updates or confidence > self.gamma * accuracy:
            head.updates += 1
        return {"q": before, "next_q": after}

    def feedback_logits(self, head: nn.Module, features: Tensor) -> Tensor:
        """Return the logits of inference, or those with all weights unchanged."""
        head = _masked(head)
        return head(features) if self.feedback in DEPLOYED else head.dense(features)

    def together_key(self) -> Hashable | None:
        """Return all settings that heads must share."""
        structure = (self.restructure, self.restrict_gradient, self.optimizer)
        masks = (self.resample, self.q_role, self.inference)
        measured = (self.feedback in DEPLOYED, self.held_out, self.variant)
        return ("macal", *structure, *masks, *measured, self.views, self.epochs)

    def movable(self, head: nn.Module) -> dict[str, Tensor]:
        """Return the present masks; empty if masked weights may change."""
        frozen = self.restrict_gradient and self.optimizer == "masked"
        return _masked(head).masks() if frozen else {}

    def remarks(self, head: nn.Module) -> list[str]:
        """Return a message if q ended where masks drop almost no weights or almost all."""
        q = float(_masked(head).q)
        if not self._adapts or 0 < q < self._most_q(_masked(head)):
            return []
        dense = (q > 0) == (self.q_role == "keep")
        what = "almost all weights, like a plain classifier" if dense else "almost no weights"
        return [
            f"macal: q ended at {q:g}, where the mask keeps {what}; try another gamma in (0, 1), "
            "q_role or feedback"
        ]

    def _most_q(self, head: MaskedHead) -> float:
        return 1.0 if self.variant == "paper" else head.most_q


class _Masks:
    """Draws the masks of several heads; heads with the same sizes and seed share a draw.

    Args:
        masks: The present masks of each head, by the name of the weight.
        keep: Each head's probability of keeping a weight, (M,).
        generators: The generator of each head.
    """

    def __init__(
        self, masks: Sequence[Mapping[str, Tensor]], keep: Tensor, generators: Sequence[Generator]
    ) -> None:
        sizes = [tuple(mask.shape for mask in own.values()) for own in masks]
        keys = [(g.initial_seed(), size) for g, size in zip(generators, sizes, strict=True)]
        kinds = list(dict.fromkeys(keys))
        self._names = [_mask_name(name) for name in masks[0]]
        self._sources = [(generators[keys.index(kind)], kind[1]) for kind in kinds]
        self._largest = [tuple(map(max, *size, size[0])) for size in zip(*sizes, strict=True)]
        self._kind = torch.tensor([kinds.index(key) for key in keys], device=keep.device)
        self._keep = keep.float()[:, None, None]

    def draw(self) -> dict[str, Tensor]:
        """Return new masks of each weight matrix, (M, ...), padded with False."""
        drawn = [
            [torch.rand(size, generator=source, device=self._keep.device) for size in sizes]
            for source, sizes in self._sources
        ]
        found = {}
        for position, parts in enumerate(zip(*drawn, strict=True)):
            noise = torch.stack([_widened(part, self._largest[position]) for part in parts])
            noise = noise if len(parts) == 1 else noise.index_select(0, self._kind)
            found[self._names[position]] = noise < self._keep
        return found


def _widened(noise: Tensor, largest: tuple[int, ...]) -> Tensor:
    """Pad noise (rows, columns) to a size with a value above every probability."""
    rows, columns = (new - old for new, old in zip(largest, noise.shape, strict=True))
    return F.pad(noise, (0, columns, 0, rows), value=2.0) if rows or columns else noise


def _mask_name(weight_name: str) -> str:
    return "mask_" + weight_name.replace(".", "_")


def _masked(head: nn.Module) -> MaskedHead:
    if not isinstance(head, MaskedHead):
        raise TypeError(f"macal needs its own head, not {type(head).__name__}")
    return head

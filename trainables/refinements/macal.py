import math
import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import pairwise

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from trainables.common.fields import choice, count, flag, number
from trainables.refinements._base import REFINEMENTS, Refinement

DEPLOYED = ("deployed", "validation")  # Feedback that is measured on what inference gives.


def clip_bound(eta_init: float, eta_final: float, step: int, horizon: int) -> float:
    """Return the bound of one change of q at t = ``step`` of T = ``horizon`` (eq. 13).

    It falls from ``eta_init`` at step 0 to ``eta_final`` at the horizon, both positive.
    """
    return eta_init * math.exp(math.log(eta_final / eta_init) * step / horizon)


def sparsity_step(q: float, accuracy: float, confidence: float, gamma: float, eta: float) -> float:
    """Return the next q (eq. 12): it grows while confidence exceeds gamma * accuracy.

    The change is clipped to [-eta, eta] and the outcome to [0, 1]. Accuracy and mean confidence,
    fractions, are those of the epoch.
    """
    change = min(max(confidence - gamma * accuracy, -eta), eta)
    return min(max(q + change, 0.0), 1.0)


class MaskedHead(nn.Module):
    """Linear layers with ReLU between, whose single weights can be masked while training.

    Args:
        widths: D, the hidden widths if any, K.
        q: Share of the weights at the start.
        q_role: Whether q is the share that masks ``keep`` or ``drop``.
        inference: What eval mode computes with: weights ``scaled`` by the share that is kept, all
            of them as they are (``dense``), or those of the ``last`` mask.
        mask_gradient: Whether a masked weight gets a gradient of zero, rather than the one of its
            place.
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
        """Return the largest q that adaptation may reach: all but one weight of each logit.

        At q = 1 a head that drops has no weights: its accuracy is chance, 1/K, and its confidence
        no less, so that eq. 12 with gamma below 1 would hold q there for ever.
        """
        last: Tensor = operator.attrgetter("weight")(self.layers[-1])
        return 1 - 1 / last.shape[1]

    def forward(self, features: Tensor) -> Tensor:
        """Return logits (N, K) of features (N, D); in training mode those of the mask."""
        return self._run(features, self._masked if self.training else self._deployed)

    def dense(self, features: Tensor) -> Tensor:
        """Return the logits (N, K) of all weights, neither masked nor scaled."""
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
        # The value is masked and the gradient is not: which weights may move is the optimiser's
        # business, so that masking and gradient restriction can be studied apart.
        return weight - (weight * ~mask).detach()

    def _deployed(self, name: str) -> Tensor:
        weight = self._tensor(name)
        if self.inference == "last":
            return weight * self.get_buffer(_mask_name(name))
        return weight * self.keep.to(weight.dtype) if self.inference == "scaled" else weight

    def _tensor(self, name: str) -> Tensor:
        # Not get_parameter: what a functional call puts in a parameter's place is a plain tensor.
        return operator.attrgetter(name)(self)

    def _weights(self) -> list[tuple[str, nn.Parameter]]:
        return [(n, p) for n, p in self.named_parameters() if n.endswith(".weight")]


@REFINEMENTS.register("macal")
class MaCCal(Refinement):
    """MaC-Cal (Ni et al., 2025): retrains a new classifier under random weight masks.

    Each weight is kept or left out of the outputs by a fresh Bernoulli mask a time; one that is
    left out does not move. After each epoch q, which the mask's density follows, moves by
    confidence - gamma * accuracy, within a bound that decays. The rows of the paper's ablation
    (Table 5), which add up:

    ===========================  ==================================================================
    Vanilla                      no refinement
    + Masked Retraining          ``restrict_gradient=False, restructure=False, sparsity="fixed"``
    + Gradient Restriction       ``restructure=False, sparsity="fixed"``
    + Classifier Restructure     ``sparsity="fixed"``
    + Static Adaptive Sparsity   ``sparsity="adaptive"``
    + Decaying Adaptive Sparsity defaults
    ===========================  ==================================================================

    There is no released code. ``variant`` gives the defaults of four fields, each of which may be
    set to another value:

    ==========  ==========  =========  ============  =============  ==================
    variant     ``q_role``  optimizer  ``resample``  ``feedback``   q is at most
    ==========  ==========  =========  ============  =============  ==================
    ``paper``   keep        masked     epoch         training       1
    ``ours``    drop        plain      batch         deployed       1 - 1/width
    ==========  ==========  =========  ============  =============  ==================

    ``paper`` is the text of sec. 4.2: it drops a weight with probability 1 - q, eq. 11 restricts
    what moves, a mask lasts an epoch, and eq. 12 measures the training set while it is trained on.
    ``ours`` is the default because it calibrates networks that know their training set by heart;
    ``docs/results/macal-readings.md`` and ``macal-networks.md`` have the evidence for these fields,
    ``inference`` and ``views``. Eq. 8 and 9 mask what the forward pass sees: weights
    that a mask set to zero for good would cost accuracy under every reading. ``clock``,
    ``feedback: validation`` and ``accept`` are ours.
    ``gamma`` and ``hidden`` have no value in the text: deployed confidence ends near gamma on the
    training set, so that a good gamma lies a little above the accuracy expected on other data and
    has to be searched. ``feedback: validation`` with a gamma of 1 needs no search and calibrated as
    well or better (thirteen ResNet-18 of ``macal-networks.md``).

    Not for features that a refinement must change: the extractor stays frozen.

    Args:
        gamma: Factor of the accuracy in eq. 12, > 0; the paper's range is (0, 1).
        q0: q at the start, in [0, 1).
        eta_init: First bound of a change of q, > 0.
        eta_final: Last bound of a change of q, > 0.
        epochs: Epochs, also the horizon T of the decay.
        hidden: Width of the bottleneck.
        restrict_gradient: Whether masked weights stand still, rather than take the gradient that
            the mask's position would have received.
        restructure: Whether the new classifier has two layers rather than one.
        sparsity: ``fixed`` keeps q0, where 0 drops nothing; ``adaptive`` moves q within
            ``eta_init``; ``decaying`` within the decaying bound.
        resample: A new mask each ``epoch`` (the text) or each ``batch`` (Algorithm 1).
        clock: Whether t of eq. 13 counts all epochs from 1 at the ``start``, or stays at 1 up to
            the ``crossing``, the first epoch whose confidence exceeds gamma * accuracy.
        inference: ``scaled`` multiplies each weight by its probability of being kept, as after
            dropout; ``dense`` uses it as it is; ``last`` uses those of the last mask.
        feedback: Which outputs eq. 12 measures: ``deployed`` those of inference and ``dense`` those
            of all weights, in one more pass per epoch; ``training`` the masked ones;
            ``validation`` those of inference on validation rows, for a gamma of 1: there confidence
            is meant to be accuracy. It fits one number, q, to the rows that choose configurations.
        variant: ``ours`` or ``paper``, see above; it also says how far q may rise.
        q_role: Whether q is the share of weights that masks ``keep`` or ``drop``.
        optimizer: ``plain`` SGD, whose velocity and decay still move weights of zero gradient, or
            ``masked``, which leaves them alone; without effect unless ``restrict_gradient``.
        views: ``augmented`` or ``original``: which features of the training set are trained on.
        accept: Whether the new classifier replaces the network's own ``always``, or only where it
            is ``better``: see ``Refinement``.
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
        default="deployed",
        choices=("dense", "training", *DEPLOYED),
        variants={"paper": "training"},
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
        """Take up the new q and draw the epoch's mask."""
        head = _masked(head)
        head.q.copy_(head.next_q)
        if not self.changes_batches:
            head.resample(generator)

    def start_batch(self, head: nn.Module, generator: Generator) -> None:
        """Draw the batch's mask, if it has one of its own."""
        if self.changes_batches:
            _masked(head).resample(generator)

    def start_batches_together(
        self,
        heads: Sequence[nn.Module],
        buffers: Mapping[str, Tensor],
        generators: Sequence[Generator],
    ) -> Callable[[], dict[str, Tensor]] | None:
        """Return what draws the masks of a batch; None where the optimiser asks heads for them."""
        if not self.changes_batches or self.movable(heads[0]):
            return None
        keep = buffers["q"] if self.q_role == "keep" else 1 - buffers["q"]
        return _Masks([_masked(head).masks() for head in heads], keep, generators).draw

    def end_epoch(self, head: nn.Module, accuracy: float, confidence: float) -> dict[str, float]:
        """Move q; return ``q`` of the epoch that ended and of the next one, ``next_q``.

        Inference uses the former until the next epoch begins: the weights were fitted under it.
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
        """Return the logits of all weights as they are, or those that inference gives."""
        head = _masked(head)
        return head(features) if self.feedback in DEPLOYED else head.dense(features)

    def together_key(self) -> Hashable | None:
        """Return how many layers the head has and how it is masked and measured."""
        structure = (self.restructure, self.restrict_gradient, self.optimizer)
        masks = (self.resample, self.q_role, self.inference)
        measured = (self.feedback in DEPLOYED, self.held_out, self.variant)
        return ("macal", *structure, *masks, *measured, self.views, self.epochs)

    def movable(self, head: nn.Module) -> dict[str, Tensor]:
        """Return the present masks, unless masked weights may move."""
        stands_still = self.restrict_gradient and self.optimizer == "masked"
        return _masked(head).masks() if stands_still else {}

    def remarks(self, head: nn.Module) -> list[str]:
        """Return a line if q ended where masks leave out hardly a weight or nearly all."""
        q = float(_masked(head).q)
        if not self._adapts or 0 < q < self._most_q(_masked(head)):
            return []
        dense = (q > 0) == (self.q_role == "keep")
        what = "nearly every weight, a plain classifier" if dense else "hardly a weight"
        return [
            f"macal: q ended at {q:g}, where the mask keeps {what}; try another gamma in (0, 1) or "
            "reading (q_role, feedback)"
        ]

    def _most_q(self, head: MaskedHead) -> float:
        return 1.0 if self.variant == "paper" else head.most_q


class _Masks:
    """Draws the masks of several heads; those of one size and one seed, which are one, but once.

    Masks are by the name of the weight; ``keep`` are probabilities of keeping a weight, (M,).
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
        """Return a new mask of each weight of all heads, (M, ...), False beyond a head's own."""
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
    """Fill noise (rows, columns) up to a size, with a value above every share."""
    rows, columns = (new - old for new, old in zip(largest, noise.shape, strict=True))
    return F.pad(noise, (0, columns, 0, rows), value=2.0) if rows or columns else noise


def _mask_name(weight_name: str) -> str:
    return "mask_" + weight_name.replace(".", "_")


def _masked(head: nn.Module) -> MaskedHead:
    if not isinstance(head, MaskedHead):
        raise TypeError(f"macal needs its own head, not {type(head).__name__}")
    return head

"""Training protocols: those of papers, by name, and custom ones.

A named protocol is a file in ``search_spaces/protocols/``. Each has short forms:
``mukhoti2020/0.1`` runs a tenth of the epochs with a schedule of the same shape.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, replace
from functools import cache
from typing import Any, Self

from search_spaces import load_protocol, protocol_names
from trainables.common.errors import InputError, known_names
from trainables.common.fields import (
    CheckedFields,
    check_count,
    check_number,
    checked,
    choice,
    count,
    flag,
    number,
)
from trainables.data import IMAGE_AUGMENTATIONS, MASK_AUGMENTATIONS

CUSTOM = "custom"
OPTIMIZERS = ("sgd", "adam", "adamw")
LEARNS = ("all", "head")
SCHEDULES = ("constant", "step", "cosine", "poly")
POWER = 0.9  # Exponent of the poly schedule (Chen et al. 2017, section 4.1).
KEEP = ("last", "best_val_nll", "best_val_acc", "best_val_nll_after_ts")
# Fields without effect on the weights: protocols that differ only in these are the same training.
LABELS = ("name", "source", "note")
AUGMENTED = tuple(dict.fromkeys((*IMAGE_AUGMENTATIONS, *MASK_AUGMENTATIONS)))


def _text(name: str, value: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name}={value!r} is not text")
    return value


def _milestones(name: str, value: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{name}={value!r} is not a list of epochs")
    milestones = tuple(check_count("milestone", epoch) for epoch in value)
    if list(milestones) != sorted(milestones):
        raise ValueError(f"{name}={list(milestones)} are not sorted")
    return milestones


def _share(name: str, value: float) -> float | int:
    number = check_number(name, value, 0, open_low=True)
    if number < 1:
        return number
    if number != int(number):
        raise ValueError(f"{name}={value!r} is neither a fraction in (0, 1) nor a whole number")
    return int(number)


class Protocol(CheckedFields, frozen=True, kw_only=True, eq=True, repr=True):
    """The training settings of a network.

    Attributes:
        name: The name in sweep files and tables.
        epochs: Passes over the training rows, at least 1.
        batch_size: Rows per step, at least 1.
        optimizer: ``sgd``, ``adam`` or ``adamw``.
        lr: Initial learning rate, in (0, inf).
        momentum: Momentum of SGD, in [0, 1). Adam and AdamW ignore it (betas 0.9 and 0.999).
        weight_decay: In [0, inf); decoupled for AdamW, coupled for the others.
        schedule: ``constant``, ``step`` (times ``decay`` at each milestone), ``cosine`` or ``poly``
            (both towards 0 after the last epoch, the latter by ``(1 - progress) ** 0.9``). The rate
            is constant within an epoch.
        milestones: Epochs, counted from 0, at whose start the rate of a step schedule falls:
            sorted, each in [1, epochs]. At a repeated milestone the rate falls twice; a milestone
            at ``epochs`` has no effect.
        decay: Factor at each milestone, in (0, 1]; 1 unless the schedule is ``step``.
        nesterov: Whether SGD uses Nesterov momentum; needs a momentum.
        warmup: Number of epochs in which the rate rises linearly to ``lr``, in [0, epochs).
        augmentation: ``none``, ``crop-flip`` or ``resized-crop-flip``; with masks ``none``,
            ``crop-flip``, ``scale-crop-flip`` or ``crop-flip-light``; None for the data set's own.
        validation: Share of the training rows held out: a fraction in (0, 1), a count of at
            least 1, or None for the data set's own rule.
        clip_norm: Largest L2 norm of the gradient of the mean loss over all parameters, in (0,
            inf); None for no limit.
        keep: The epoch whose weights are stored: ``last``, or the one with the lowest validation
            NLL (``best_val_nll``), the lowest NLL after a temperature (``best_val_nll_after_ts``,
            for recipes that end in a calibrator; see ``nll_after_ts_terms``), or the highest
            validation accuracy (``best_val_acc``).
        keep_after: Number of first epochs that are never kept, in [0, epochs); 0 if ``keep`` is
            ``last``.
        learns: Trained weights: ``all``, or only the classifier (``head``), on features of the
            extractor in evaluation mode. For pretrained networks.
        compile: Whether ``torch.compile`` compiles the feature extractor: faster after a minute or
            more, and the same up to rounding. It needs a C++ compiler, or Triton on a GPU. A short
            last batch runs uncompiled. So does a network that is not a single graph
            (``resnet110-sd``), with a message.
        source: Paper and section, or the origin of the values.
        note: Details that the source does not give, and their values here.

    Raises:
        ValueError: If a value is out of its range or contradicts another.
    """

    name: str = checked(default=CUSTOM, check=_text)
    epochs: int = count()
    batch_size: int = count()
    optimizer: str = choice(default="sgd", choices=OPTIMIZERS)
    lr: float = number(low=0, open_low=True)
    momentum: float = number(default=0.9, low=0, high=1, open_high=True)
    weight_decay: float = number(default=5e-4, low=0)
    schedule: str = choice(default="constant", choices=SCHEDULES)
    milestones: tuple[int, ...] = checked(default=(), check=_milestones)
    decay: float = number(default=1.0, low=0, high=1, open_low=True)
    nesterov: bool = flag(default=False)
    warmup: int = count(default=0, low=0)
    augmentation: str | None = choice(default=None, choices=AUGMENTED)
    validation: float | int | None = checked(default=None, check=_share)
    clip_norm: float | None = number(default=None, low=0, open_low=True)
    keep: str = choice(default="last", choices=KEEP)
    keep_after: int = count(default=0, low=0)
    learns: str = choice(default="all", choices=LEARNS)
    compile: bool = flag(default=False)
    source: str = checked(default="", check=_text)
    note: str = checked(default="", check=_text)

    def __post_init__(self) -> None:
        """Convert numbers, so that equal protocols compare as equal; check combinations."""
        super().__post_init__()
        for key in ("warmup", "keep_after"):
            if (value := getattr(self, key)) >= self.epochs:
                raise ValueError(f"{key}={value} is outside [0, {self.epochs}), the epochs")
        if self.nesterov and (self.optimizer != "sgd" or self.momentum == 0):
            raise ValueError("nesterov=True needs optimizer=sgd and a momentum above 0")
        if self.milestones and self.milestones[-1] > self.epochs:
            raise ValueError(
                f"milestone={self.milestones[-1]} is outside [1, {self.epochs}], the epochs"
            )
        if self.schedule != "step" and (self.milestones or self.decay != 1):
            raise ValueError(
                f"milestones={list(self.milestones)} and decay={self.decay:g} need schedule=step, "
                f"not {self.schedule}"
            )
        if self.schedule == "step" and not self.milestones:
            raise ValueError("schedule=step needs milestones")
        if self.keep == "last" and self.keep_after:
            raise ValueError(
                f"keep_after={self.keep_after} needs keep={', '.join(KEEP[1:-1])} or {KEEP[-1]}"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return all fields that affect the weights, as plain values for JSON and for keys.

        ``name``, ``source`` and ``note`` are omitted. So is the default of ``learns``, so that
        older keys stay valid. ``protocol_from`` accepts the result.
        """
        left_out = (*LABELS, "learns") if self.learns == "all" else LABELS
        names = (item.name for item in fields(self) if item.name not in left_out)
        values = {name: getattr(self, name) for name in names}
        return {**values, "milestones": list(self.milestones)}

    def shortened(self, share: float) -> Self:
        """Return the protocol with a share, in (0, 1], of its epochs and the same schedule shape.

        Epochs and milestones are rounded to the nearest whole number, and are at least 1.
        ``warmup`` and ``keep_after`` shrink in the same way, but may become 0.

        Raises:
            ValueError: If ``share`` is out of range.
        """
        check_number("share", share, 0, 1, open_low=True)

        def scaled(count: int) -> int:
            return math.floor(count * share + 0.5)

        epochs = max(1, scaled(self.epochs))
        return replace(
            self,
            name=f"{self.name}/{share:g}",
            epochs=epochs,
            milestones=tuple(max(1, scaled(epoch)) for epoch in self.milestones),
            warmup=min(scaled(self.warmup), epochs - 1),
            keep_after=min(scaled(self.keep_after), epochs - 1),
        )


def learning_rate(protocol: Protocol, epoch: int) -> float:
    """Return the learning rate of one epoch, counted from 0.

    Raises:
        ValueError: If ``epoch`` is outside [0, epochs).
    """
    if not 0 <= epoch < protocol.epochs:
        raise ValueError(f"epoch={epoch} is outside [0, {protocol.epochs})")
    if epoch < protocol.warmup:
        return protocol.lr * (epoch + 1) / (protocol.warmup + 1)
    if protocol.schedule == "step":
        passed = sum(epoch >= milestone for milestone in protocol.milestones)
        return protocol.lr * protocol.decay**passed
    progress = (epoch - protocol.warmup) / (protocol.epochs - protocol.warmup)
    if protocol.schedule == "cosine":
        return protocol.lr * (1 + math.cos(math.pi * progress)) / 2
    if protocol.schedule == "poly":
        return protocol.lr * (1 - progress) ** POWER
    return protocol.lr


@cache
def named_protocol(name: str) -> Protocol:
    """Return the protocol ``NAME``, or ``NAME/SHARE`` shortened; else raise ``InputError``."""
    base, slash, share = name.partition("/")
    known = protocol_names()
    if base not in known:
        raise InputError(f"unknown protocol {name!r}; {known_names(base, known, 'protocols')}")
    if not slash:
        return Protocol(name=name, **load_protocol(name))
    try:
        return named_protocol(base).shortened(float(share))
    except ValueError as error:
        message = f"protocol {name!r}: {share!r} is not a share of the epochs in (0, 1]"
        raise InputError(message) from error


def protocol_from(description: str | Mapping[str, Any]) -> Protocol:
    """Return the protocol that a sweep file or a stage describes.

    Args:
        description: A name, or the fields of a ``Protocol``. With ``base``, the other fields change
            that named protocol; without ``base``, ``epochs``, ``batch_size`` and ``lr`` are
            required. If ``epochs`` is lower than in ``base``, the other fields that count epochs
            shrink in proportion, unless the description has them.

    Raises:
        InputError: If a name, field or value is wrong.
    """
    if isinstance(description, str):
        return named_protocol(description)
    if not isinstance(description, Mapping):
        raise InputError(f"protocol: expected a name or a mapping of fields, got {description!r}")
    given = dict(description)
    base = given.pop("base", None)
    if base is not None and not isinstance(base, str):
        raise InputError(f"protocol: base={base!r} is not the name of a protocol")
    start = None if base is None else named_protocol(base)
    known = {field.name: field for field in fields(Protocol)}
    for key in given:
        if key not in known:
            raise InputError(f"protocol has no field {key!r}; {known_names(key, [*known, 'base'])}")
    missing = [key for key, field in known.items() if field.default is MISSING and key not in given]
    if missing and start is None:
        raise InputError(f"protocol lacks {', '.join(missing)}; add them, or a protocol as base")
    try:
        if start is None:
            return Protocol(**given)
        fields_of: dict[str, Any] = {"name": f"{start.name}-{CUSTOM}"}
        epochs = given.get("epochs")
        if isinstance(epochs, int) and 1 <= epochs < start.epochs:
            short = start.shortened(epochs / start.epochs)
            fields_of |= {
                key: getattr(short, key) for key in ("milestones", "warmup", "keep_after")
            }
        return replace(start, **{**fields_of, **given})
    except ValueError as error:
        raise InputError(f"protocol: {error}") from error

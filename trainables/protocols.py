"""How a network is trained: the papers' protocols by name, and anyone's own.

A protocol is one entry of ``PROTOCOLS``; adding one touches this list and nothing else. Each comes
in short forms: ``mukhoti2020/0.1`` runs a tenth of the epochs with the shape of the schedule kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from difflib import get_close_matches
from typing import Any

from trainables.checks import check_choice, check_count, check_flag, check_number
from trainables.data import AUGMENTATIONS
from trainables.errors import InputError

__all__ = [
    "CUSTOM",
    "Protocol",
    "learning_rate",
    "named_protocol",
    "protocol_from",
    "protocol_names",
]

CUSTOM = "custom"
OPTIMIZERS = ("sgd", "adamw")
SCHEDULES = ("constant", "step", "cosine")
KEEP = ("last", "best_val_nll", "best_val_acc")
# What the weights do not depend on: two protocols that differ here only are the same training.
LABELS = ("name", "source", "note")
# Fields that stand in a key only where they are not at their default, so that what was computed
# before they existed is still found.
LATER_FIELDS = ("clip_norm", "keep", "keep_after", "compile")


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How long, with what and at which rate a network is trained.

    Attributes:
        name: What recipes and tables call it.
        epochs: Passes over the training images, at least 1.
        batch_size: Images a step, at least 1.
        optimizer: ``sgd`` or ``adamw``.
        lr: Initial learning rate, in (0, inf).
        momentum: Of SGD, in [0, 1). AdamW ignores it: its betas are 0.9 and 0.999.
        weight_decay: In [0, inf); coupled for SGD, decoupled for AdamW.
        schedule: ``constant``, ``step`` (times ``decay`` at each milestone) or ``cosine`` (towards
            0 after the last epoch). The rate is constant within an epoch.
        milestones: Epochs, counted from 0, at whose start a step schedule falls: sorted, each in
            [1, epochs]. Equal ones fall together; one at ``epochs`` is never reached.
        decay: Factor at each milestone, in (0, 1]; 1 unless the schedule is ``step``.
        nesterov: Whether SGD looks ahead; needs a momentum.
        warmup: Epochs in which the rate rises linearly to ``lr``, in [0, epochs).
        augmentation: ``none``, ``crop-flip``, or None for the data set's own.
        validation: Share of the training images held out: a fraction in (0, 1), a count of at
            least 1, or None for the data set's own rule.
        clip_norm: Longest gradient that is not shortened, L2 norm over all parameters of the mean
            loss, in (0, inf); None for no limit.
        keep: Whose weights the training ends with: ``last``, or the epoch of lowest validation NLL
            (``best_val_nll``) or highest validation accuracy (``best_val_acc``).
        keep_after: First epochs that are too early to be kept, in [0, epochs); 0 unless ``keep`` is
            one of the best.
        compile: Whether ``torch.compile`` makes kernels for the feature extractor: faster after a
            minute or more, and the same up to rounding. It needs a C++ compiler, or Triton on a
            GPU.
        source: Paper and place, or how the values were found.
        note: What the source leaves open, and how it was closed here.

    Raises:
        ValueError: If a value is out of its range or contradicts another.
    """

    name: str = CUSTOM
    epochs: int
    batch_size: int
    optimizer: str = "sgd"
    lr: float
    momentum: float = 0.9
    weight_decay: float = 5e-4
    schedule: str = "constant"
    milestones: tuple[int, ...] = ()
    decay: float = 1.0
    nesterov: bool = False
    warmup: int = 0
    augmentation: str | None = None
    validation: float | int | None = None
    clip_norm: float | None = None
    keep: str = "last"
    keep_after: int = 0
    compile: bool = False
    source: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        """Check every value, and bring numbers to one type so that equal protocols are equal."""
        for key in ("name", "source", "note"):
            if not isinstance(getattr(self, key), str):
                raise ValueError(f"{key}={getattr(self, key)!r} is not a text")
        self._set("epochs", check_count("epochs", self.epochs))
        self._set("batch_size", check_count("batch_size", self.batch_size))
        self._check_optimizer()
        self._check_schedule()
        if self.augmentation is not None:
            check_choice("augmentation", self.augmentation, AUGMENTATIONS)
        if self.validation is not None:
            self._set("validation", _share("validation", self.validation))
        check_flag("compile", self.compile)
        self._check_keep()

    def _set(self, key: str, value: object) -> None:
        object.__setattr__(self, key, value)

    def _check_optimizer(self) -> None:
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        self._set("lr", check_number("lr", self.lr, 0, open_low=True))
        momentum = check_number("momentum", self.momentum, 0, 1, open_high=True)
        self._set("momentum", momentum)
        self._set("weight_decay", check_number("weight_decay", self.weight_decay, 0))
        check_flag("nesterov", self.nesterov)
        if self.nesterov and (self.optimizer != "sgd" or momentum == 0):
            raise ValueError("nesterov=True needs optimizer=sgd and a momentum above 0")
        if self.clip_norm is not None:
            self._set("clip_norm", check_number("clip_norm", self.clip_norm, 0, open_low=True))

    def _check_keep(self) -> None:
        check_choice("keep", self.keep, KEEP)
        self._set("keep_after", check_count("keep_after", self.keep_after, 0))
        if self.keep_after >= self.epochs:
            raise ValueError(
                f"keep_after={self.keep_after} is outside [0, {self.epochs}): the epochs"
            )
        if self.keep == "last" and self.keep_after:
            raise ValueError(
                f"keep_after={self.keep_after} needs keep=best_val_nll or best_val_acc"
            )

    def _check_schedule(self) -> None:
        check_choice("schedule", self.schedule, SCHEDULES)
        self._set("milestones", self._checked_milestones())
        self._set("decay", check_number("decay", self.decay, 0, 1, open_low=True))
        self._set("warmup", check_count("warmup", self.warmup, 0))
        if self.warmup >= self.epochs:
            raise ValueError(f"warmup={self.warmup} is outside [0, {self.epochs}): the epochs")
        if self.schedule != "step" and (self.milestones or self.decay != 1):
            raise ValueError(
                f"milestones={list(self.milestones)} and decay={self.decay:g} need schedule=step, "
                f"not {self.schedule}"
            )
        if self.schedule == "step" and not self.milestones:
            raise ValueError("schedule=step needs milestones")

    def _checked_milestones(self) -> tuple[int, ...]:
        if not isinstance(self.milestones, list | tuple):
            raise ValueError(f"milestones={self.milestones!r} is not a list of epochs")
        milestones = tuple(check_count("milestone", epoch) for epoch in self.milestones)
        if list(milestones) != sorted(milestones):
            raise ValueError(f"milestones={list(milestones)} are not sorted")
        if milestones and milestones[-1] > self.epochs:
            raise ValueError(
                f"milestone={milestones[-1]} is outside [1, {self.epochs}]: the epochs"
            )
        return milestones

    def to_dict(self) -> dict[str, Any]:
        """Return all that decides the weights, ready for JSON and for keys.

        ``name``, ``source`` and ``note`` are left out, and so are defaults of fields that came
        later. ``protocol_from`` accepts the result.
        """
        values = {key: value for key, value in asdict(self).items() if key not in LABELS}
        for item in fields(self):
            if item.name in LATER_FIELDS and values[item.name] == item.default:
                del values[item.name]
        return {**values, "milestones": list(self.milestones)}

    def shortened(self, share: float) -> Protocol:
        """Return the protocol with ``share`` of its epochs and the shape of its schedule.

        Epochs and milestones are rounded to the nearest whole number, and are at least 1.

        Args:
            share: In (0, 1].

        Raises:
            ValueError: If ``share`` is outside its range.
        """
        check_number("share", share, 0, 1, open_low=True)
        epochs = _scaled(self.epochs, share)
        return replace(
            self,
            name=f"{self.name}/{share:g}",
            epochs=epochs,
            milestones=tuple(_scaled(epoch, share) for epoch in self.milestones),
            warmup=min(math.floor(self.warmup * share + 0.5), epochs - 1),
            keep_after=min(math.floor(self.keep_after * share + 0.5), epochs - 1),
        )


def learning_rate(protocol: Protocol, epoch: int) -> float:
    """Return the learning rate of one epoch.

    Args:
        protocol: The protocol.
        epoch: Counted from 0, in [0, epochs).

    Raises:
        ValueError: If ``epoch`` is outside its range.
    """
    if not 0 <= epoch < protocol.epochs:
        raise ValueError(f"epoch={epoch} is outside [0, {protocol.epochs})")
    if epoch < protocol.warmup:
        return protocol.lr * (epoch + 1) / (protocol.warmup + 1)
    if protocol.schedule == "step":
        passed = sum(epoch >= milestone for milestone in protocol.milestones)
        return protocol.lr * protocol.decay**passed
    if protocol.schedule == "cosine":
        progress = (epoch - protocol.warmup) / (protocol.epochs - protocol.warmup)
        return protocol.lr * (1 + math.cos(math.pi * progress)) / 2
    return protocol.lr


def protocol_names() -> list[str]:
    """Return the names of all protocols, sorted; ``NAME/SHARE`` works for each."""
    return sorted(_BY_NAME)


def named_protocol(name: str) -> Protocol:
    """Return a protocol by its name, or its short form for ``NAME/SHARE``.

    Raises:
        InputError: If there is none of that name, or the share is not a number in (0, 1].
    """
    base, slash, share = name.partition("/")
    if base not in _BY_NAME:
        near = get_close_matches(base, _BY_NAME, n=3) or protocol_names()
        raise InputError(f"unknown protocol {name!r}; there are: {', '.join(near)}")
    if not slash:
        return _BY_NAME[base]
    try:
        return _BY_NAME[base].shortened(float(share))
    except ValueError as error:
        message = f"protocol {name!r}: {share!r} is not a share of the epochs in (0, 1]"
        raise InputError(message) from error


def protocol_from(description: str | Mapping[str, Any]) -> Protocol:
    """Return the protocol that a sweep file or a stage describes.

    Args:
        description: A name, or the fields of a ``Protocol``. With ``base`` among them, the fields
            change that named protocol; without, ``epochs``, ``batch_size`` and ``lr`` are needed.

    Raises:
        InputError: If a name is unknown, a field is missing or unknown, or a value is wrong.
    """
    if isinstance(description, str):
        return named_protocol(description)
    if not isinstance(description, Mapping):
        raise InputError(f"protocol {description!r} is neither a name nor a mapping of fields")
    given = dict(description)
    base = given.pop("base", None)
    if base is not None and not isinstance(base, str):
        raise InputError(f"protocol: base={base!r} is not the name of a protocol")
    start = None if base is None else named_protocol(base)
    _check_fields(given, complete=start is not None)
    try:
        if start is None:
            return Protocol(**given)
        return replace(start, **{"name": f"{start.name}-{CUSTOM}", **given})
    except ValueError as error:
        raise InputError(f"protocol: {error}") from error


def _check_fields(given: Mapping[str, Any], complete: bool) -> None:
    known = {field.name: field for field in fields(Protocol)}
    for key in given:
        if key not in known:
            near = get_close_matches(str(key), known, n=3) or [*known, "base"]
            raise InputError(f"protocol has no field {key!r}; there are: {', '.join(near)}")
    missing = [key for key, field in known.items() if field.default is MISSING and key not in given]
    if missing and not complete:
        raise InputError(f"protocol lacks {', '.join(missing)}; give them, or a protocol as base")


def _scaled(count: int, share: float) -> int:
    return max(1, math.floor(count * share + 0.5))


def _share(name: str, value: float) -> float | int:
    number = check_number(name, value, 0, open_low=True)
    if number < 1:
        return number
    if number != int(number):
        raise ValueError(f"{name}={value!r} is neither a fraction in (0, 1) nor a whole number")
    return int(number)


_MACAL = "MaC-Cal, sec. 5.1: the protocol of the focal-calibration codebase (Mukhoti et al. 2020)"
_CLIP_NORM = 2.0
_CLIPPED = "gradients are clipped to norm 2 as in the released code, the paper does not say so"
_SUMMED = "the released code sums the loss over the batch before it clips, here it is the mean"
_BEST_EPOCH = "the released code keeps the epoch of highest validation accuracy, here the last one"
_MBLS = "MbLS (Liu et al. 2022), appendix B"
_MBLS_DECAY = "weight decay from the released code, the paper does not state it"
_ACLS = "ACLS (Park et al. 2023), sec. 4.1-4.2"
_AURC = "the AURC paper, appendix D.1 and E.1, after Xia et al. (2022)"
_AURC_WEIGHTS = (
    "the weights of lowest validation loss (here the NLL) after a warm-up are kept, as in the paper"
)
_LONG_TAIL = "class-wise loss scaling (CLS), Table 4 and appendix C"
_LONG_TAIL_NOTE = (
    "momentum and schedule are not stated: 0.9, and a tenth at 50% and 75% of the epochs as in "
    "Huang et al. (2016)"
)


def _tenths(*milestones: int) -> dict[str, Any]:
    return {"schedule": "step", "milestones": milestones, "decay": 0.1}


def _fifths(*milestones: int) -> dict[str, Any]:
    return {"schedule": "step", "milestones": milestones, "decay": 0.2}


def _long_tail(name: str, lr: float, weight_decay: float) -> Protocol:
    return Protocol(
        name=f"cls2023-{name}",
        epochs=200,
        batch_size=128,
        lr=lr,
        weight_decay=weight_decay,
        **_tenths(100, 150),
        validation=0.5,
        source=_LONG_TAIL,
        note=_LONG_TAIL_NOTE,
    )


PROTOCOLS = (
    Protocol(
        name="mukhoti2020",
        epochs=350,
        batch_size=128,
        lr=0.1,
        **_tenths(150, 250),
        validation=5000,
        clip_norm=_CLIP_NORM,
        source=_MACAL,
        note=f"{_CLIPPED}; {_SUMMED}",
    ),
    Protocol(
        name="mukhoti2020-tiny",
        epochs=100,
        batch_size=128,
        lr=0.1,
        **_tenths(40, 60),
        clip_norm=_CLIP_NORM,
        source=_MACAL,
        note=f"{_CLIPPED}; {_SUMMED}",
    ),
    Protocol(
        name="mbls2022",
        epochs=350,
        batch_size=128,
        lr=0.1,
        **_tenths(150, 250),
        augmentation="crop-flip",
        validation=5000,
        clip_norm=_CLIP_NORM,
        source=_MBLS,
        note=f"the last rate is printed 0.01, a misprint of 0.001; {_MBLS_DECAY}; {_CLIPPED}; "
        f"{_BEST_EPOCH}",
    ),
    Protocol(
        name="mbls2022-tiny",
        epochs=100,
        batch_size=64,
        lr=0.1,
        **_tenths(40, 60),
        validation=10000,
        clip_norm=_CLIP_NORM,
        source=_MBLS,
        note=f"batch size, optimiser and weight decay from the released code; {_CLIPPED}; "
        f"{_BEST_EPOCH}",
    ),
    Protocol(
        name="mbls2022-cub",
        epochs=200,
        batch_size=16,
        lr=0.1,
        **_tenths(80, 160),
        clip_norm=_CLIP_NORM,
        source=_MBLS,
        note=f"from ImageNet weights; the released code has batch size 32; {_MBLS_DECAY}; "
        f"{_CLIPPED}; {_BEST_EPOCH}",
    ),
    Protocol(
        name="acls2023",
        epochs=350,
        batch_size=128,
        lr=0.1,
        **_tenths(150, 250),
        validation=0.1,
        clip_norm=_CLIP_NORM,
        source=_ACLS,
        note=f"{_CLIPPED} (for Tiny-ImageNet); {_BEST_EPOCH}",
    ),
    Protocol(
        name="acls2023-tiny",
        epochs=100,
        batch_size=64,
        lr=0.1,
        **_tenths(40, 60),
        validation=0.1,
        clip_norm=_CLIP_NORM,
        source=_ACLS,
        note=f"{_CLIPPED} (for Tiny-ImageNet); {_BEST_EPOCH}",
    ),
    Protocol(
        name="acls2023-imagenet",
        epochs=200,
        batch_size=256,
        optimizer="adamw",
        lr=5e-4,
        weight_decay=5e-2,
        schedule="cosine",
        source=_ACLS,
        note="the paper holds no validation images out: it takes the Tiny-ImageNet parameters",
    ),
    Protocol(
        name="xia2022",
        epochs=200,
        batch_size=128,
        lr=0.1,
        **_fifths(60, 120, 160),
        validation=5000,
        keep="best_val_nll",
        keep_after=40,
        source=_AURC,
        note=f"CIFAR-10; {_AURC_WEIGHTS}",
    ),
    Protocol(
        name="xia2022-cifar100",
        epochs=250,
        batch_size=128,
        lr=0.1,
        **_fifths(60, 120, 160),
        validation=5000,
        keep="best_val_nll",
        keep_after=40,
        source=_AURC,
        note=f"{_AURC_WEIGHTS}; the released code has 200 epochs here too",
    ),
    Protocol(
        name="xia2022-tiny",
        epochs=90,
        batch_size=256,
        lr=1e-4,
        schedule="cosine",
        validation=5000,
        keep="best_val_nll",
        keep_after=20,
        source="the AURC paper, sec. 5 and appendix D.1",
        note=f"for ViT-Small and Swin-Tiny from timm's pretrained weights; {_AURC_WEIGHTS}",
    ),
    _long_tail("lt-densenet40", lr=0.01, weight_decay=1e-4),
    _long_tail("lt-wrn-28", lr=0.1, weight_decay=5e-4),
    _long_tail("lt-resnet110", lr=0.1, weight_decay=1e-4),
    _long_tail("lt-resnet110-sd", lr=0.04, weight_decay=1e-4),
    _long_tail("lt100-resnet110-sd", lr=0.05, weight_decay=1e-3),
    Protocol(
        name="digits",
        epochs=30,
        batch_size=64,
        lr=0.3,
        momentum=0.9,
        weight_decay=0.0,
        schedule="cosine",
        augmentation="none",
        validation=0.5,
        source="ours, for the demo: a second on one CPU thread with the small convnet",
        note="so high a rate makes the network over-confident, as longer training would",
    ),
    Protocol(
        name="cifar-cpu",
        epochs=15,
        batch_size=32,
        lr=0.1,
        weight_decay=1e-4,
        schedule="cosine",
        augmentation="none",
        validation=5000,
        source="ours, for CPUs: resnet8 on 5,000 CIFAR-10 images takes 80 s of one thread",
        note="without augmentation the network is over-confident, as a long training would make it",
    ),
)
_BY_NAME = {protocol.name: protocol for protocol in PROTOCOLS}
if len(_BY_NAME) != len(PROTOCOLS):
    raise ValueError("two protocols have one name")

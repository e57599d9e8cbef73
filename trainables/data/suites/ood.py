import math
import re
from pathlib import Path

import numpy as np

from trainables.common.fields import check_number
from trainables.common.later import Tensor, torch
from trainables.data import (
    SOURCES,
    DatasetInfo,
    Images,
    PreparedData,
    find_reader,
    missing_download,
    read_source,
    source_names,
)
from trainables.data._rows import limit_rows
from trainables.data.cifar import LongTailMixin
from trainables.data.long_tail_lists import LongTailListsReader
from trainables.data.suites._base import SUITES, Judgement, Outputs, Part, Suite, SuiteData, Tensors

PART = "images"
OWN = ("npz", "folder")
LONG_TAILS = (LongTailMixin, LongTailListsReader)


def auroc(inside: Tensor, outside: Tensor) -> float:
    """Return the area under the ROC curve, in [0, 1].

    In-distribution images are the positive class and should have the higher scores. The result is
    the probability that a random in-distribution image scores above a random other image; ties
    count one half. Chance is one half; inverting both score and positive class changes nothing.

    Args:
        inside: Scores of in-distribution images, (N,).
        outside: Scores of other images, (M,).

    Raises:
        ValueError: If a tensor is empty or has NaN.
    """
    _check(inside, outside)
    ordered = inside.sort().values
    above = len(ordered) - torch.searchsorted(ordered, outside, right=True)
    equal = len(ordered) - above - torch.searchsorted(ordered, outside)
    wins = above.sum().item() + equal.sum().item() / 2
    return wins / (len(inside) * len(outside))


def fpr_at_tpr(inside: Tensor, outside: Tensor, tpr: float = 0.95) -> float:
    """Return the false-positive rate at a true-positive rate, in [0, 1]; lower is better.

    In-distribution is the positive class, as in Liang et al., Enhancing the reliability of
    out-of-distribution image detection, ICLR 2018; code with the opposite convention gives another
    number. The threshold is the highest that accepts at least the share ``tpr`` of in-distribution
    images; the result is the share of other images that the threshold accepts. For the scores see
    ``auroc``.

    Raises:
        ValueError: If scores are missing or NaN, or ``tpr`` is outside (0, 1].
    """
    _check(inside, outside)
    check_number("tpr", tpr, 0, 1, open_low=True)
    accepted = math.ceil(tpr * len(inside) - 1e-9)
    threshold = inside.sort(descending=True).values[accepted - 1]
    return (outside >= threshold).double().mean().item()


def _check(inside: Tensor, outside: Tensor) -> None:
    for name, scores in (("inside", inside), ("outside", outside)):
        if scores.ndim != 1 or not len(scores):
            raise ValueError(f"{name}: expected shape (N,), N >= 1, got {tuple(scores.shape)}")
        if scores.isnan().any():
            raise ValueError(f"{name} has NaN")


@SUITES.register("ood")
class OodSuite(Suite):
    """``ood-DATASET``: does the confidence separate the task's test images from ``DATASET``?

    Any data set of images except the task's own and those of the Hub is allowed, such as
    ``ood-svhn`` or ``ood-npz:PATH``; its classes should differ from the task's. Its test images, or
    all images if it has no test set, are converted to the task's size (bilinear, antialiased) and
    channels.

    The score is the largest probability, after the calibrator if there is one (Hendrycks and
    Gimpel, ICLR 2017); its logarithm is compared, so that probabilities near 1 remain different.
    Metrics are the fractions ``auroc`` and ``fpr95``, with in-distribution as positive.
    With several such suites there are also their means, ``ood/auroc`` and ``ood/fpr95``, as in
    Table 2 of the MaC-Cal paper.
    """

    pool = "ood"

    def __init__(self, name: str, argument: str, root: Path) -> None:
        super().__init__(name, argument, root)
        self.reader = find_reader(argument, self.root)

    @classmethod
    def names(cls, entry: str) -> list[str]:
        """Return a name per data set of images, except long-tailed ones, which repeat images."""
        readers = {name: SOURCES.get(name.partition(":")[0]) for name in source_names()}
        return [
            f"{entry}-{name}"
            for name, reader in readers.items()
            if issubclass(reader.kind, Images) and not issubclass(reader, LONG_TAILS)
        ]

    @classmethod
    def accepts(cls, argument: str) -> bool:
        name = argument.partition(":")[0]
        return name in SOURCES and issubclass(SOURCES.get(name).kind, Images)

    @property
    def label(self) -> str:
        """Return ``ood-`` and the data set's or file's name; unusual characters become ``_``."""
        kind, _, place = self.argument.partition(":")
        short = Path(place).stem if kind in OWN else self.argument
        return f"ood-{re.sub(r'[^A-Za-z0-9_.-]', '_', short)[:60]}"

    def full_name(self) -> str:
        return f"ood-{self.reader.full_name()}"

    def check(self, info: DatasetInfo) -> None:
        """Accept tasks of grey or RGB images."""
        channels = self.form(info).channels
        if channels not in (1, 3):
            raise self.refuse(
                f"expected images of 1 or 3 channels, but {info.name!r} has {channels}"
            )

    def missing_download(self) -> str:
        return missing_download(self.argument, self.root)

    def signature(self) -> str:
        return self.reader.signature()

    def test_paths(self) -> list[Path]:
        return self.reader.test_paths()

    def read(self, prepared: PreparedData, download: bool) -> tuple[np.ndarray, list[Part]]:
        """Return the other data set's labels, which no metric uses, and its images as one part."""
        source = read_source(self.argument, self.root, download)
        if source.fingerprint == prepared.fingerprint:
            raise self.refuse(
                f"has the images of the task itself, {prepared.info.name!r}; use another data set"
            )
        part = source.test or source.train
        kept = part.take(limit_rows(part.labels, prepared.split))
        form = self.form(prepared.info)
        other = source.info.inputs
        blocks = (fitted(other.decoded(block), form) for block in kept.blocks())
        return kept.labels, [Part(PART, len(kept), blocks)]

    def judge(self, data: SuiteData, outputs: Outputs, clean: Tensor) -> Judgement:
        """Return AUROC and FPR95, and the largest log-probability of every image of both sets."""
        outside = outputs(data.values(PART)).double().amax(1)
        tensors = {"inside": clean.double().amax(1), "outside": outside}
        return self.figures(data, tensors, clean), tensors

    def figures(self, data: SuiteData, tensors: Tensors, clean: Tensor) -> dict[str, float]:
        """Return AUROC and FPR95; in-distribution scores are those of ``clean``."""
        self.check_shape(tensors, "outside", (len(data.values(PART)),))
        inside, outside = clean.double().amax(1), tensors["outside"]
        return {"auroc": auroc(inside, outside), "fpr95": fpr_at_tpr(inside, outside)}


def fitted(images: np.ndarray, form: Images) -> np.ndarray:
    """Convert images (N, H, W, C), uint8, to the size and the 1 or 3 channels of ``form``."""
    # Importing torchvision takes a second.
    from torchvision.transforms.v2.functional import grayscale_to_rgb, resize, rgb_to_grayscale

    planes = torch.from_numpy(np.array(images)).permute(0, 3, 1, 2)
    if planes.shape[1] in (2, 4):
        planes = planes[:, :-1]  # The last channel is transparency.
    if planes.shape[1] != form.channels:
        planes = grayscale_to_rgb(planes) if form.channels == 3 else rgb_to_grayscale(planes)
    return resize(planes, list(form.size), antialias=True).permute(0, 2, 3, 1).contiguous().numpy()

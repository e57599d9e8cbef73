"""Detection of images from another data set."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms.v2.functional import grayscale_to_rgb, resize, rgb_to_grayscale

from trainables.data import (
    SOURCES,
    DatasetInfo,
    PreparedData,
    find_reader,
    missing_download,
    read_source,
)
from trainables.data._arrays import LabelledImages
from trainables.data._long_tail import LongTailMixin
from trainables.suites._base import Outputs, Part, Suite
from trainables.suites._registry import SUITES
from trainables.suites._rows import kept_rows
from trainables.suites._scores import auroc, fpr_at_tpr

if TYPE_CHECKING:
    from trainables.suites._data import SuiteData

PART = "images"
OWN = ("npz", "folder")


@SUITES.register("ood")
class OodSuite(Suite):
    """``ood-DATASET``: can the confidence tell the task's test images from those of ``DATASET``?

    Any data set will do, such as ``ood-svhn`` or ``ood-npz:PATH``: its test images, or all where
    it has no test set. They are brought to the task's size (bilinear, antialiased) and channels.

    The score is the largest softmax probability (Hendrycks and Gimpel, ICLR 2017), of the whole
    chain, calibrator included; it is compared on the scale of its logarithm, where probabilities
    near 1 do not fall together. Metrics: ``auroc`` and ``fpr95``, fractions, in-distribution
    positive. Several such suites also give their means, ``ood/auroc`` and ``ood/fpr95``, as in
    Table 2 of the MaC-Cal paper. Not for a data set that shows the task's own classes.
    """

    pool = "ood"

    def __init__(self, name: str, argument: str, root: Path) -> None:
        super().__init__(name, argument, root)
        self.reader = find_reader(argument, self.root)

    @classmethod
    def names(cls, entry: str) -> list[str]:
        """Return one name a data set; long-tailed ones have the test images of others."""
        known = [(name, SOURCES.get(name)) for name in SOURCES.names()]
        return [
            f"{entry}-{name}:{reader.placeholder}" if reader.placeholder else f"{entry}-{name}"
            for name, reader in known
            if not issubclass(reader, LongTailMixin)
        ]

    @classmethod
    def accepts(cls, argument: str) -> bool:
        """Tell whether ``argument`` names a data set."""
        return argument.partition(":")[0] in SOURCES

    @property
    def label(self) -> str:
        """Return ``ood-`` and the data set's name, or the stem of its file or folder."""
        kind, _, place = self.argument.partition(":")
        short = Path(place).stem if kind in OWN else self.argument
        return f"ood-{re.sub(r'[^A-Za-z0-9_.-]', '_', short)[:60]}"

    def full_name(self) -> str:
        """Return the name with an absolute path, if it has one."""
        return f"ood-{self.reader.full_name()}"

    def check(self, info: DatasetInfo) -> None:
        """Accept tasks on grey or RGB images."""
        if info.channels not in (1, 3):
            raise self.refuse(f"needs images of 1 or 3 channels, {info.name!r} has {info.channels}")

    def missing_download(self) -> str:
        """Return what the other data set lacks."""
        return missing_download(self.argument, self.root)

    def signature(self) -> str:
        """Return the reader's signature."""
        return self.reader.signature()

    def test_paths(self) -> list[Path]:
        """Return the files that hold the other data set's test images."""
        return self.reader.test_paths()

    def labels(self, prepared: PreparedData, download: bool) -> np.ndarray:
        """Return the labels in the other data set, which nothing is compared with."""
        return self._kept(prepared, download).labels

    def parts(self, prepared: PreparedData, download: bool) -> Iterator[Part]:
        """Yield the one part."""
        kept = self._kept(prepared, download)
        blocks = (fitted(block, prepared.info) for block in kept.blocks())
        yield Part(PART, len(kept), blocks)

    def judge(
        self, data: SuiteData, outputs: Outputs, clean: Tensor
    ) -> tuple[dict[str, float], dict[str, Tensor]]:
        """Return AUROC and FPR95 of the largest log-probability, and both sets of it."""
        inside = clean.double().amax(1)
        outside = outputs(data.images(PART)).double().amax(1)
        metrics = {"auroc": auroc(inside, outside), "fpr95": fpr_at_tpr(inside, outside)}
        return metrics, {"inside": inside, "outside": outside}

    def _kept(self, prepared: PreparedData, download: bool) -> LabelledImages:
        source = read_source(self.argument, self.root, download)
        if source.fingerprint == prepared.fingerprint:
            raise self.refuse(f"has the images of the task itself, {prepared.info.name!r}")
        part = source.test or source.train
        return part.take(kept_rows(part.labels, prepared.split))


def fitted(images: np.ndarray, info: DatasetInfo) -> np.ndarray:
    """Return images (N, H, W, C), uint8, in the size and the 1 or 3 channels of ``info``."""
    planes = torch.from_numpy(np.array(images)).permute(0, 3, 1, 2)
    if planes.shape[1] in (2, 4):
        planes = planes[:, :-1]  # The last one is transparency.
    if planes.shape[1] != info.channels:
        planes = grayscale_to_rgb(planes) if info.channels == 3 else rgb_to_grayscale(planes)
    return resize(planes, list(info.size), antialias=True).permute(0, 2, 3, 1).contiguous().numpy()

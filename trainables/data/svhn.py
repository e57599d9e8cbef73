"""Street View House Numbers."""

import numpy as np
from torchvision.datasets import SVHN

from trainables.data._info import DatasetInfo
from trainables.data._registry import SOURCES
from trainables.data._torchvision import Checked, TorchvisionReader


@SOURCES.register("svhn")
class SvhnReader(TorchvisionReader):
    """SVHN (Netzer et al., 2011), cropped digits: 73,257 training and 26,032 test images, RGB."""

    address = "http://ufldl.stanford.edu/housenumbers/"

    def info(self) -> DatasetInfo:
        """Return the constants; no flips, which change what a digit means."""
        return DatasetInfo(
            name=self.name,
            classes=tuple("0123456789"),
            size=(32, 32),
            channels=3,
            mean=(0.4377, 0.4438, 0.4728),
            std=(0.1980, 0.2010, 0.1970),
            augmentation="none",
            split_rule="official test set, extra set unused; validation is a stratified draw from "
            "the training set",
            source=f"Netzer et al. (2011), {self.address}; channel statistics of the training set "
            "as commonly published",
        )

    def unpacked(self) -> list[Checked]:
        """Return the two files."""
        listed = (SVHN.split_list[part] for part in ("train", "test"))
        return [Checked(self.root / name, md5) for _, name, md5 in listed]

    def archives(self) -> list[Checked]:
        """Return the same files: they are read as downloaded."""
        return self.unpacked()

    def load(self, train: bool, download: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return one part; torchvision turns the label 10 of the digit 0 into 0."""
        part = SVHN(str(self.root), split="train" if train else "test", download=download)
        return part.data.transpose(0, 2, 3, 1), part.labels

"""CIFAR-10."""

from pathlib import Path

import numpy as np
from torchvision.datasets import CIFAR10

from trainables.data._info import DatasetInfo
from trainables.data._registry import SOURCES
from trainables.data._torchvision import Checked, TorchvisionReader

# The released code of Mukhoti et al. (2020) and of MbLS (2022) uses these for CIFAR-10 and, in the
# former, for CIFAR-100 as well. The deviations are means over images of each image's own deviation;
# those over all pixels are 0.2470, 0.2435, 0.2616.
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2023, 0.1994, 0.2010)
CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)


@SOURCES.register("cifar10")
class Cifar10Reader(TorchvisionReader):
    """CIFAR-10 (Krizhevsky, 2009): 50,000 training and 10,000 test images, RGB, 32 x 32."""

    address = "https://www.cs.toronto.edu/~kriz/cifar.html"
    dataset: type[CIFAR10] = CIFAR10

    def info(self) -> DatasetInfo:
        """Return the constants."""
        return DatasetInfo(
            name=self.name,
            classes=self.class_names(),
            size=(32, 32),
            channels=3,
            mean=MEAN,
            std=STD,
            augmentation="crop-flip",
            split_rule="official test set; validation is a stratified draw from the training set",
            source=f"Krizhevsky (2009), {self.address}; normalised as Mukhoti et al. (2020)",
        )

    def class_names(self) -> tuple[str, ...]:
        """Return the official names."""
        return CLASSES

    def unpacked(self) -> list[Checked]:
        """Return the pickled batches and their list of names."""
        data = self.dataset
        listed = [*data.train_list, *data.test_list, (data.meta["filename"], data.meta["md5"])]
        return [Checked(self.root / data.base_folder / name, md5) for name, md5 in listed]

    def archives(self) -> list[Checked]:
        """Return the one archive."""
        return [Checked(self.root / self.dataset.filename, self.dataset.tgz_md5)]

    def holds_test(self, path: Path) -> bool:
        """Tell the test batch and the archive from the rest."""
        return path.name in {self.dataset.filename, *(name for name, _ in self.dataset.test_list)}

    def load(self, train: bool, download: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return one part."""
        part = self.dataset(str(self.root), train=train, download=download)
        return part.data, np.asarray(part.targets)

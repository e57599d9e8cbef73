from dataclasses import replace
from pathlib import Path

import numpy as np

from trainables.common.errors import InputError
from trainables.data._images import Images
from trainables.data._inputs import DatasetInfo
from trainables.data._published import Checked, TorchvisionReader
from trainables.data._rows import Rows, take_counts
from trainables.data._source import SOURCES, Reader

# The released code of Mukhoti et al. (2020) uses these constants for CIFAR-10 and CIFAR-100, that
# of MbLS (2022) for CIFAR-10. STD is the mean of the standard deviations of single images; over all
# pixels of the training set, they are 0.2470, 0.2435, 0.2616.
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2023, 0.1994, 0.2010)
CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
NAMES = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
    butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab
    crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard
    lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
    oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
    possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake
    spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor
    train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
FINE_CLASSES = tuple(NAMES.split())
# As in Table 4 of the class-wise loss scaling paper: 20,431 images of CIFAR-10, 19,573 of
# CIFAR-100.
DEFAULT_RATIO = 10.0
# Fixed, because the kept images are the same for every seed of the split.
SEED = 0


@SOURCES.register("cifar10")
class Cifar10Reader(TorchvisionReader):
    """CIFAR-10 (Krizhevsky, 2009): 50,000 training and 10,000 test images, RGB, 32 x 32."""

    inputs = Images((32, 32), 3, MEAN, STD, augmentation="crop-flip")
    address = "https://www.cs.toronto.edu/~kriz/cifar.html"
    citation = f"Krizhevsky (2009), {address}; normalised as Mukhoti et al. (2020)"
    dataset = "CIFAR10"
    classes: tuple[str, ...] = CLASSES

    def unpacked(self) -> list[Checked]:
        data = self.published
        listed = [*data.train_list, *data.test_list, (data.meta["filename"], data.meta["md5"])]
        return [Checked(self.root / data.base_folder / name, md5) for name, md5 in listed]

    def archives(self) -> list[Checked]:
        return [Checked(self.root / self.published.filename, self.published.tgz_md5)]

    def holds_test(self, path: Path) -> bool:
        data = self.published
        return path.name in {data.filename, *(name for name, _ in data.test_list)}

    def load(self, train: bool) -> tuple[np.ndarray, np.ndarray]:
        part = self.published(str(self.root), train=train, download=True)
        return part.data, np.asarray(part.targets)


@SOURCES.register("cifar100")
class Cifar100Reader(Cifar10Reader):
    """CIFAR-100 (Krizhevsky, 2009), fine labels: 50,000 training, 10,000 test images, 32 x 32."""

    dataset = "CIFAR100"
    classes = FINE_CLASSES


def long_tail_counts(largest: int, classes: int, ratio: float) -> np.ndarray:
    """Return the number of images per class, (K,), int64: an exponential profile.

    As in Cui et al. (2019), class k has ``floor(largest * ratio ** (-k / (K - 1)))`` images, at
    least one.
    """
    share = ratio ** (-np.arange(classes) / (classes - 1))
    # The summand avoids a floor of 99 if rounding makes 100 slightly smaller.
    return np.maximum(np.floor(largest * share + 1e-6), 1).astype(np.int64)


class LongTailMixin(Reader):
    """Removes training images so that class sizes have a long tail; keeps all test images.

    Attributes:
        ratio: Size of the largest class divided by that of the smallest, at least 1; from
            ``NAME:RATIO``, 10 by default.
    """

    takes_argument = True

    def __init__(self, name: str, argument: str, root: Path) -> None:
        super().__init__(name, argument, root)
        try:
            self.ratio = float(self.argument or DEFAULT_RATIO)
        except ValueError:
            self.ratio = 0.0
        if not 1 <= self.ratio < np.inf:
            raise InputError(f"dataset {self.name!r}: ratio {self.argument!r} is outside [1, inf)")

    def read(self, download: bool) -> tuple[DatasetInfo, Rows, Rows | None]:
        """Return the remaining training images and all test images."""
        info, train, test = super().read(download)  # type: ignore[safe-super]
        available = np.bincount(train.labels, minlength=info.num_classes)
        wanted = long_tail_counts(int(available.max()), info.num_classes, self.ratio)
        rows = take_counts(train.labels, np.minimum(wanted, available), SEED, "long_tail")
        tail = f"exponential long tail of ratio {self.ratio:g} (Cui et al., 2019)"
        return replace(info, source=f"{info.source}; {tail}"), train.take(rows), test


@SOURCES.register("cifar10-lt")
class Cifar10LongTailReader(LongTailMixin, Cifar10Reader):
    """CIFAR-10 with exponentially shrinking training classes: ``cifar10-lt[:RATIO]``."""


@SOURCES.register("cifar100-lt")
class Cifar100LongTailReader(LongTailMixin, Cifar100Reader):
    """CIFAR-100 with exponentially shrinking training classes: ``cifar100-lt[:RATIO]``."""

import numpy as np

from trainables.data._images import Images
from trainables.data._published import Checked, TorchvisionReader
from trainables.data._source import SOURCES

MEAN, STD = (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)


@SOURCES.register("svhn")
class SvhnReader(TorchvisionReader):
    """SVHN (Netzer et al., 2011), cropped digits: 73,257 training and 26,032 test images, RGB.

    Images are not flipped, because mirrored digits are not digits.
    """

    inputs = Images((32, 32), 3, MEAN, STD, augmentation="none")
    split_rule = (
        "official test set, extra set unused; validation is a stratified draw from the training set"
    )
    dataset = "SVHN"
    classes = tuple("0123456789")
    address = "http://ufldl.stanford.edu/housenumbers/"
    citation = (
        f"Netzer et al. (2011), {address}; channel statistics of the training set as commonly "
        "published"
    )

    def unpacked(self) -> list[Checked]:
        listed = (self.published.split_list[part] for part in ("train", "test"))
        return [Checked(self.root / name, md5) for _, name, md5 in listed]

    def load(self, train: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return one part; torchvision changes the label 10 of the digit 0 to 0."""
        part = self.published(str(self.root), split="train" if train else "test", download=True)
        return part.data.transpose(0, 2, 3, 1), part.labels

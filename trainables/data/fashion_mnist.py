import numpy as np

from trainables.data._images import Images
from trainables.data._published import Checked, TorchvisionReader
from trainables.data._source import SOURCES


@SOURCES.register("fashion-mnist")
class FashionMnistReader(TorchvisionReader):
    """Fashion-MNIST (Xiao et al., 2017): 60,000 training and 10,000 test images, grey, 28 x 28.

    torchvision has checksums for the downloaded files, none for the unpacked ones.
    """

    inputs = Images((28, 28), 1, mean=(0.2860,), std=(0.3530,), augmentation="crop-flip")
    dataset = "FashionMNIST"
    classes = (
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    )
    address = "https://github.com/zalandoresearch/fashion-mnist"
    citation = (
        f"Xiao et al. (2017), {address}; channel statistics of the training set as commonly "
        "published"
    )

    def unpacked(self) -> list[Checked]:
        return [Checked(packed.path.with_suffix(""), None) for packed in self.archives()]

    def archives(self) -> list[Checked]:
        folder = self.root / "FashionMNIST" / "raw"
        return [Checked(folder / name, md5) for name, md5 in self.published.resources]

    def load(self, train: bool) -> tuple[np.ndarray, np.ndarray]:
        part = self.published(str(self.root), train=train, download=True)
        return part.data.numpy(), part.targets.numpy()

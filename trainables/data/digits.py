from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from trainables.data._images import Images
from trainables.data._inputs import DatasetInfo
from trainables.data._rows import RowArrays
from trainables.data._source import SOURCES, Reader, SourceStatus

DEVIATION = 90.0  # Standard deviation of the noise; pixels are 0 to 255.
SEED = 0


@SOURCES.register("digits")
class DigitsReader(Reader):
    """1,797 grey 8 x 8 images of handwritten digits; nothing is downloaded.

    The pixels 0..16 become ``round(value * 255 / 16)``, 17 different values of uint8. Good for
    demonstrations and tests; too small for conclusions on calibration.
    """

    def read(self, download: bool) -> tuple[DatasetInfo, RowArrays, RowArrays | None]:
        """Return all images as training images: there is no official test set."""
        # Read without scikit-learn, whose import takes seconds. A row has 64 pixels and the label.
        rows = np.loadtxt(self.files()[0], delimiter=",")
        scaled = np.rint(rows[:, :-1].reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
        info = DatasetInfo(
            name=self.name,
            classes=tuple("0123456789"),
            inputs=Images(size=(8, 8), channels=1, mean=(0.5,), std=(0.5,), augmentation="none"),
            split_rule="no official test set: test and validation are stratified draws",
            source="scikit-learn load_digits (UCI optdigits, test part); normalised to [-1, 1], "
            "because statistics of all images would include the test images",
        )
        return info, RowArrays(scaled, rows[:, -1].astype(np.int64)), None

    def labels(self) -> tuple[np.ndarray, np.ndarray | None]:
        return self.read(download=False)[1].labels, None

    def files(self) -> list[Path]:
        package = find_spec("sklearn")
        folders = (package.submodule_search_locations if package else None) or []
        return [Path(folder) / "datasets" / "data" / "digits.csv.gz" for folder in folders]

    def test_paths(self) -> list[Path]:
        return self.files()

    def check(self) -> SourceStatus:
        if any(path.is_file() for path in self.files()):
            return SourceStatus(True, "1,797 images inside scikit-learn")
        return SourceStatus(False, "scikit-learn has no digits", "pip install scikit-learn")


@SOURCES.register("digits-noisy")
class NoisyDigitsReader(DigitsReader):
    """The digits with noise on every pixel, so that networks overfit and need calibration.

    A network that is trained on a few hundred of these images classifies all of them correctly, but
    only about 70 % of the others, and is over-confident by some 15 points.
    """

    def read(self, download: bool) -> tuple[DatasetInfo, RowArrays, RowArrays | None]:
        """Return all images, each with its own, fixed noise."""
        info, rows, test = super().read(download)
        noise = _bell(rows.values.shape) * DEVIATION
        noisy = np.clip(np.rint(rows.values + noise), 0, 255).astype(np.uint8)
        source = f"{info.source}; noise of deviation {DEVIATION:g} of 255"
        return replace(info, source=source), RowArrays(noisy, rows.labels), test


def _bell(shape: tuple[int, ...]) -> np.ndarray:
    """Return nearly normal numbers (sums of eight bytes), the same with every NumPy version."""
    raw = np.random.Philox(key=SEED).random_raw(int(np.prod(shape)))
    sums = raw.view(np.uint8).reshape(*shape, 8).sum(axis=-1, dtype=np.int64)
    return (sums - 8 * 127.5) / np.sqrt(8 * (256**2 - 1) / 12)

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from trainables.data._images import Images
from trainables.data._inputs import DatasetInfo
from trainables.data._rows import RowArrays
from trainables.data._source import SOURCES, Reader, SourceStatus


@SOURCES.register("digits")
class DigitsReader(Reader):
    """1,797 grey 8 x 8 images of handwritten digits; nothing is downloaded.

    The pixels 0..16 become ``round(value * 255 / 16)``: 17 different values of uint8, so that
    nothing is lost. Good for demonstrations and tests; too small for conclusions on calibration.
    """

    def read(self, download: bool) -> tuple[DatasetInfo, RowArrays, RowArrays | None]:
        """Return all images as training images: there is no official test set."""
        # By itself: scikit-learn takes seconds to import. 64 pixels and the label of each image.
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
        """Look for the file inside scikit-learn."""
        if any(path.is_file() for path in self.files()):
            return SourceStatus(True, "1,797 images inside scikit-learn")
        return SourceStatus(False, "scikit-learn has no digits", "pip install scikit-learn")

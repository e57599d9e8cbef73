import importlib
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np
from joblib import Parallel, delayed

from trainables.common.words import many
from trainables.data import DatasetInfo, PreparedData
from trainables.data.suites._base import SUITES, Part
from trainables.data.suites._corruptions import CORRUPTIONS, SEVERITIES, CorruptionSuite

LIBRARY = "imagecorruptions-imaug"
LEAST = 32  # The library refuses images with fewer pixels per side.
BLOCK = 500
WITH_OWN_SEED = ("impulse_noise", "glass_blur")  # These do not use NumPy's global generator.


@SUITES.register("generated-c")
class GeneratedCorruptions(CorruptionSuite):
    """The 15 corruptions of Hendrycks and Dietterich (ICLR 2019), made from a task's test images.

    Use it if official arrays do not exist or are missing. ``imagecorruptions-imaug`` corrupts the
    images (install it with ``pip install 'calsweep[corruptions]'``). The severities are those of
    ImageNet-C, so results are not comparable with published results on CIFAR-10-C. An image's
    corruption depends only on its row in the test set, the corruption and its severity. All
    corruptions of an image together take about 75 milliseconds on one core, once per task.
    """

    def check(self, info: DatasetInfo) -> None:
        """Accept tasks of RGB images of at least 32 pixels, if the library is installed."""
        images = self.form(info)
        if images.channels != 3 or min(images.size) < LEAST:
            height, width = images.size
            raise self.refuse(
                f"expected images of 3 channels and at least {LEAST} pixels per side, but "
                f"{info.name!r} has {width} x {height} images of {many(images.channels, 'channel')}"
            )
        try:
            importlib.import_module("imagecorruptions")
        # OpenCV also raises ``ImportError`` if a system library is missing.
        except ImportError as error:
            remedy = "pip install 'calsweep[corruptions]'"
            raise self.refuse(f"needs {LIBRARY} ({error}): {remedy}") from error

    def signature(self) -> str:
        """Return the library's version; the folder's name already depends on the task's data."""
        return f"{LIBRARY} {version(LIBRARY)}"

    def test_paths(self) -> list[Path]:
        """Return nothing, because the task's test images are sealed with the task."""
        return []

    def read(self, prepared: PreparedData, download: bool) -> tuple[np.ndarray, Iterator[Part]]:
        """Return the labels of the task's test images, and one part per corruption."""
        test = prepared.test()
        rows = SEVERITIES * len(test)
        decoded = prepared.info.inputs.decoded
        parts = (Part(each, rows, _corrupted(test.values, each, decoded)) for each in CORRUPTIONS)
        return np.array(test.labels), parts


def _corrupted(
    images: np.ndarray, corruption: str, decoded: Callable[[np.ndarray], np.ndarray] = np.asarray
) -> Iterator[np.ndarray]:
    """Yield the images under one corruption, severity by severity; many images use all cores."""
    jobs = (
        delayed(_block)(decoded(images[start : start + BLOCK]), corruption, severity, start)
        for severity in range(1, SEVERITIES + 1)
        for start in range(0, len(images), BLOCK)
    )
    # Processes, because the library uses NumPy's global generator; one process for a few images.
    workers = -1 if len(images) > BLOCK else 1
    yield from Parallel(n_jobs=workers, return_as="generator")(jobs)


def _block(images: np.ndarray, corruption: str, severity: int, start: int) -> np.ndarray:
    """Corrupt the images (M, H, W, 3) of the rows from ``start``."""
    state = np.random.get_state()
    try:
        made = [_one(image, corruption, severity, row) for row, image in enumerate(images, start)]
        return np.stack(made)
    finally:
        np.random.set_state(state)


def _one(image: np.ndarray, corruption: str, severity: int, row: int) -> np.ndarray:
    words = (CORRUPTIONS.index(corruption), severity, row)
    seed = int(np.random.SeedSequence(words).generate_state(1)[0])
    np.random.seed(seed)
    own = {"seed": seed} if corruption in WITH_OWN_SEED else {}
    corrupt = importlib.import_module("imagecorruptions").corrupt
    return corrupt(np.array(image), severity, corruption, **own)

"""Tasks and suites of a few images."""

import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from small_data import ROWS, make_images, md5, write_npz

from trainables.data import PreparedData, SplitSpec, prepare
from trainables.data.suites._corruptions import CORRUPTIONS
from trainables.data.suites.cifar_c import Cifar10C, OfficialCorruptions


@pytest.fixture
def make_task(tmp_path: Path) -> Callable[..., PreparedData]:
    """Prepare random images as a task; 20 test images unless limited."""

    def make(
        size: int = 32, channels: int = 3, classes: int = 10, test_limit: int | None = None
    ) -> PreparedData:
        place = tmp_path / f"task-{size}-{channels}-{classes}.npz"
        path = write_npz(place, size, channels, classes)
        split = SplitSpec(validation=classes, test_limit=test_limit)
        return prepare(f"npz:{path}", tmp_path, split, tmp_path / "prepared")

    return make


@pytest.fixture
def arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """CIFAR-10-C with 20 images a severity; image r of severity s begins with the pixel r, s."""
    monkeypatch.setattr(OfficialCorruptions, "images", ROWS)
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    for number, corruption in enumerate((*CORRUPTIONS, "spatter")):
        images = make_images(5 * ROWS, seed=number)
        images[:, 0, 0, 0] = np.tile(np.arange(ROWS), 5)
        images[:, 0, 0, 1] = np.repeat(np.arange(1, 6), ROWS)
        images[:, 0, 0, 2] = number
        np.save(folder / f"{corruption}.npy", images)
    np.save(folder / "labels.npy", np.tile(np.arange(ROWS) % 10, 5).astype(np.uint8))
    return tmp_path


@pytest.fixture
def packed_arrays(arrays: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same as the official archive with the official checksum, not unpacked."""
    archive = arrays / "CIFAR-10-C.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(arrays / "CIFAR-10-C", arcname="CIFAR-10-C")
    shutil.rmtree(arrays / "CIFAR-10-C")
    monkeypatch.setattr(Cifar10C, "md5", md5(archive))
    return arrays

"""Miniatures of the data sets' official layouts."""

import gzip
import pickle
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat
from small_data import make_images, make_labels, md5
from torchvision.datasets import CIFAR10, CIFAR100, SVHN, FashionMNIST

from trainables.data import PreparedData, RowArrays, SplitSpec, prepare


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    """Digits, prepared twice with different splits; the first of the two."""
    folder = tmp_path_factory.mktemp("digits")
    prepare("digits", folder / "raw", SplitSpec(seed=1), folder / "prepared")
    return prepare("digits", folder / "raw", SplitSpec(), folder / "prepared")


@pytest.fixture
def archive() -> dict[str, np.ndarray]:
    """The arrays of a good npz file: 4 classes, 40 training and 8 test images."""
    return {
        "x_train": make_images(40, size=6),
        "y_train": make_labels(40, 4),
        "x_test": make_images(8, size=6, seed=1),
        "y_test": make_labels(8, 4),
    }


@pytest.fixture
def write_npz(tmp_path: Path) -> Callable[[dict[str, np.ndarray]], str]:
    """Write arrays into a file and return its data set name."""

    def write(arrays: dict[str, np.ndarray]) -> str:
        np.savez(tmp_path / "own.npz", **arrays)
        return f"npz:{tmp_path / 'own.npz'}"

    return write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Class folders: 2 classes, 6 training and 2 test images each, RGB, 5 high and 7 wide."""
    for part, count in (("train", 6), ("test", 2)):
        for label, name in enumerate(("cat", "dog")):
            target = tmp_path / "own" / part / name
            target.mkdir(parents=True)
            for number, image in enumerate(make_images(count, 7, seed=label)[:, :5]):
                Image.fromarray(image).save(target / f"{number}.png")
    return tmp_path / "own"


def pickle_batch(path: Path, images: np.ndarray, labels: np.ndarray, key: str) -> list[str]:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    path.write_bytes(pickle.dumps({"data": rows, key: labels.tolist()}))
    return [path.name, md5(path)]


@pytest.fixture(params=["cifar10", "cifar100"])
def cifar(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, Path, RowArrays, RowArrays]:
    """A miniature of one CIFAR: name, root, training and test images."""
    kind, key, classes = (
        (CIFAR10, "labels", 10) if request.param == "cifar10" else (CIFAR100, "fine_labels", 100)
    )
    train = RowArrays(make_images(400), make_labels(400, classes))
    test = RowArrays(make_images(200, seed=1), np.roll(make_labels(200, classes), 3))
    base = tmp_path / kind.base_folder
    parts = np.array_split(np.arange(400), len(kind.train_list))
    listed = [
        pickle_batch(base / name, train.values[rows], train.labels[rows], key)
        for (name, _), rows in zip(kind.train_list, parts, strict=True)
    ]
    tested = [pickle_batch(base / kind.test_list[0][0], test.values, test.labels, key)]
    meta = base / kind.meta["filename"]
    meta.write_bytes(pickle.dumps({kind.meta["key"]: [str(k) for k in range(classes)]}))
    with tarfile.open(tmp_path / kind.filename, "w:gz") as tar:
        tar.add(base, arcname=kind.base_folder)
    monkeypatch.setattr(kind, "train_list", listed)
    monkeypatch.setattr(kind, "test_list", tested)
    monkeypatch.setattr(kind, "meta", {**kind.meta, "md5": md5(meta)})
    monkeypatch.setattr(kind, "tgz_md5", md5(tmp_path / kind.filename))
    monkeypatch.setattr(kind, "url", (tmp_path / "nowhere" / kind.filename).as_uri())
    return request.param, tmp_path, train, test


@pytest.fixture
def svhn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, RowArrays, RowArrays]:
    """A miniature of SVHN: its root, training and test images."""
    made, listed = [], {}
    for seed, (part, (_, name, _)) in enumerate(SVHN.split_list.items()):
        images, labels = make_images(30, seed=seed), np.roll(make_labels(30), seed)
        official = np.where(labels == 0, 10, labels).astype(np.uint8)
        savemat(tmp_path / name, {"X": images.transpose(1, 2, 3, 0), "y": official[:, None]})
        listed[part] = [(tmp_path / "nowhere").as_uri(), name, md5(tmp_path / name)]
        made.append(RowArrays(images, labels))
    monkeypatch.setattr(SVHN, "split_list", listed)
    return tmp_path, made[0], made[1]


@pytest.fixture
def fashion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, RowArrays, RowArrays]:
    """A miniature of Fashion-MNIST, packed: its root, training and test images."""
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    made, listed = [], []
    for seed, part in enumerate(("train", "t10k")):
        arrays = RowArrays(make_images(30, 28, 1, seed), np.roll(make_labels(30), seed))
        pixels = struct.pack(">4i", 0x803, 30, 28, 28) + arrays.values.tobytes()
        labels = struct.pack(">2i", 0x801, 30) + arrays.labels.astype(np.uint8).tobytes()
        for name, content in (
            (f"{part}-images-idx3-ubyte.gz", pixels),
            (f"{part}-labels-idx1-ubyte.gz", labels),
        ):
            (raw / name).write_bytes(gzip.compress(content))
            listed.append((name, md5(raw / name)))
        made.append(arrays)
    monkeypatch.setattr(FashionMNIST, "resources", listed)
    monkeypatch.setattr(FashionMNIST, "mirrors", [(tmp_path / "nowhere").as_uri() + "/"])
    return tmp_path, made[0], made[1]

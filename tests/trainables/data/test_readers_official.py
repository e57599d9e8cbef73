import shutil
import tarfile
import threading
import zipfile
import zlib
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pickle import UnpicklingError

import numpy as np
import pytest
from small_data import refusal
from torchvision.datasets import CIFAR10, CIFAR100, FashionMNIST

from trainables.common.errors import InputError
from trainables.data import (
    SOURCES,
    RowArrays,
    SourceStatus,
    find_reader,
    missing_download,
    read_source,
    source_names,
)
from trainables.data.cifar import long_tail_counts

KINDS = {"cifar10": CIFAR10, "cifar100": CIFAR100}


def assert_same(found: RowArrays | None, expected: RowArrays) -> None:
    assert found is not None
    np.testing.assert_array_equal(found.values, expected.values)
    np.testing.assert_array_equal(found.labels, expected.labels)


def test_names_are_those_of_the_files():
    assert source_names() == [
        *("20newsgroups", "cifar10", "cifar10-lt", "cifar100", "cifar100-lt", "cub200", "digits"),
        *("digits-noisy", "fashion-mnist"),
        *(
            "features:PATH",
            "folder:PATH",
            "hf:ORG/NAME",
            "imagenet",
            "imagenet-lt:PATH",
            "logits:PATH",
            "npz:PATH",
        ),
        *("places-lt:PATH", "svhn", "text:PATH", "tiny-imagenet", "voc:PATH", "voc2012"),
    ]


def test_classes_have_their_published_numbers():
    names = "airplane automobile bird cat deer dog frog horse ship truck"
    assert SOURCES.get("cifar10").classes == tuple(names.split())
    fine = SOURCES.get("cifar100").classes
    assert (len(set(fine)), list(fine)) == (100, sorted(fine))
    assert list(SOURCES.get("fashion-mnist").classes) == FashionMNIST.classes
    assert SOURCES.get("svhn").classes == tuple("0123456789")


CIFAR = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NORMALISED = {
    "cifar10": (*CIFAR, "crop-flip"),
    "cifar100": (*CIFAR, "crop-flip"),
    "svhn": ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970), "none"),
    "fashion-mnist": ((0.2860,), (0.3530,), "crop-flip"),
    "tiny-imagenet": (*IMAGENET, "crop-flip"),
    "cub200": (*IMAGENET, "crop-flip"),
    "imagenet": (*IMAGENET, "resized-crop-flip"),
}


@pytest.mark.parametrize("name", NORMALISED)
def test_images_are_normalised_and_augmented_as_in_every_version(name):
    inputs = SOURCES.get(name).inputs
    assert (inputs.mean, inputs.std, inputs.augmentation) == NORMALISED[name]


def test_archives_that_people_fetch_have_their_owners_checksums():
    known = {
        "cub200": ("CUB_200_2011.tgz", "97eceeb196236b17998738112f37df78"),
        "tiny-imagenet": ("tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"),
    }
    kinds = {name: SOURCES.get(name) for name in known}
    assert {name: (kind.archive, kind.md5) for name, kind in kinds.items()} == known


def test_the_default_of_validation_depends_on_the_reader():
    usual = {name: SOURCES.get(name).validation for name in SOURCES.names()}
    own = ("features", "imagenet-lt", "places-lt", "voc", "voc2012")
    others = {"logits": "all", **dict.fromkeys(own, "own")}
    assert usual == dict.fromkeys(usual, 0.1) | others


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cifra10", "unknown dataset 'cifra10'; near are: cifar10"),
        ("cifar10:2", "^dataset 'cifar10:2': 'cifar10' takes no argument; remove the colon$"),
        ("npz", "^dataset 'npz': expected npz:PATH$"),
        ("folder:", "^dataset 'folder:': expected folder:PATH$"),
        ("cifar10-lt:0.5", r"^dataset 'cifar10-lt:0\.5': ratio '0\.5' is outside \[1, inf\)$"),
        ("cifar100-lt:many", r"^dataset 'cifar100-lt:many': ratio 'many' is outside \[1, inf\)$"),
        ("cifar10-lt:nan", "ratio 'nan' is outside"),
        ("cifar10-lt:inf", "ratio 'inf' is outside"),
    ],
)
def test_wrong_name(name, text, tmp_path):
    with pytest.raises(InputError, match=text):
        read_source(name, tmp_path, download=False)


def test_cifar(cifar):
    name, root, train, test = cifar
    source = read_source(name, root, download=False)
    assert_same(source.train, train)
    assert_same(source.test, test)
    assert source.info.num_classes == train.labels.max() + 1
    assert find_reader(name, root).check() == SourceStatus(True, f"intact at {root}")
    assert source.info.name == name


def test_cifar_is_unpacked_without_a_download(cifar):
    name, root, train, _ = cifar
    shutil.rmtree(root / KINDS[name].base_folder)
    assert find_reader(name, root).check().present
    assert_same(read_source(name, root, download=False).train, train)


@pytest.mark.parametrize("download", [False, True])
def test_cifar_absent(cifar, tmp_path, download):
    name, _, _, _ = cifar
    status = find_reader(name, tmp_path / "empty").check()
    assert not status.present
    archive = tmp_path / "empty" / KINDS[name].filename
    first = archive.parent / KINDS[name].base_folder / KINDS[name].train_list[0][0]
    assert status.detail == f"{first} is missing"
    told = f"dataset {name!r} is not downloaded yet: {status.detail}"
    assert missing_download(name, tmp_path / "empty") == told
    address = "https://www.cs.toronto.edu/~kriz/cifar.html"
    by_hand = f"get the files from {address} and save them as {archive}"
    assert status.remedy == f"allow the download, or {by_hand}"
    told = refusal(read_source, name, tmp_path / "empty", download=download)
    if download:
        assert told.startswith(f"dataset {name!r}: ")
        assert told.endswith(f"; {by_hand}")
    else:
        assert told == f"dataset {name!r}: {status.detail}; {status.remedy}"


@pytest.mark.parametrize("download", [False, True])
def test_cifar_damaged(cifar, download):
    name, root, _, _ = cifar
    batch = root / KINDS[name].base_folder / KINDS[name].test_list[0][0]
    batch.write_bytes(batch.read_bytes()[:-1])
    packed = root / KINDS[name].filename
    packed.write_bytes(packed.read_bytes()[: packed.stat().st_size // 2])
    assert find_reader(name, root).check().detail == f"{batch} is damaged (wrong checksum)"
    with pytest.raises(InputError, match="get the files from "):
        read_source(name, root, download=download)


@pytest.mark.parametrize(
    "kind",
    [
        *(RuntimeError, OSError, ValueError, EOFError, AssertionError, KeyError, IndexError),
        *(TypeError, UnpicklingError, tarfile.TarError, zipfile.BadZipFile, zlib.error),
    ],
)
def test_errors_of_libraries_become_input_errors(kind, monkeypatch, tmp_path):
    def refuse(*_: object, **__: object) -> None:
        raise kind("no\n  way")

    monkeypatch.setattr(CIFAR10, "__init__", refuse)
    with pytest.raises(
        InputError, match=rf"^dataset 'cifar10': {kind.__name__}: '?no.* way'?; get"
    ):
        read_source("cifar10", tmp_path)


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.mark.parametrize("intact", [True, False])
def test_cifar_download_is_checked(cifar, monkeypatch, tmp_path, intact):
    name, root, train, _ = cifar
    packed = root / KINDS[name].filename
    if not intact:
        packed.write_bytes(packed.read_bytes() + b"!")
    with HTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(root))) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/{packed.name}"
        monkeypatch.setattr(KINDS[name], "url", url)
        if intact:
            assert_same(read_source(name, tmp_path / "new").train, train)
        else:
            with pytest.raises(InputError, match="corrupted"):
                read_source(name, tmp_path / "new")
        server.shutdown()


@pytest.mark.parametrize("ratio", ["", ":4"])
def test_cifar_long_tail(cifar, ratio):
    name, root, train, test = cifar
    source = read_source(f"{name}-lt{ratio}", root, download=False)
    counts = np.bincount(source.train.labels)
    assert (np.diff(counts) <= 0).all()
    assert counts[0] == np.bincount(train.labels)[0]
    said = f"; exponential long tail of ratio {ratio[1:] or 10} (Cui et al., 2019)"
    assert source.info.source.endswith(said)
    assert counts[-1] == max(1, int(counts[0] / float(ratio[1:] or 10)))
    assert_same(source.test, test)
    again = read_source(f"{name}-lt{ratio}", root, download=False)
    assert again.fingerprint == source.fingerprint
    assert_same(read_source(f"{name}-lt:1", root, download=False).train, train)


def test_files_with_test_images_are_sealed(cifar, svhn, fashion):
    name, root, _, _ = cifar
    kind = KINDS[name]
    expected = {
        name: [kind.test_list[0][0], kind.filename],
        f"{name}-lt:4": [kind.test_list[0][0], kind.filename],
        "svhn": ["test_32x32.mat"] * 2,
        "fashion-mnist": [
            f"t10k-{of}-ubyte{ending}"
            for ending in ("", ".gz")
            for of in ("images-idx3", "labels-idx1")
        ],
    }
    for dataset, names in expected.items():
        assert [path.name for path in find_reader(dataset, root).test_paths()] == names
    assert len(find_reader(name, root).files()) == len(kind.train_list) + 2


@pytest.mark.parametrize(
    ("largest", "classes", "ratio", "total"),
    [
        (5000, 10, 10, 20431),
        (500, 100, 10, 19573),
        (5000, 10, 100, 12406),
        (500, 100, 100, 10847),
        (32, 6, 32, 63),  # Halved each time, where a power may fall just short of that.
    ],
)
def test_long_tail_has_the_published_sizes(largest, classes, ratio, total):
    counts = long_tail_counts(largest, classes, ratio)
    assert counts.sum() == total
    assert counts[0] == largest
    assert counts[-1] == largest // ratio


def test_svhn(svhn):
    root, train, test = svhn
    source = read_source("svhn", root, download=False)
    assert_same(source.train, train)
    assert_same(source.test, test)
    assert source.info.inputs.augmentation == "none"


def test_a_folder_in_the_place_of_a_file_is_none(svhn):
    root, _, _ = svhn
    path = root / "train_32x32.mat"
    path.unlink()
    path.mkdir()
    assert find_reader("svhn", root).check().detail == f"{path} is missing"


def test_fashion_mnist(fashion):
    root, train, test = fashion
    for _ in ("packed", "unpacked"):
        source = read_source("fashion-mnist", root, download=False)
        assert_same(source.train, train)
        assert_same(source.test, test)


def test_fashion_mnist_truncated_after_unpacking(fashion):
    root, _, _ = fashion
    read_source("fashion-mnist", root, download=False)
    unpacked = root / "FashionMNIST" / "raw" / "train-images-idx3-ubyte"
    unpacked.write_bytes(unpacked.read_bytes()[:-100])
    with pytest.raises(InputError, match="dataset 'fashion-mnist'"):
        read_source("fashion-mnist", root, download=False)

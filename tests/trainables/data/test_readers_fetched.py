import shutil
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from small_data import md5, refusal
from torchvision.transforms import functional as TF

from trainables.common.errors import InputError
from trainables.data import (
    DataNote,
    DatasetInfo,
    ImageShape,
    PreparedData,
    SplitSpec,
    find_reader,
    missing_download,
    pictures,
    prepare,
    read_pictures,
    read_source,
)
from trainables.data import imagenet as imagenet_module
from trainables.data._files import ImageFiles, ListedReader
from trainables.data._images import draw_resized_crops
from trainables.data._masked_files import MaskedFiles
from trainables.data._prepare import raw_test_paths
from trainables.data._published import IMAGENET_MEAN, IMAGENET_STD
from trainables.data._rows import Rows, fingerprint, make_split
from trainables.data.cub200 import Cub200Reader
from trainables.data.tiny_imagenet import TinyImageNetReader

WNIDS = ("n01443537", "n01629819", "n02124075")
BIRDS = ("001.Black_footed_Albatross", "002.Laysan_Albatross", "003.Sooty_Albatross")


def draw_image(path: Path, width: int, height: int, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    # Coarse blocks survive the compression of JPEG.
    Image.fromarray(pixels[:4, :4]).resize((width, height), Image.Resampling.NEAREST).save(path)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """Tiny-ImageNet: 3 classes, 10 training and 2 test images each."""
    home = tmp_path / "tiny-imagenet-200"
    lines = []
    for label, wnid in enumerate(WNIDS):
        for number in range(10):
            name = f"{wnid}_{number}.JPEG"
            draw_image(home / "train" / wnid / "images" / name, 64, 64, 10 * label + number)
        (home / "train" / wnid / f"{wnid}_boxes.txt").write_text("no image")
    for number in range(6):
        draw_image(home / "val" / "images" / f"val_{number}.JPEG", 64, 64, 100 + number)
        lines.append(f"val_{number}.JPEG\t{WNIDS[2 - number % 3]}\t0\t0\t62\t62\n")
    (home / "val" / "val_annotations.txt").write_text("".join(lines))
    (home / "wnids.txt").write_text("\n".join(reversed(WNIDS)))
    return tmp_path


@pytest.fixture
def imagenet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """ImageNet: 3 classes, 4 training and 2 test images each, of different sizes."""
    monkeypatch.setattr(imagenet_module, "CLASSES", len(WNIDS))
    for part, count in (("train", 4), ("val", 2)):
        for label, wnid in enumerate(WNIDS):
            for number in range(count):
                path = tmp_path / "imagenet" / part / wnid / f"{part}_{number}.JPEG"
                draw_image(path, 300 + 20 * number, 260, 10 * label + number)
    return tmp_path


@pytest.fixture
def cub200(tmp_path: Path) -> Path:
    """CUB-200-2011: 3 classes, 3 training and 2 test images each."""
    home = tmp_path / "CUB_200_2011"
    rows = [(label, number) for label in range(3) for number in range(5)]
    for label, number in rows:
        draw_image(home / "images" / BIRDS[label] / f"{number}.jpg", 300, 200, 10 * label + number)
    columns = {
        "classes.txt": list(BIRDS),
        "images.txt": [f"{BIRDS[label]}/{number}.jpg" for label, number in rows],
        "image_class_labels.txt": [str(label + 1) for label, _ in rows],
        "train_test_split.txt": [str(int(number % 2 == 0)) for _, number in rows],
    }
    for name, values in columns.items():
        lines = (f"{number} {value}\n" for number, value in enumerate(values, 1))
        (home / name).write_text("".join(lines))
    return tmp_path


def prepared_from(name: str, root: Path, split: SplitSpec | None = None) -> PreparedData:
    split = split or SplitSpec(validation=3)
    return prepare(name, root, split, root / "prepared", download=False)


def test_tiny_imagenet(tiny):
    found = prepared_from("tiny-imagenet", tiny, SplitSpec())
    assert found.info.classes == WNIDS
    assert found.counts == {"train": 27, "validation": 3, "test": 6}
    assert np.bincount(found.search().validation.labels).tolist() == [1, 1, 1]
    test = found.test()
    assert test.labels.tolist() == [2, 1, 0, 2, 1, 0]
    path = tiny / "tiny-imagenet-200" / "val" / "images" / "val_1.JPEG"
    np.testing.assert_array_equal(test.values[1], np.asarray(Image.open(path)))


def test_a_tenth_of_tiny_imagenet_is_50_a_class():
    labels, test = np.repeat(np.arange(200), 500), np.repeat(np.arange(200), 50)
    rows = make_split(labels, test, SplitSpec())
    assert np.bincount(labels[rows.validation]).tolist() == [50] * 200


def test_imagenet_is_evaluated_on_the_centre_of_a_shorter_side_of_256(imagenet):
    found = prepared_from("imagenet", imagenet)
    assert found.info.inputs.size == (224, 224)
    assert found.counts == {"train": 9, "validation": 3, "test": 6}
    test = found.test()
    assert test.labels.tolist() == [0, 0, 1, 1, 2, 2]
    path = imagenet / "imagenet" / "val" / WNIDS[1] / "val_1.JPEG"
    with Image.open(path) as image:
        expected = image.resize((round(320 * 256 / 260), 256), Image.Resampling.BILINEAR)
    left = (expected.width - 224) // 2
    cut = np.asarray(expected.crop((left, 16, left + 224, 240)), np.int16)
    inputs = found.info.inputs
    (seen,) = inputs.decoded(test.values[3:4])
    assert np.abs(seen - cut).mean() < 12
    batcher = inputs.batcher(test.values)
    (batch,) = batcher.batches(torch.tensor([3]), 1)
    plain = (torch.from_numpy(seen / 255) - torch.tensor(inputs.mean)) / torch.tensor(inputs.std)
    torch.testing.assert_close(batcher.plain(batch)[0], plain.permute(2, 0, 1).float())


def test_imagenet_is_trained_on_crops_of_the_whole_image(imagenet):
    """The crops are those that torchvision makes of the files."""
    found = prepared_from("imagenet", imagenet)
    numbers, train = found.search_numbers("train"), found.search().train
    files = read_source("imagenet", imagenet, download=False).train.paths
    batcher = found.info.inputs.batcher(train.values)
    (batch,) = batcher.batches(torch.arange(len(train)), len(train))
    views = batcher.view(batch, "resized-crop-flip", torch.Generator().manual_seed(0))
    outside = 0
    with_sizes = (batch[:, 2], batch[:, 3], torch.Generator().manual_seed(0))
    crops = draw_resized_crops(len(train), *with_sizes).T.int().tolist()
    for view, (*box, flip), number in zip(views, crops, numbers, strict=True):
        with Image.open(files[number]) as image:
            theirs = TF.resized_crop(image.convert("RGB"), *box, [224, 224])
            outside += box[1] < 0.1 * image.width
        theirs = TF.hflip(theirs) if flip else theirs
        expected = TF.normalize(TF.to_tensor(theirs), IMAGENET_MEAN, IMAGENET_STD)
        torch.testing.assert_close(view, expected, rtol=0, atol=1e-5)
    assert outside  # The stored form holds more than a centre.


def test_a_broken_image_of_imagenet_is_named_before_anything_is_stored(imagenet):
    path = imagenet / "imagenet" / "train" / WNIDS[1] / "train_2.JPEG"
    path.write_bytes(path.read_bytes()[:900])
    told = refusal(prepared_from, "imagenet", imagenet)
    assert told.startswith(f"{path} cannot be read as an image: image file is truncated")
    assert not list((imagenet / "prepared").glob("*/split.json"))


@pytest.fixture
def long_tail(imagenet: Path) -> Path:
    """Lists in the form of ImageNet-LT's: 3, 2 and 1 training images, 1 for validation, 2 tests."""
    for path in (imagenet / "imagenet").rglob("*.JPEG"):
        path.rename(path.with_name(f"{path.parent.name}-{path.name}"))
    lines: dict[str, list[str]] = {"train": [], "val": [], "test": []}
    for label, wnid in enumerate(WNIDS):
        # The official validation images have no folder of a class there.
        place, test = f"train/{wnid}/{wnid}-train", f"val/{wnid}-val"
        lines["train"] += [f"{place}_{number}.JPEG {label}" for number in range(3 - label)]
        lines["val"].append(f"{place}_3.JPEG {label}")
        lines["test"] += [f"{test}_{number}.JPEG {label}" for number in range(2)]
    for part, each in lines.items():
        (imagenet / f"ImageNet_LT_{part}.txt").write_text("\n".join(each))
    return imagenet


def test_lists_of_a_long_tail_are_training_validation_and_test(long_tail):
    name = f"imagenet-lt:{long_tail}"
    path = long_tail / "ImageNet_LT_val.txt"
    with pytest.warns(DataNote, match=f"^{path}: has 3 images, but the published list has 20,000$"):
        found = prepared_from(name, long_tail, SplitSpec(validation="own"))
    assert found.info.classes == WNIDS
    seen = found.search()
    assert np.bincount(seen.train.labels).tolist() == [3, 2, 1]
    assert np.bincount(seen.validation.labels).tolist() == [1, 1, 1]
    assert np.bincount(found.test().labels).tolist() == [2, 2, 2]
    np.testing.assert_array_equal(read_pictures(name, long_tail).train.validation, [6, 7, 8])
    sealed = find_reader(name, long_tail).test_paths()
    assert [path.parent.name for path in sealed] == [w for w in WNIDS for _ in range(2)]
    assert all(path.is_file() for path in sealed)
    assert missing_download(name, long_tail, SplitSpec(validation="own")) == ""


# The forms in which the lists of Places-LT are published: classes, and training and test images.
PLACES = {
    "by first letter": (("a/airfield", "b/bank/vault"), "data_256/{name}/{file}", "val_256/{file}"),
    "by class": (("airfield", "bank_vault"), "train/{name}/{file}", "val/{name}/{file}"),
}


@pytest.mark.parametrize("form", PLACES)
def test_lists_of_places_are_read_as_they_are_published(form, tmp_path):
    classes, place, test_place = PLACES[form]
    parts = {"train": (place, [0, 0, 1]), "val": (place, [0, 1]), "test": (test_place, [0, 1])}
    for part, (pattern, labels) in parts.items():
        files = [f"{part}_0000{number}.jpg" for number in range(len(labels))]
        named = zip(labels, files, strict=True)
        images = [pattern.format(name=classes[label], file=file) for label, file in named]
        lines = (f"{image} {label}\n" for image, label in zip(images, labels, strict=True))
        (tmp_path / f"Places_LT_{part}.txt").write_text("".join(lines))
        for number, image in enumerate(images):
            draw_image(tmp_path / "places365" / image, 30, 20, len(part) + number)
    with pytest.warns(DataNote):
        found = prepared_from(f"places-lt:{tmp_path}", tmp_path, SplitSpec(validation="own"))
    assert found.info.classes == classes
    seen = found.search()
    assert [seen.train.labels.tolist(), seen.validation.labels.tolist()] == [[0, 0, 1], [0, 1]]
    assert found.test().labels.tolist() == [0, 1]


def test_a_missing_image_of_a_list_is_found_before_reading(long_tail):
    path = long_tail / "imagenet" / "val" / WNIDS[1] / f"{WNIDS[1]}-val_0.JPEG"
    path.unlink()
    named = long_tail / "imagenet" / "val" / path.name
    told = f"{long_tail / 'ImageNet_LT_test.txt'}, line 3: {named} does not exist"
    name = f"imagenet-lt:{long_tail}"
    assert refusal(missing_download, name, long_tail) == told
    assert find_reader(name, long_tail).check().detail == told


LIST_FAULTS = {
    "a line of one word": (
        "train/x.JPEG",
        "expected an image and a class number, got 'train/x.JPEG'",
    ),
    "two folders": (
        "train/other/x.JPEG 0",
        "expected an image of class 0 in folder 'n01443537', as before, got folder 'other'",
    ),
}


@pytest.mark.parametrize("fault", LIST_FAULTS)
def test_a_wrong_line_of_a_list_is_named(long_tail, fault):
    line, expected = LIST_FAULTS[fault]
    path = long_tail / "ImageNet_LT_train.txt"
    path.write_text(f"{path.read_text()}\n{line}\n")
    told = refusal(read_source, f"imagenet-lt:{long_tail}", long_tail, download=False)
    assert told == f"{path}, line 7: {expected}"


def test_cub(cub200):
    found = prepared_from("cub200", cub200)
    assert found.info.classes == BIRDS
    assert found.counts == {"train": 6, "validation": 3, "test": 6}
    test = found.test()
    assert test.labels.tolist() == [0, 0, 1, 1, 2, 2]
    with Image.open(cub200 / "CUB_200_2011" / "images" / BIRDS[2] / "1.jpg") as image:
        expected = image.resize((256, 256), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(test.values[4], np.asarray(expected))
    assert found.info.inputs.shape == ImageShape(3, 224)
    assert raw_test_paths(cub200 / "prepared") == find_reader("cub200", cub200).test_paths()
    assert DatasetInfo.from_dict(found.info.to_dict()) == found.info


def test_the_fingerprint_of_files_follows_all_that_is_read_of_them(tmp_path):
    names = ("a", "b", "c")
    for name, content in zip(names, (b"12", b"3", b"12"), strict=True):
        (tmp_path / name).write_bytes(content)
    a, b, c = (tmp_path / name for name in names)
    plain = ImageFiles([a, b], np.array([0, 1]), (4, 6))
    assert fingerprint(plain) == fingerprint(replace(plain, paths=[c, b]))
    others: list[Rows] = [
        *(replace(plain, size=(6, 4)), replace(plain, resize=(4, 6)), replace(plain, resize=(4,))),
        *(replace(plain, labels=np.array([0, 0])), replace(plain, paths=[b, a])),
        plain.take(np.array([1, 0])),
        *(plain.take(np.array([0])), plain.take(np.array([], np.int64))),
    ]
    masked = MaskedFiles([(a, b)], (4, 6), 2)
    others += [masked, replace(masked, size=(6, 4)), replace(masked, pairs=[(b, a)])]
    others += [replace(masked, pairs=[(a, b), (a, b)]), replace(masked, pairs=[])]
    found = {fingerprint(plain), *map(fingerprint, others)}
    # As many bytes in all, but of other files.
    a.write_bytes(b"1")
    b.write_bytes(b"23")
    found |= {fingerprint(plain), fingerprint(masked)}
    assert len(found) == 1 + len(others) + 2
    a.unlink()
    for fault in ("No such file", "Is a directory"):
        for rows in (plain, masked):
            with pytest.raises(InputError, match=f"{a} cannot be read: {fault}"):
                fingerprint(rows)
        a.mkdir(exist_ok=True)


READERS = {
    "tiny-imagenet": "tiny-imagenet-200/train/n01629819/images/n01629819_3.JPEG",
    "imagenet": "imagenet/train/n01629819/train_3.JPEG",
    "cub200": "CUB_200_2011/images/002.Laysan_Albatross/2.jpg",
}


@pytest.fixture(params=READERS)
def miniature(request: pytest.FixtureRequest) -> tuple[str, Path, Path]:
    root = request.getfixturevalue(request.param.partition("-")[0])
    return request.param, root, root / READERS[request.param]


@pytest.mark.parametrize("mode", ["L", "CMYK", "RGBA", "P"])
def test_images_of_other_modes_become_rgb(miniature, mode):
    name, root, path = miniature
    with Image.open(path) as image:
        other = image.convert(mode)
    expected = np.asarray(other.convert("RGB"), np.float64).mean((0, 1))
    other.save(path, format="JPEG" if mode in ("L", "CMYK") else "PNG")
    train = read_source(name, root, download=False).train
    row = next(number for number, known in enumerate(train.paths) if known == path)
    pixels = find_reader(name, root).inputs.decoded(train.read(row, row + 1))
    assert pixels.shape == (1, *train.size, 3)
    # The centre of a coarse image has about its colours.
    np.testing.assert_allclose(pixels[0].mean((0, 1)), expected, atol=30)


def test_every_list_and_image_is_in_the_signature(miniature):
    name, root, _ = miniature
    reader = find_reader(name, root)
    source = read_source(name, root, download=False)
    assert isinstance(reader, ListedReader)
    images = [path for part in (source.train, source.test) for path in part.paths]
    seen = {reader.signature()}
    for path in (*(reader.path / each for each in reader.lists), *images):
        path.write_bytes(path.read_bytes() + b"\n")
        seen.add(reader.signature())
    assert len(seen) == 1 + len(reader.lists) + len(images)
    images[0].unlink()
    assert reader.signature() not in seen


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:200])


def _write_deep(path: Path) -> None:
    Image.fromarray(np.full((64, 64), 40000, np.uint16)).save(path, format="PNG")


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (_truncate, " cannot be read as an image"),
        (_write_deep, ": expected an image of 8 bits per channel, got mode I;16"),
    ],
)
def test_an_image_that_cannot_be_read_is_named(miniature, spoil, text):
    name, root, path = miniature
    spoil(path)
    assert refusal(prepared_from, name, root).startswith(f"{path}{text}")
    assert not [entry for entry in (root / "prepared").iterdir() if entry.is_dir()]


@pytest.mark.parametrize(
    ("name", "sealed"),
    [
        ("tiny-imagenet", ["tiny-imagenet-200/val", "tiny-imagenet-200.zip"]),
        ("imagenet", ["imagenet/val"]),
        ("cub200", ["CUB_200_2011/images", "CUB_200_2011.tgz"]),
    ],
)
def test_files_with_test_images_are_sealed(name, sealed, tmp_path):
    assert find_reader(name, tmp_path).test_paths() == [tmp_path / place for place in sealed]


REMEDIES = {
    "tiny-imagenet": (
        "get tiny-imagenet-200.zip from http://cs231n.stanford.edu/tiny-imagenet-200.zip "
        "and put it into ROOT"
    ),
    "imagenet": (
        "get ILSVRC2012 from https://image-net.org/challenges/LSVRC/2012 and unpack it as "
        "ROOT/imagenet/{train,val}/<wnid>/*.JPEG, 1000 folders each"
    ),
    "cub200": (
        "get CUB_200_2011.tgz from https://data.caltech.edu/records/65de6-vp158 "
        "and put it into ROOT"
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_missing_data_is_reported_with_instructions(name, tmp_path):
    status = find_reader(name, tmp_path).check()
    assert not status.present
    assert status.remedy == REMEDIES[name].replace("ROOT", str(tmp_path))
    for download in (False, True):
        told = refusal(read_source, name, tmp_path, download=download)
        assert told == f"dataset {name!r} does not exist; {status.remedy}"


def _edit(name: str, changes: dict[str, str]) -> Callable[[Path], None]:
    def edit(root: Path) -> None:
        path = root / name
        for old, new in changes.items():
            assert old in path.read_text()
            path.write_text(path.read_text().replace(old, new, 1))

    return edit


def _remove(name: str) -> Callable[[Path], None]:
    return lambda root: shutil.rmtree(root / name)


def _empty(name: str) -> Callable[[Path], None]:
    return lambda root: [path.unlink() for path in (root / name).iterdir()]


TINY, CUB = "tiny-imagenet-200", "CUB_200_2011"
ANNOTATIONS, PARTS = f"{TINY}/val/val_annotations.txt", f"{CUB}/train_test_split.txt"
UNKNOWN = "expected an image and one of the 3 classes of train, got"
ABSENT = "cannot be read: [Errno 2] No such file or directory"
# What is done to the files of a data set, and what is said of it.
LAYOUT_FAULTS = {
    "tiny, class folder missing": (
        _remove(f"{TINY}/train/n01443537"),
        f"{ANNOTATIONS}, line 3: expected an image and one of the 2 classes of train, got "
        "'val_2.JPEG n01443537'",
    ),
    "tiny, class without images": (
        _remove(f"{TINY}/train/n01443537/images"),
        f"{TINY}/train/n01443537/images has no image",
    ),
    "tiny, no annotations": (lambda root: (root / ANNOTATIONS).unlink(), f"{ANNOTATIONS} {ABSENT}"),
    "tiny, annotation of one word": (
        lambda root: (root / ANNOTATIONS).write_text("val_0.JPEG\n"),
        f"{ANNOTATIONS}, line 1: {UNKNOWN} 'val_0.JPEG'",
    ),
    "tiny, wrong class behind blank lines": (
        _edit(ANNOTATIONS, {f"\nval_1.JPEG\t{WNIDS[1]}": "\n\n \t\nval_1.JPEG\tn0"}),
        f"{ANNOTATIONS}, line 4: {UNKNOWN} 'val_1.JPEG n0'",
    ),
    "tiny, empty annotations": (
        lambda root: (root / ANNOTATIONS).write_text(""),
        f"{ANNOTATIONS} lists no image",
    ),
    "tiny, no training folder": (
        _remove(f"{TINY}/train"),
        f"{TINY}/train does not exist or is not a folder",
    ),
    "imagenet, class folder missing in val": (
        _remove("imagenet/val/n02124075"),
        "imagenet/val has no class folder 'n02124075'",
    ),
    "imagenet, class folder in val alone": (
        lambda root: [(root / f"imagenet/val/n{number}").mkdir() for number in range(39, 9, -1)],
        "imagenet/train has no class folder 'n10'",
    ),
    "imagenet, class folder missing in both": (
        lambda root: [_remove(f"imagenet/{part}/n02124075")(root) for part in ("train", "val")],
        "imagenet/train: expected the 3 class folders of ImageNet, got 2; for other images use",
    ),
    "cub, one class": (
        lambda root: (root / CUB / "classes.txt").write_text(f"1 {BIRDS[0]}\n"),
        f"{CUB}/classes.txt: expected two or more classes, numbered from 1",
    ),
    "cub, three words": (
        _edit(f"{CUB}/classes.txt", {"001.Black": "001. Black"}),
        f"{CUB}/classes.txt, line 1: expected two words, got ['1', '001.', 'Black_",
    ),
    "cub, class folder missing": (
        _remove(f"{CUB}/images/{BIRDS[1]}"),
        f"{CUB}/images/{BIRDS[1]} does not exist or is not a folder",
    ),
    **{
        f"cub, class {written!r}": (
            _edit(f"{CUB}/image_class_labels.txt", {"3 1\n": f"3 {written}\n" if written else ""}),
            f"{CUB}/image_class_labels.txt: image 3: expected a class from 1 to 3, got {written!r}",
        )
        for written in ("4", "0", "")
    },
    "cub, wrong part": (
        _edit(PARTS, {"3 1\n": "3 2\n"}),
        f"{PARTS}: image 3: expected 0 or 1, got '2'",
    ),
    "cub, class without training images": (
        _edit(PARTS, {f"\n{number} 1\n": f"\n{number} 0\n" for number in (11, 13, 15)}),
        f"{CUB}: class {BIRDS[2]!r} has no training image",
    ),
    "cub, class without test images": (
        _edit(PARTS, {f"\n{number} 0\n": f"\n{number} 1\n" for number in (2, 4)}),
        f"{CUB}: class {BIRDS[0]!r} has no test image",
    ),
}
NAMES = {"tiny": "tiny-imagenet", "cub": "cub200", "imagenet": "imagenet"}


@pytest.mark.parametrize("fault", LAYOUT_FAULTS)
def test_layout_fault(fault, request):
    name = NAMES[fault.partition(",")[0]]
    spoil, text = LAYOUT_FAULTS[fault]
    root = request.getfixturevalue(name.partition("-")[0])
    assert find_reader(name, root).check().present
    spoil(root)
    assert not find_reader(name, root).check().present
    assert refusal(read_source, name, root, download=False).startswith(f"{root}/{text}")


@pytest.mark.parametrize("name", ["tiny-imagenet", "cub200"])
def test_blank_lines_and_other_line_ends_change_nothing(name, request):
    root = request.getfixturevalue(name.partition("-")[0])
    before = read_source(name, root, download=False)
    reader = find_reader(name, root)
    assert isinstance(reader, ListedReader)
    for path in (reader.path / each for each in reader.lists):
        path.write_bytes(b"\r\n" + path.read_bytes().replace(b"\n", b"\r\n \r\n\r\n"))
    assert read_source(name, root, download=False).fingerprint == before.fingerprint


def _pack(root: Path, folder: str, archive: str) -> Path:
    target = root / archive
    if archive.endswith(".zip"):
        with zipfile.ZipFile(target, "w") as packed:
            for path in sorted((root / folder).rglob("*")):
                packed.write(path, path.relative_to(root))
    else:
        with tarfile.open(target, "w:gz") as tar:
            tar.add(root / folder, arcname=folder)
    shutil.rmtree(root / folder)
    return target


@pytest.fixture(params=[TinyImageNetReader, Cub200Reader])
def packed(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, Path, Path]:
    """Name, root and archive, with its checksum made the official one; no folder beside it."""
    kind = request.param
    name = "cub200" if kind is Cub200Reader else "tiny-imagenet"
    root = request.getfixturevalue(name.partition("-")[0])
    target = _pack(root, kind.folder, kind.archive)
    monkeypatch.setattr(kind, "md5", md5(target))
    return name, root, target


def test_an_intact_archive_is_unpacked(packed):
    name, root, archive = packed
    status = find_reader(name, root).check()
    assert (status.present, status.detail) == (True, f"{archive} is intact")
    assert missing_download(name, root, SplitSpec()) == ""
    assert prepared_from(name, root).info.num_classes == 3
    train, test = find_reader(name, root).labels()
    source = read_source(name, root, download=False)
    np.testing.assert_array_equal(train, source.train.labels)
    np.testing.assert_array_equal(test, source.test.labels)
    with pytest.raises(InputError, match=f"'{name}': split train_limit=2"):
        missing_download(name, root, SplitSpec(validation=3, train_limit=2))


def test_pictures_are_files_of_an_archive_at_their_own_size(packed):
    name, root, _ = packed
    source = read_pictures(name, root)
    paths = find_reader(name, root).listing()[1]
    found = pictures(source.train.read(0, len(paths)))
    for (path, label), image, ours in zip(paths, found, source.train.labels, strict=True):
        np.testing.assert_array_equal(image, Image.open(path).convert("RGB"))
        assert label == ours


def test_an_archive_with_a_wrong_checksum_is_refused(packed):
    name, root, archive = packed
    archive.write_bytes(archive.read_bytes() + b"!")
    status = find_reader(name, root).check()
    assert not status.present
    assert status.detail == f"{archive} is damaged (wrong checksum)"
    assert status.remedy.startswith(f"get {archive.name} from http")
    assert status.remedy.endswith(f" and put it into {root}")
    for refused in (missing_download, read_source):
        told = refusal(refused, name, root)
        assert told == f"dataset {name!r}: {status.detail}; {status.remedy}"


def test_an_archive_that_cannot_be_unpacked_is_named(packed, monkeypatch):
    name, root, archive = packed
    archive.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])
    for kind in (TinyImageNetReader, Cub200Reader):
        monkeypatch.setattr(kind, "md5", md5(archive))
    for _ in ("first", "again"):
        told = refusal(read_source, name, root)
        assert told.startswith(f"dataset {name!r}: {archive} cannot be unpacked: ")
    assert list(root.iterdir()) == [archive]


def test_an_archive_writes_nothing_elsewhere(cub200, monkeypatch):
    archive, folder = cub200 / Cub200Reader.archive, Cub200Reader.folder
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(cub200 / folder, arcname=folder)
        tar.add(cub200 / folder / "classes.txt", arcname="../elsewhere")
    shutil.rmtree(cub200 / folder)
    monkeypatch.setattr(Cub200Reader, "md5", md5(archive))
    with pytest.raises(InputError, match=r"cannot be unpacked: .*elsewhere"):
        read_source("cub200", cub200)
    assert list(cub200.iterdir()) == [archive]


def test_a_folder_that_cannot_be_written_is_named(cub200):
    (cub200 / "file").write_text("")
    told = f"^dataset 'cub200' cannot be stored in {cub200}/file/below: .*Not a directory"
    with pytest.raises(InputError, match=told):
        prepare(
            "cub200", cub200, SplitSpec(validation=3), cub200 / "file" / "below", download=False
        )

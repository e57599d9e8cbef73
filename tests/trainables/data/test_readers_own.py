import itertools
import os
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from PIL import ExifTags, Image
from sklearn.datasets import load_digits
from small_data import refusal

from trainables.common.errors import InputError
from trainables.data import (
    DataNote,
    DatasetInfo,
    Images,
    ImageShape,
    SourceStatus,
    SplitSpec,
    find_reader,
    prepare,
    read_source,
)
from trainables.data._files import ImageFiles, is_image, opened
from trainables.data._images import image_statistics
from trainables.data._source import files_signature


def test_digits_keep_every_value(tmp_path):
    source = read_source("digits", tmp_path)
    images, labels = load_digits(return_X_y=True)
    np.testing.assert_array_equal(np.rint(source.train.values.reshape(-1, 64) / 255 * 16), images)
    np.testing.assert_array_equal(source.train.labels, labels)
    assert source.test is None
    assert len(np.unique(source.train.values)) == 17
    assert source.info == DatasetInfo(
        "digits",
        tuple("0123456789"),
        Images((8, 8), 1, (0.5,), (0.5,), augmentation="none"),
        "no official test set: test and validation are stratified draws",
        "scikit-learn load_digits (UCI optdigits, test part); normalised to [-1, 1], because "
        "statistics of all images would include the test images",
    )
    status = SourceStatus(True, "1,797 images inside scikit-learn")
    assert find_reader("digits", tmp_path).check() == status


def test_digits_come_with_scikit_learn(tmp_path, monkeypatch):
    monkeypatch.setattr("trainables.data.digits.find_spec", lambda name: None)
    reader = find_reader("digits", tmp_path)
    told = SourceStatus(False, "scikit-learn has no digits", "pip install scikit-learn")
    assert (reader.check(), reader.files(), reader.test_paths()) == (told, [], [])


def test_npz(archive, write_npz):
    name = write_npz(archive)
    source = read_source(name, "unused")
    np.testing.assert_array_equal(source.train.values, archive["x_train"])
    np.testing.assert_array_equal(source.test.labels, archive["y_test"])
    assert source.info.classes == ("0", "1", "2", "3")
    assert source.info.inputs.size == (6, 6)
    status = find_reader(name, "unused").check()
    place = name.removeprefix("npz:")
    assert status.detail == f"{place}: 4 classes, 40 training and 8 test images"
    assert status.present


def test_npz_mean_and_deviation_are_those_of_the_training_images(archive, write_npz):
    info = read_source(write_npz(archive), "unused").info
    scaled = archive["x_train"] / 255
    np.testing.assert_allclose(info.inputs.mean, scaled.mean(axis=(0, 1, 2)), atol=1e-6)
    np.testing.assert_allclose(info.inputs.std, scaled.std(axis=(0, 1, 2)), atol=1e-6)


def test_an_npz_file_may_have_grey_images_and_named_classes(archive, write_npz):
    for part in ("train", "test"):
        archive[f"x_{part}"] = archive[f"x_{part}"][..., 0]
        archive[f"y_{part}"] = archive[f"y_{part}"].astype(np.uint8)[:, None]
    archive["classes"] = np.array(["a", "b", "c", "d", "never seen"])
    source = read_source(write_npz(archive), "unused")
    assert source.train.values.shape == (40, 6, 6, 1)
    assert source.train.labels.dtype == np.int64
    assert source.info.classes[-1] == "never seen"


def _spelled(arrays: dict[str, np.ndarray], names: dict[str, str]) -> dict[str, np.ndarray]:
    return {names.get(name, name): values for name, values in arrays.items()}


PEOPLES_ARCHIVES = {
    "floats": (lambda a: {k: v / 255 if k[0] == "x" else v for k, v in a.items()}, "in [0, 1]"),
    "channels first": (
        lambda a: {k: np.moveaxis(v, 3, 1) if k[0] == "x" else v for k, v in a.items()},
        "axis 1 is used as channels",
    ),
    "other whole numbers": (
        lambda a: {k: v.astype(np.int64) for k, v in a.items()},
        "of whole numbers",
    ),
    "others beside those expected": (lambda a: {"images": a["x_test"], **a}, ""),
    "capitals": (lambda a: _spelled(a, {"x_train": "X_train", "x_test": "X_test"}), ""),
    "medmnist": (
        lambda a: _spelled(
            a, {k: f"{k[2:]}_{'images' if k[0] == 'x' else 'labels'}" for k in sorted(a)}
        ),
        "",
    ),
    "one-hot": (lambda a: {**a, "y_train": np.eye(4)[a["y_train"]]}, "y_train is one-hot"),
    "whole floats": (lambda a: {**a, "y_test": a["y_test"] / 1}, "whole numbers are used"),
    "words": (
        lambda a: {k: np.array(list("abcd"))[v] if k[0] == "y" else v for k, v in a.items()},
        "",
    ),
}


@pytest.mark.parametrize("form", PEOPLES_ARCHIVES)
def test_common_forms_of_archives_give_the_same_rows(form, archive, write_npz):
    change, told = PEOPLES_ARCHIVES[form]
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        source = read_source(write_npz(change(archive)), "unused")
    assert source.test is not None
    for rows, part in ((source.train, "train"), (source.test, "test")):
        np.testing.assert_array_equal(rows.values, archive[f"x_{part}"])
        np.testing.assert_array_equal(rows.labels, archive[f"y_{part}"])
    assert bool(notes) == bool(told)
    assert all(note.category is DataNote for note in notes)
    assert told in " ".join(str(note.message) for note in notes)


def test_blanks_around_the_names_of_an_archive_mean_nothing(archive, write_npz):
    names = np.array(["ant", "bee", "cat", "dog"])
    archive["y_train"], archive["y_test"] = names[archive["y_train"]], names[archive["y_test"]]
    expected = read_source(write_npz(archive), "unused")
    archive["y_train"] = np.char.add(archive["y_train"], np.where(np.arange(40) == 5, " ", ""))
    archive["classes"] = np.array(["ant", "bee ", "cat", "dog"])
    with pytest.warns(
        DataNote,
        match=r"y_train: removed the blanks around 1 of 40 labels, such as 'bee ' in row 5",
    ):
        found = read_source(write_npz(archive), "unused")
    assert (found.fingerprint, found.info.classes) == (expected.fingerprint, tuple(names))


def test_unused_arrays_of_an_archive_are_noted(archive, write_npz):
    name = write_npz({**archive, "x_val": archive["x_test"], "y_val": archive["y_test"]})
    with pytest.warns(DataNote, match="not used: x_val, y_val; validation is drawn from x_train"):
        read_source(name, "unused")
    name = write_npz({"y_train": archive["y_train"], **{f"a{n}": np.zeros(1) for n in range(500)}})
    with pytest.raises(InputError, match=r"got y_train, a0, a1, a2, a3, a4, a5, a6, \.\.\.$"):
        read_source(name, "unused")


def test_images_without_a_test_part_are_one_set(archive, write_npz, tmp_path):
    name = write_npz({"X": archive["x_train"], "y": archive["y_train"]})
    assert read_source(name, "unused").test is None
    data = prepare(name, "unused", SplitSpec(test=0.25), tmp_path / "d")
    assert data.counts["test"] == 10
    assert data.info.inputs.mean == (0.5,) * 3


def test_constant_channel_can_be_divided_by():
    assert image_statistics(np.full((2, 3, 3, 1), 51, np.uint8)) == ((0.2,), (1.0,))


def _set(key: str, make: Callable[[np.ndarray], np.ndarray]):
    return lambda arrays: arrays.update({key: make(arrays[key])})


NO_OBJECTS = (
    "cannot be read: it has Python objects, which are never loaded; save words as y.astype(str)"
)
CONVERT = (
    "expected uint8 (0..255), or floats in [0, 1], got float64 from -1.5 to 2.5; convert it: "
    "((x - x.min()) / (x.max() - x.min()) * 255).round().astype('uint8')"
)
FORM = "expected shape (N, H, W, C) with C from 1 to 4 and no empty axis"
NPZ_FAULTS = {
    "missing key": (
        lambda a: a.pop("y_test"),
        "key 'y_test' is missing; expected x_train, y_train, x_test, y_test, got x_train, "
        "y_train, x_test",
    ),
    "two arrays of one meaning": (
        lambda a: a.update(X_train=a["x_train"], train_images=a.pop("x_train")),
        "arrays 'X_train' and 'train_images' have the same role; remove one",
    ),
    "object images": (_set("x_train", lambda x: x.astype(object)), f"key 'x_train' {NO_OBJECTS}"),
    "normalised images": (
        _set("x_train", lambda x: np.where(x == x.max(), 2.5, -1.5)),
        f"x_train: {CONVERT}",
    ),
    "flat images": (
        _set("x_train", lambda x: x.reshape(40, -1)),
        f"x_train: {FORM}, got (40, 108)",
    ),
    "other size": (
        _set("x_test", lambda x: x[:, :5]),
        "expected images of one shape, got (6, 6, 3) in x_train and (5, 6, 3) in x_test",
    ),
    "float labels": (
        _set("y_train", lambda y: y / 2),
        "y_train: expected integers, got float64 (40,)",
    ),
    "negative label": (
        _set("y_train", lambda y: y - 1),
        "y_train: expected 0 to 2147483647, got -1",
    ),
    "one label less": (
        _set("y_train", lambda y: y[:-1]),
        "x_train has 40 images but y_train has 39 labels",
    ),
    "labels from 1": (
        _set("y_train", lambda y: y + 1),
        "y_train has 1 but not 0; without the key 'classes', labels must be 0, 1, ... without "
        "gaps; renumber them: y = np.unique(y, return_inverse=True)[1]",
    ),
    "unseen class": (
        _set("y_test", lambda y: y + 1),
        "y_test: 4 in row 3 is not a class; classes are '0', '1', '2', '3'",
    ),
    "unseen named class": (
        lambda a: a.update(y_test=a["y_test"] + 1, classes=np.array(list("abcde"))),
        "test has class 'e' (4), which train lacks",
    ),
    "too few names": (
        lambda a: a.update(classes=np.array(["a", "b"])),
        "y_train: 2 in row 2; expected 0 to 1",
    ),
    "same names": (
        lambda a: a.update(classes=np.array(list("abca"))),
        "classes=('a', 'b', 'c', 'a') must be two or more different names",
    ),
    "names in a column": (
        lambda a: a.update(classes=np.array([["a"], ["b"], ["c"], ["d"]])),
        "classes: expected strings or integers (K,), got <U1 (4, 1)",
    ),
}


@pytest.mark.parametrize("fault", NPZ_FAULTS)
def test_npz_fault(fault, archive, write_npz):
    spoil, text = NPZ_FAULTS[fault]
    spoil(archive)
    name = write_npz(archive)
    assert refusal(read_source, name, "unused") == f"{name.removeprefix('npz:')}: {text}"


def test_npz_absent(tmp_path):
    name = f"npz:{tmp_path / 'none.npz'}"
    told = f"{tmp_path}/none.npz does not exist (dataset {name!r})"
    assert refusal(read_source, name, "unused") == told
    assert not find_reader(name, "unused").check().present


def test_folder(folder):
    source = read_source(f"folder:{folder}", "unused")
    assert source.info.classes == ("cat", "dog")
    assert source.info.inputs.size == (5, 7)
    assert source.info.inputs.shape == ImageShape(3, 5)
    assert source.train.labels.tolist() == [0] * 6 + [1] * 6
    pixels = np.asarray(Image.open(folder / "train" / "dog" / "2.png"))
    np.testing.assert_array_equal(source.train.values[8], pixels)
    assert find_reader(f"folder:{folder}", "unused").check().present


def _convert(path: Path, mode: str) -> None:
    Image.open(path).convert(mode).save(path)


@pytest.mark.parametrize(
    ("modes", "channels"),
    [("L", 1), ("1", 1), ("L1", 1), ("P", 3), (["LA"], 3), (["L", "LA"], 3), ("LP", 3)],
)
def test_images_stay_grey_only_if_all_are_grey_and_opaque(folder, modes, channels):
    paths = sorted(folder.rglob("*.png"))
    for number, path in enumerate(paths):
        _convert(path, modes[number % len(modes)])
    source = read_source(f"folder:{folder}", "unused")
    assert source.info.inputs.channels == channels
    pixels = [
        np.asarray(Image.open(path).convert("L" if channels == 1 else "RGB")) for path in paths
    ]
    stacked = np.stack(pixels).reshape(16, 5, 7, channels)
    np.testing.assert_array_equal(source.test.values, stacked[:4])
    np.testing.assert_array_equal(source.train.values, stacked[4:])


def _turn(path: Path) -> np.ndarray:
    """Store an image turned, with the EXIF orientation of a phone; return its upright pixels."""
    upright = Image.open(path).convert("RGB")
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    upright.transpose(Image.Transpose.ROTATE_90).save(path, exif=exif)
    return np.asarray(upright)


def test_images_that_are_stored_turned_become_upright(folder):
    path = folder / "train" / "dog" / "2.png"
    before = find_reader(f"folder:{folder}", "unused").read(False)[1].values
    turned = _turn(path)
    assert Image.open(path).size == (5, 7)
    source = read_source(f"folder:{folder}", "unused")
    assert source.info.inputs.size == (5, 7)  # One size still: nothing is resized.
    np.testing.assert_array_equal(source.train.values[8], turned)
    np.testing.assert_array_equal(source.train.values, before)


def test_turned_image_files_have_a_key_of_their_own(folder):
    path = folder / "train" / "cat" / "0.png"
    files = ImageFiles([path, folder / "train" / "cat" / "1.png"], np.zeros(2, np.int64), (5, 7))
    plain = list(files.content())
    turned = _turn(path)
    np.testing.assert_array_equal(files.read(0, 1)[0], turned)
    # Only what is turned is marked: the key of other images is the one they have always had.
    assert [piece for piece in files.content() if piece == b"upright"] == [b"upright"]
    assert b"upright" not in plain
    reader = find_reader(f"folder:{folder}", "unused")
    assert reader.signature() == f"{files_signature(reader.files())} upright"


def test_endings_of_any_case_that_pillow_reads_are_read(folder):
    image = Image.open(folder / "train" / "cat" / "5.png")
    for ending in ("jfif", "JFIF", "PGM", "Jpe"):
        image.convert("L").save(folder / "train" / "cat" / f"more.{ending}")
    assert len(find_reader(f"folder:{folder}", "unused").labels()[0]) == 16


def test_files_in_class_folders_that_are_not_read_are_counted(folder):
    (folder / "train" / "cat" / "more" / "deep").mkdir(parents=True)
    for place in ("more/6.png", "more/deep/7.png"):
        shutil.copy(folder / "train" / "cat" / "5.png", folder / "train" / "cat" / place)
    for name in ("a.heic", "b.heic", "notes.txt", ".hidden"):
        (folder / "train" / "dog" / name).write_text("?")
    with pytest.warns(DataNote) as told:
        assert len(find_reader(f"folder:{folder}", "unused").labels()[0]) == 12
    assert [str(each.message) for each in told] == [
        f"{folder}/train: not read: 2 images in folders inside class folders",
        f"{folder}/train: not read: 3 files of other kinds: .heic, .txt",
    ]


@pytest.mark.parametrize("names", [("train", "test1"), ("Train", "Test"), ("training_set", "val")])
def test_folders_named_like_parts_are_not_taken_for_classes(names, folder):
    lay_flat(folder)
    for before, name in zip(("cat", "dog"), names, strict=True):
        (folder / before).rename(folder / name)
    told = f"{folder}: the folders {sorted(names)} are named like parts, not like classes; {LAYOUT}"
    assert refusal(labels_of, folder) == told


def test_class_folders_that_differ_in_blanks_only_are_refused(folder):
    lay_flat(folder)
    (folder / "dog").rename(folder / "cat ")
    assert refusal(labels_of, folder) == (
        f"{folder}: class folders ['cat', 'cat '] differ only in blanks; rename or merge them; "
        f"{LAYOUT}"
    )


def test_a_folder_of_images_ignores_hidden_files_and_other_files(folder):
    for place in ("train", "test"):
        (folder / place / ".thumbs").mkdir()
        (folder / place / "notes.txt").write_text("?")
    for name in (".hidden.png", "notes.txt"):
        (folder / "train" / "cat" / name).write_text("?")
    (folder / "train" / "cat" / "folder.png").mkdir()
    image = Image.open(folder / "train" / "cat" / "5.png")
    image.save(folder / "train" / "cat" / "6.PNG")
    source = read_source(f"folder:{folder}", "unused")
    assert (len(source.train), len(source.test)) == (13, 4)
    np.testing.assert_array_equal(source.train.values[6], np.asarray(image))
    status = find_reader(f"folder:{folder}", "unused").check()
    assert status.detail == f"{folder}: 2 classes, 13 training and 4 test images"


def test_every_image_is_in_a_folders_signature(folder):
    reader = find_reader(f"folder:{folder}", "unused")
    seen = {reader.signature()}
    for path in sorted(folder.rglob("*.png")):
        times = path.stat().st_atime_ns, path.stat().st_mtime_ns
        path.write_bytes(path.read_bytes() + b"x")
        os.utime(path, ns=times)  # Its size alone is another.
        seen.add(reader.signature())
    assert len(seen) == 17
    os.utime(path, ns=(times[0], times[1] + 1000))
    seen.add(reader.signature())
    assert len(seen) == 18
    path.rename(path.with_name("other.png"))
    assert reader.signature() not in seen


def _shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def test_image_files_are_recognised_by_their_ending(tmp_path):
    for ending in ["bmp", "gif", "jpeg", "jpg", "png", "ppm", "tif", "tiff", "webp", "JPG"]:
        (tmp_path / f"a.{ending}").write_text("")
        assert is_image(tmp_path / f"a.{ending}")
    assert not is_image(tmp_path / "b.png")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("ending", ["png", "gif", "tif"])
def test_an_image_with_a_damaged_head_is_read_or_named(folder, ending, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10_000)
    path = folder / f"a.{ending}"
    Image.open(folder / "train" / "cat" / "0.png").save(path)
    content = path.read_bytes()
    told = []
    for place, flipped in itertools.product(range(min(80, len(content))), (1, 255)):
        path.write_bytes(content[:place] + bytes([content[place] ^ flipped]) + content[place + 1 :])
        try:
            with opened(path) as image:
                image.convert("RGB")
        except InputError as error:
            told.append(str(error))
    assert told
    assert all(text.startswith(f"{path} ") for text in told)


def test_an_image_of_more_pixels_than_memory_may_hold_is_named(folder, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 17)
    with pytest.raises(InputError, match=r"train/cat/0\.png cannot be read as an image"):
        read_source(f"folder:{folder}", "unused")


@pytest.mark.parametrize("mode", ["I", "I;16", "I;16B", "I;16L", "F"])
def test_an_image_of_deeper_channels_is_refused(mode, monkeypatch):
    monkeypatch.setattr(Image, "open", lambda path: Image.new(mode, (7, 5)))
    told = f"^a.png: expected an image of 8 bits per channel, got mode {mode}$"
    with pytest.raises(InputError, match=told), opened(Path("a.png")):
        pytest.fail("it was opened")


def test_an_image_of_another_size_is_refused_with_width_and_height(folder):
    path = folder / "train" / "cat" / "0.png"
    files = ImageFiles([path], np.zeros(1, np.int64), (4, 6))
    with pytest.raises(InputError, match=r"0\.png: expected 6 x 4 pixels, got 7 x 5$"):
        files.read(0, 1)
    with pytest.raises(ValueError, match="2 files but 1 labels"):
        replace(files, paths=[path, path])
    np.testing.assert_array_equal(
        replace(files, size=(5, 7)).read(0, 1)[0], np.asarray(Image.open(path))
    )


LAYOUT = (
    "use PATH/<class>/<image> (`split.test` is held out), or PATH/train/<class>/<image> "
    "and PATH/test/<class>/<image>"
)
NO_IMAGE = "has no image (.jpg, .png, .tif and the like)"
FOLDER_FAULTS = {
    "truncated": (
        lambda f: _shorten(f / "test/cat/1.png"),
        "test/cat/1.png cannot be read as an image: ",
    ),
    "missing in test": (
        lambda f: shutil.rmtree(f / "test/dog"),
        "test has no class folder 'dog', but train has one",
    ),
    "missing in train": (
        lambda f: (f / "test/eel").mkdir(),
        "train has no class folder 'eel', but test has one",
    ),
    "empty class": (
        lambda f: [path.unlink() for path in (f / "test/dog").iterdir()],
        f"test/dog {NO_IMAGE}",
    ),
    "one class": (
        lambda f: [shutil.rmtree(f / part / "dog") for part in ("test", "train")],
        "train: expected two or more class folders, got ['cat']",
    ),
    "no test": (lambda f: (f / "test").rename(f / "other"), f"other {NO_IMAGE}; {LAYOUT}"),
}


NO_LAYOUT = {
    "nothing there": lambda f: shutil.rmtree(f),
    "no test": lambda f: shutil.rmtree(f / "test"),
    "an empty class": lambda f: [lay_flat(f), (f / "eel").mkdir()],
}


@pytest.mark.parametrize("fault", NO_LAYOUT)
def test_a_folder_without_a_layout_is_refused_with_both_layouts(fault, folder):
    NO_LAYOUT[fault](folder)
    for read in (lambda: read_source(f"folder:{folder}", "unused"), lambda: labels_of(folder)):
        assert refusal(read).endswith(LAYOUT)


def lay_flat(folder: Path) -> None:
    """Put the classes of ``train`` directly below the folder."""
    shutil.rmtree(folder / "test")
    for entry in (folder / "train").iterdir():
        entry.rename(folder / entry.name)
    (folder / "train").rmdir()


def labels_of(folder: Path) -> tuple[list[int], list[int] | None]:
    train, test = find_reader(f"folder:{folder}", "unused").labels()
    return train.tolist(), None if test is None else test.tolist()


def test_class_folders_without_train_and_test_are_one_part(folder):
    parted = read_source(f"folder:{folder}", "unused")
    assert labels_of(folder) == (parted.train.labels.tolist(), parted.test.labels.tolist())
    reader = find_reader(f"folder:{folder}", "unused")
    assert reader.test_paths() == [folder / "test"]
    lay_flat(folder)
    # Any image may be a test image.
    assert reader.test_paths() == [folder / "cat", folder / "dog"]
    flat = read_source(f"folder:{folder}", "unused")
    assert flat.test is None
    assert flat.info.classes == ("cat", "dog")
    np.testing.assert_array_equal(flat.train.values, parted.train.values)
    assert labels_of(folder) == (parted.train.labels.tolist(), None)
    # Statistics of all images would tell something of those that are held out.
    assert flat.info.inputs.mean == flat.info.inputs.std == (0.5, 0.5, 0.5)
    told = f"{folder}: 2 classes, 12 images; `split.test` holds out test images"
    assert find_reader(f"folder:{folder}", "unused").check() == SourceStatus(True, told)


def test_a_removed_folder_has_no_test_images(folder):
    reader = find_reader(f"folder:{folder}", "unused")
    shutil.rmtree(folder)
    assert reader.test_paths() == []


def test_a_class_may_be_called_train(folder):
    lay_flat(folder)
    (folder / "cat").rename(folder / "train")
    assert read_source(f"folder:{folder}", "unused").info.classes == ("dog", "train")


def _draw(path: Path, width: int, height: int, mode: str = "L") -> None:
    columns = np.repeat([0, 128, 255], [width // 3, width - 2 * (width // 3), width // 3])
    image = Image.fromarray(np.tile(columns.astype(np.uint8), (height, 1))).convert(mode)
    image.save(path)


def test_unequal_images_show_their_centre_square(folder):
    for path in folder.rglob("*.png"):
        _draw(path, 30, 10)
    _draw(folder / "train/cat/0.png", 90, 30)
    source = read_source(f"folder:{folder}", "unused")
    assert source.info.inputs.size == (10, 10)
    assert source.train.values.shape == (12, 10, 10, 1)
    # The middle third of both is grey; only the large one is scaled, and smoothed at its edges.
    np.testing.assert_array_equal(source.train.values[1:], np.full((11, 10, 10, 1), 128))
    assert np.abs(source.train.values[0].astype(int) - 128).max() < 20


def test_the_side_is_the_median_of_the_training_images(folder):
    for number, path in enumerate(sorted(folder.glob("train/*/*.png"))):
        _draw(path, 12 + number, 40, "RGB")
    _draw(folder / "test/cat/0.png", 900, 900, "RGB")
    assert read_source(f"folder:{folder}", "unused").info.inputs.size == (17, 17)
    # Of all images, now 14 to 23, where the split has yet to choose those of the test.
    lay_flat(folder)
    for number in (0, 1):
        (folder / "cat" / f"{number}.png").unlink()
    assert read_source(f"folder:{folder}", "unused").info.inputs.size == (18, 18)


def test_large_images_of_unequal_size_become_224(folder):
    for path in folder.rglob("*.png"):
        _draw(path, 300, 300)
    assert read_source(f"folder:{folder}", "unused").info.inputs.size == (300, 300)
    _draw(folder / "train/cat/0.png", 301, 300)
    assert read_source(f"folder:{folder}", "unused").info.inputs.size == (224, 224)


def test_large_images_are_smoothed_when_they_shrink(folder):
    for path in folder.rglob("*.png"):
        _draw(path, 8, 8)
    stripes = np.tile(np.array([[0, 255]], np.uint8), (80, 40))
    Image.fromarray(stripes).save(folder / "train/cat/0.png")
    image = read_source(f"folder:{folder}", "unused").train.values[0]
    assert np.abs(image.astype(int) - 128).max() < 8


@pytest.mark.parametrize("fault", FOLDER_FAULTS)
def test_folder_fault(fault, folder):
    spoil, text = FOLDER_FAULTS[fault]
    spoil(folder)
    assert refusal(read_source, f"folder:{folder}", "unused").startswith(f"{folder}/{text}")


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        ("npz", "use the path of an .npz file with x_train, y_train, x_test, y_test"),
        ("folder", LAYOUT),
        (
            "text",
            "use JSON lines with `text` and `label` (.jsonl, .jsonl.xz), or a .csv, .tsv or "
            ".parquet, or two of these, PATH/train and PATH/test, or one UTF-8 file per text, "
            "PATH/<class>/<file>",
        ),
        (
            "voc",
            "use PATH/JPEGImages/<name>.jpg, PATH/SegmentationClass/<name>.png and "
            "PATH/ImageSets/Segmentation/train.txt, val.txt, test.txt with a name per line",
        ),
        ("logits", "use the path of a file of logits"),
    ],
)
def test_a_missing_path_gets_the_expected_layout_as_remedy(kind, remedy):
    with TemporaryDirectory() as short:  # A long path would be cut.
        place = f"{short}/none"
        status = find_reader(f"{kind}:{place}", "unused").check()
    assert not status.present
    assert place in status.detail
    assert status.remedy == remedy


def test_urls_are_refused_as_paths_of_data():
    with pytest.raises(InputError, match=r"^dataset 'npz:s3://b/x': 's3://b/x' is a URL"):
        read_source("npz:s3://b/x", "unused")
    with pytest.raises(InputError, match=r"^data root: 's3:/+b' is a URL"):
        find_reader("digits", "s3://b")

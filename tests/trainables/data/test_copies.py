import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps
from small_data import make_images, make_labels, refusal

from trainables.data import (
    Copies,
    DataNote,
    PreparedData,
    RowArrays,
    SplitSpec,
    find_prepared,
    missing_download,
    prepare,
    preview_copies,
)
from trainables.data._copies import count_copies, quick_keys
from trainables.data._texts import LabelledTexts

SPLIT = SplitSpec(validation=20)


def write(folder: Path, shared: int, test: int = 40, **others: np.ndarray) -> str:
    """Write an archive of 60 training images, of which ``shared`` are test images too."""
    images = make_images(60 + test - shared, size=9)  # Rows of 243 bytes, no multiple of eight.
    arrays = {
        "x_train": images[:60],
        "y_train": make_labels(60, 3),
        "x_test": images[60 - shared :],
        "y_test": make_labels(test, 3),
    }
    np.savez(folder / "own.npz", **(arrays | others))
    return f"npz:{folder / 'own.npz'}"


def test_copies_are_counted_by_part_and_stored_as_numbers(tmp_path):
    name = write(tmp_path, 25)
    data = prepare(name, "unused", SPLIT, tmp_path / "p")
    found = data.copies
    seen, test = data.search(), data.test().values
    train = sum((row == seen.train.values).all(axis=(1, 2, 3)).any() for row in test)
    assert found == Copies(40, 25, train, 25 - train, 20, 0, 25)
    assert 0 < train < 25
    assert json.loads((data.directory / "split.json").read_text())["copies"] == found._asdict()
    assert PreparedData.open(data.directory) == data
    assert preview_copies(name, "unused", SPLIT) == found
    line = (
        f"25 of 40 test rows are copies of training rows ({train}) or validation rows "
        f"({25 - train}), so test figures may be too good"
    )
    with pytest.warns(DataNote) as told:
        found.tell(name)
    assert [str(each.message) for each in told] == [f"{name}: {line}"]


def test_data_without_copies_print_no_lines(tmp_path, digits):
    for data in (prepare(write(tmp_path, 0), "unused", SPLIT, tmp_path / "p"), digits):
        assert data.copies is not None
        assert (data.copies.test, data.copies.validation_train, data.copies.lines()) == (0, 0, [])


def test_a_test_set_that_is_all_known_is_refused_before_anything_is_stored(tmp_path):
    name = write(tmp_path, 40)
    told = (
        f"dataset {name!r}: all 40 test rows are copies of training or validation rows; use test "
        "rows that are in no other part, or remove the test part, so that `split.test` holds "
        "rows out"
    )
    assert refusal(prepare, name, "unused", SPLIT, tmp_path / "p") == told
    assert refusal(preview_copies, name, "unused", SPLIT) == told
    assert not list((tmp_path / "p").glob("*/split.json"))


def test_equal_rows_prove_nothing_where_they_are_few_or_repeat_each_other(tmp_path):
    few = prepare(write(tmp_path, 9, test=9), "unused", SPLIT, tmp_path / "p").copies
    assert (few.test, few.test_rows) == (9, 9)
    grey = np.repeat(np.arange(20, dtype=np.uint8), 243).reshape(20, 9, 9, 3)
    blank = write(tmp_path, 0, x_train=np.tile(grey, (3, 1, 1, 1)), x_test=np.repeat(grey, 2, 0))
    found = prepare(blank, "unused", SPLIT, tmp_path / "p").copies
    assert (found.test, found.test_rows, found.distinct) == (40, 40, 20)
    assert len(found.lines()) == 2


def test_data_prepared_by_older_versions_are_counted_when_they_are_found(tmp_path):
    name = write(tmp_path, 25)
    data = prepare(name, "unused", SPLIT, tmp_path / "p")
    manifest = data.directory / "split.json"
    document = json.loads(manifest.read_text())
    del document["copies"]
    manifest.write_text(json.dumps(document))
    assert PreparedData.open(data.directory).copies is None
    assert find_prepared(name, "unused", SPLIT, tmp_path / "p") == data
    assert prepare(name, "unused", SPLIT, tmp_path / "p") == data


def test_rows_that_differ_in_one_place_are_no_copies():
    rows = make_images(30, size=9)
    changed = rows.copy()
    changed[:, 1, 1, 1] ^= 1  # A byte that no quick key reads.
    np.testing.assert_array_equal(quick_keys(rows), quick_keys(changed))
    labels = make_labels(30)
    parts = {
        "train": RowArrays(rows, labels),
        "validation": RowArrays(rows[:5], labels[:5]),
        "test": RowArrays(changed, labels),
    }
    assert count_copies(parts)[1:6] == (0, 0, 0, 5, 5)


@pytest.mark.parametrize("width", [1, 2, 10, 500])
def test_logits_of_every_width_are_compared(width):
    rows = np.random.default_rng(0).normal(size=(40, width)).astype(np.float32)
    labels = make_labels(40)
    parts = {
        "train": RowArrays(rows[:0], labels[:0]),  # Logits train nothing.
        "validation": RowArrays(rows[:25], labels[:25]),
        "test": RowArrays(rows[20:], labels[20:]),
    }
    found = count_copies(parts)
    assert found[:4] == (20, 5, 0, 5)
    assert "copies of validation rows (5), so" in found.lines()[0]


def test_texts_are_compared_as_written():
    texts = [f"text {k}" for k in range(30)]
    parts = {
        name: LabelledTexts.of(part, make_labels(len(part), 2))
        for name, part in (
            ("train", texts),
            ("validation", ["a"]),
            ("test", [*texts[:4], "Text 5"]),
        )
    }
    assert count_copies(parts)[:4] == (5, 4, 4, 0)


def test_images_in_files_are_compared_as_decoded(folder, tmp_path):
    for path in (folder / "test").glob("*/*.png"):
        ImageOps.invert(Image.open(path)).save(path)
    first = folder / "train" / "cat" / "0.png"
    Image.open(first).save(folder / "test" / "dog" / "0.bmp")  # Other bytes, the same pixels.
    data = prepare(f"folder:{folder}", "unused", SplitSpec(validation=2), tmp_path / "p")
    assert (data.copies.test, data.copies.test_rows) == (1, 5)


def test_a_large_source_is_not_read_for_a_preview(tmp_path, monkeypatch):
    name = write(tmp_path, 40)
    monkeypatch.setattr("trainables.data._prepare.SMALL", 1000)
    assert preview_copies(name, "unused", SPLIT) is None


@pytest.mark.parametrize("look", [True, False])
def test_a_class_of_one_image_is_named_where_the_split_needs_more(look, folder, tmp_path):
    for name in ("cat", "dog"):
        for path in sorted((folder / "train" / name).glob("*"))[1:]:
            path.unlink()
    shutil.rmtree(folder / "test")
    for name in ("cat", "dog"):
        (folder / "train" / name).rename(folder / name)
    (folder / "train").rmdir()
    name = f"folder:{folder}"
    if look:
        told = refusal(missing_download, name, "unused", SplitSpec())
    else:
        told = refusal(prepare, name, "unused", SplitSpec(), tmp_path / "p")
    assert told == (
        f"dataset {name!r}: split test=0.25: expected 0 to 0 rows, got 1 of 2 rows; classes "
        "with only one row: 'cat', 'dog'; each class needs at least two, because one stays "
        "for training"
    )

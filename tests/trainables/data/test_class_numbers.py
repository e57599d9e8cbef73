import warnings

import numpy as np
import pandas as pd
import pytest
from small_data import refusal

from trainables.common.logit_rows import check_labels, check_logits
from trainables.data import DataNote, read_logits, read_source
from trainables.data._class_numbers import LabelPart, number_labels

BY_NAME = "label 1 is read as the class named '1', not as class 1 counted from 0"
FROM_ZERO = (
    "some labels are not names of classes, so labels count from 0: label 0 is read as class '1'"
)
STARS = "12345"
# Names of classes, labels, their numbers, and the note.
READINGS = {
    "numbers from 1": (STARS, [4, 3, 2, 1], [3, 2, 1, 0], BY_NAME),
    "numbers from 1, the largest too": (STARS, [5, 1], [4, 0], ""),
    "numbers from 0 of classes named from 1": (STARS, [0, 4, 1], [0, 4, 1], FROM_ZERO),
    "numbers from 0": ("01234", [4, 0], [4, 0], ""),
    "names in another order": (
        "210",
        [2, 1, 0],
        [0, 1, 2],
        "label 0 is read as the class named '0', not",
    ),
    "any numbers": (["3", "7", "9"], [9, 3, 7], [2, 0, 1], ""),
    "numbers from 0 of any numbers": (
        ["3", "7", "9"],
        [0, 2, 1],
        [0, 2, 1],
        "0 is read as class '3'",
    ),
    "padded numbers": (["01", "02", "10"], [10, 1, 2], [2, 0, 1], ""),
    "decimals": (["0.0", "1.0"], [1, 0], [1, 0], ""),
    "below 0": (["-1", "1"], [1, -1], [1, 0], ""),
    "half numbers": (["0.5", "1.0", "1.5"], ["1.5", "1", "0.5"], [2, 1, 0], ""),
    "numbers and a word": (["1", "2", "other"], [1, 2], [0, 1], BY_NAME),
    "names with blanks": ([" cat", "dog "], ["dog", "cat"], [1, 0], ""),
    "words and numbers": (["cat", "dog"], ["dog", 0, "cat"], [1, 0, 0], ""),
    "no 0": (
        ["a", "b", "c"],
        [2, 1],
        [2, 1],
        "no label is 0; label 1 is read as class 'b', counted from 0",
    ),
}


@pytest.mark.parametrize("case", READINGS)
def test_labels_are_names_of_classes_or_count_them(case):
    classes, labels, expected, told = READINGS[case]
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        (found,) = number_labels([LabelPart(labels, "a.csv: labels")], [*classes])
    assert (found.dtype, found.tolist()) == (np.int64, expected)
    assert [str(note.message).startswith("a.csv: labels: ") for note in notes] == [True] * bool(
        told
    )
    assert all(told in str(note.message) for note in notes)


WRONG = {
    "neither": (STARS, [1, 6], "6 in row 1 is not a class; classes are '1', '2', '3', '4', '5'"),
    "one of each": (
        STARS,
        [5, 0],
        "0 in row 1 is not a class; classes are '1', '2', '3', '4', '5'; "
        "numbers that count from 0 must be below 5, got 5",
    ),
    "a column is missing": ("02", [0, 1], "1 in row 1 is not a class; classes are '0', '2'"),
    "from 1": ("abc", [3, 1], "3 in row 0; expected 0 to 2; labels from 1 to 3 count from 1: su"),
    "too large": ("abc", [0, 3], "3 in row 1; expected 0 to 2"),
    "a word": ("abc", ["a", "d"], "'d' in row 1 is not a class; classes are 'a', 'b', 'c'"),
    "many": (
        [str(k) for k in range(99)],
        ["x"],
        "classes are '0', '1', '2', '3', '4', '5', '6', '7', ...",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_labels_that_are_neither_names_nor_numbers_of_classes_are_refused(case):
    classes, labels, told = WRONG[case]
    assert told in refusal(number_labels, [LabelPart(labels, "a.csv: labels")], [*classes])


def test_labels_of_both_parts_are_read_in_the_same_way():
    parts = [LabelPart([1, 2, 3], "fit"), LabelPart([0, 1], "test")]
    with pytest.warns(DataNote, match="^fit: some labels are not names of classes"):
        fit, test = number_labels(parts, "1234")
    assert (fit.tolist(), test.tolist()) == ([1, 2, 3], [0, 1])
    assert "test: 0 in row 0 is not" in refusal(
        number_labels, [parts[1]._replace(labels=[0, 9])], "19"
    )


def test_labels_from_1_are_named_where_arrays_are_handed_over():
    logits = check_logits(np.zeros((3, 3)))
    told = "labels: expected 0 to 2, got 3 in row 1"
    hint = "; labels from 1 to 3 count from 1: subtract 1 from all of them"
    assert refusal(check_labels, np.array([1, 3, 2]), logits) == told + hint
    assert refusal(check_labels, np.array([0, 3, 2]), logits) == told


LOGITS = np.random.default_rng(0).normal(size=(8, 5)) + 1
LABELS = np.array([4, 3, 2, 1, 1, 2, 3, 4])


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".parquet", ".npz"])
@pytest.mark.parametrize("form", ["numbers", "text", "floats"])
def test_labels_from_1_of_columns_from_1(ending, form, tmp_path):
    path = tmp_path / f"a{ending}"
    labels = LABELS.astype({"numbers": np.int64, "text": str, "floats": np.float64}[form])
    if ending == ".npz":
        np.savez(path, logits=LOGITS, labels=labels, classes=np.arange(1, 6))
    else:
        shuffled = {f"logit_{k + 1}": LOGITS[:, k] for k in (1, 4, 0, 2, 3)}
        frame = pd.DataFrame({"label": labels, **shuffled})
        if ending == ".parquet":
            frame.to_parquet(path)
        else:
            frame.to_csv(path, index=False, sep="\t" if ending == ".tsv" else ",")
    with pytest.warns(DataNote, match="label 1 is read as the class named '1', not as class 1"):
        file = read_logits(path)
    assert file.rows.labels.tolist() == (LABELS - 1).tolist()
    np.testing.assert_allclose(file.rows.logits, LOGITS, rtol=1e-13)
    assert file.classes == ("1", "2", "3", "4", "5")


def test_arrays_without_names_of_classes(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, logits=LOGITS, labels=LABELS)
    with pytest.warns(DataNote, match="labels: no label is 0; label 1 is read as class 'column 1'"):
        assert read_logits(path).rows.labels.tolist() == LABELS.tolist()
    np.savez(path, logits=LOGITS[:, :4], labels=LABELS)
    told = "labels: 4 in row 0; expected 0 to 3; labels from 1 to 4 count from 1: subtract 1"
    assert told in refusal(read_logits, path)
    np.savez(path, logits=LOGITS, labels=np.eye(5)[LABELS])
    with pytest.warns(DataNote) as notes:
        assert read_logits(path).rows.labels.tolist() == LABELS.tolist()
    assert [str(note.message) for note in notes] == [
        f"{path}: labels is one-hot: the column of the 1 is used as label"
    ]


def test_one_hot_rows_and_truth_values_follow_the_names_of_classes(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, logits=LOGITS, labels=np.eye(5)[LABELS], classes=np.arange(1, 6))
    assert read_logits(path).rows.labels.tolist() == LABELS.tolist()
    truth = LABELS > 2
    frame = pd.DataFrame({"label": truth, "logit_True": LOGITS[:, 0], "logit_False": LOGITS[:, 1]})
    frame.to_parquet(tmp_path / "a.parquet")
    assert read_logits(tmp_path / "a.parquet").rows.labels.tolist() == (~truth).astype(int).tolist()
    frame.to_csv(tmp_path / "a.csv")
    assert read_logits(tmp_path / "a.csv").rows.labels.tolist() == (~truth).astype(int).tolist()


@pytest.mark.parametrize("classes", [np.array(5), np.array(["a", "b"]), np.array([None] * 5)])
def test_an_array_classes_that_names_no_columns_is_passed_over_unless_labels_need_it(
    classes, tmp_path
):
    path = tmp_path / "a.npz"
    np.savez(path, logits=LOGITS, labels=LABELS - 1, classes=classes)
    with pytest.warns(DataNote, match="`classes` is not used: "):
        assert read_logits(path).rows.labels.tolist() == (LABELS - 1).tolist()
    np.savez(path, logits=LOGITS, labels=np.array([*"abcde"])[LABELS], classes=classes)
    told = refusal(read_logits, path)
    assert told.startswith(f"{path}: ")
    assert told.count(str(path)) == 1


def test_classes_of_npy_files_are_in_the_same_folder(tmp_path):
    for name, values in {"logits": LOGITS, "labels": LABELS, "classes": np.arange(1, 6)}.items():
        np.save(tmp_path / f"{name}.npy", values)
    rows = read_logits(tmp_path / "logits.npy").rows
    assert rows.labels.tolist() == (LABELS - 1).tolist()


@pytest.mark.parametrize("classes", [np.arange(1, 4), np.array(["1", "2", "3"])])
def test_images_with_labels_from_1(classes, archive, write_npz):
    archive = {**archive, "classes": classes}
    for part in ("train", "test"):
        archive[f"y_{part}"] = archive[f"y_{part}"] % 3 + 1
    source = read_source(write_npz(archive), "unused")
    assert source.train.labels.tolist() == (archive["y_train"] - 1).tolist()
    assert source.info.classes == ("1", "2", "3")

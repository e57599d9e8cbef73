import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from small_data import refusal

from trainables.data import DataNote, read_logits

RANDOM = np.random.default_rng(0)
PROBS = RANDOM.dirichlet(np.ones(5), 40)
LABELS = np.arange(40) % 5
KIND = "add --kind probs (in a sweep file's task: `inputs: {kind: probs}`)"


def write(path: Path, labels: np.ndarray = LABELS, **arrays: np.ndarray) -> Path:
    np.savez(path, labels=labels, **arrays)
    return path


def read_quietly(path: Path, kind: str | None = None) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return read_logits(path, kind).rows.logits.numpy()


@pytest.mark.parametrize(("digits", "zero"), [(3, 1e-05), (2, 0.0001)])
def test_rounded_rows_are_divided_by_their_sums(digits, zero, tmp_path):
    probs = PROBS.round(digits)
    sums = probs.sum(axis=1, keepdims=True)
    assert np.abs(sums - 1).max() > 1e-3
    path = write(tmp_path / "a.npz", probs=probs)
    told = rf"as after rounding; each row is divided by its sum, and 0 is replaced by {zero}"
    with pytest.warns(DataNote, match=told):
        found = read_logits(path).rows.logits.exp().numpy()
    np.testing.assert_allclose(found, np.maximum(probs / sums, zero))


def test_probabilities_rounded_to_zero_get_a_note(tmp_path):
    probs = np.array([[0.5, 0.5, 0.0], [0.125, 0.875, 0.0]])
    path = write(tmp_path / "a.npz", np.array([0, 1]), probs=probs)
    told = (
        "2 probabilities were rounded to 0 and are replaced by 2.2e-308, which distorts fits; save"
    )
    with pytest.warns(DataNote, match=told):
        assert float(read_logits(path).rows.logits[0, 2]) == np.log(np.finfo(float).tiny)


def test_exact_rows_are_taken_as_they_are(tmp_path):
    found = read_quietly(write(tmp_path / "a.npz", np.append(LABELS, 0), probs=[*PROBS, PROBS[0]]))
    np.testing.assert_array_equal(found[:40], np.log(PROBS))


SIGMOIDS = 1 / (1 + np.exp(-RANDOM.normal(size=(40, 5))))
SUMS = r"rows add up to [\d.]+ to [\d.]+, expected 1"
NOT_PROBS = {
    "percentages": (100 * PROBS, r"the probabilities are percentages .* divide them by 100$"),
    "rounded percentages": ((100 * PROBS).round(), "the probabilities are percentages"),
    "whole percentages": ((100 * PROBS).round().astype(int), "the probabilities are percentages"),
    "sigmoids": (SIGMOIDS, f"{SUMS}; they may be one sigmoid per class; save probabilities"),
    "log-probabilities": (np.log(PROBS), "are log-probabilities; save np.exp of them$"),
    "log-probabilities with 0": (
        np.where(np.eye(5, dtype=bool)[LABELS], 0, -np.inf),
        "are log-probabilities; save np.exp of them$",
    ),
    "a column less": (PROBS[:, :4], f"{SUMS}; save all classes, with more digits$"),
    "counts": (3 * SIGMOIDS, f"in row 0, class . is above 1; {SUMS}$"),
    "logits": (np.log(PROBS) + 2, r"is not a probability; if these are logits, add --kind logits"),
    "a value below 0": (PROBS - np.eye(40, 5) * 1.1 * PROBS, "is not a probability; expected"),
}


@pytest.mark.parametrize("case", NOT_PROBS)
def test_invalid_probabilities_are_refused(case, tmp_path):
    probs, told = NOT_PROBS[case]
    if case == "a value below 0":
        probs = np.where(probs < 0, -1e-6, probs)
    path = write(tmp_path / "a.npz", np.minimum(LABELS, probs.shape[1] - 1), probs=probs)
    with pytest.raises(ValueError, match=told) as refused:
        read_logits(path)
    assert ("kind logits" in str(refused.value)) == (case == "logits")


def test_the_advice_for_logits_gives_the_right_figure(tmp_path):
    logits = np.log(PROBS) + 2
    path = write(tmp_path / "a.npz", probs=logits)
    np.testing.assert_array_equal(read_quietly(path, "logits"), logits)


@pytest.mark.parametrize("kind", [None, "logits"])
def test_probabilities_are_not_taken_as_logits(kind, tmp_path):
    for number, probs in enumerate((PROBS, PROBS.round(3), PROBS.round(2))):
        path = write(tmp_path / f"{number}.npz", logits=probs)
        told = f"{path}: the logits are probabilities (no negative value, every row adds up to 1);"
        assert refusal(read_logits, path, kind) == f"{told} {KIND}"
    path = write(tmp_path / "percent.npz", logits=100 * PROBS)
    assert "the logits are percentages (rows add up to 100); divide" in refusal(read_logits, path)
    with pytest.warns(
        DataNote, match="all logits are between 0 and 1, so they may be outputs of sigmoids"
    ):
        read_logits(write(tmp_path / "sigmoids.npz", logits=SIGMOIDS), kind)
    read_quietly(write(tmp_path / "log.npz", logits=np.log(PROBS)), kind)


@pytest.mark.parametrize("shape", [(40,), (40, 1)])
@pytest.mark.parametrize("name", ["probs", "logits"])
def test_one_score_per_row_is_refused_with_a_remedy(shape, name, tmp_path):
    path = write(tmp_path / "a.npz", LABELS % 2, **{name: PROBS[:, 0].reshape(shape)})
    told = f"{path}: expected one score per class, got one per row (shape {shape}); for"
    assert refusal(read_logits, path).startswith(told)
    p = PROBS[:, 0]
    found = read_quietly(write(path, LABELS % 2, probs=np.stack([1 - p, p], axis=1)))
    np.testing.assert_allclose(np.exp(found[:, 1]), p)


def table(path: Path, **columns: object) -> Path:
    frame = pd.DataFrame(columns)
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False)
    return path


TWO = {"logit_0": [1.5, -2.0], "logit_1": [0.5, 1.0], "label": [0, 1]}
WORDS = {"logit_a": [1.5, -2.0], "logit_b": [0.5, 1.0], "label": ["a", "b"]}
SAME = "are for the same class; remove one"
COLUMNS = {
    "a difference": (
        {**TWO, "logit_diff": [1, 2]},
        "column 'logit_diff' has no class number, but 'logit_0' has one; remove it or rename it",
    ),
    "a word first": ({"logit_other": [1, 2], **TWO}, "column 'logit_other' has no class number"),
    "a column twice": ({**TWO, "logit_1.1": [1, 2]}, f"columns 'logit_1' and 'logit_1.1' {SAME}"),
    "a word twice": ({**WORDS, "logit_b.1": [1, 2]}, f"columns 'logit_b' and 'logit_b.1' {SAME}"),
    "two spellings": ({**TWO, "logits_1": [1, 2]}, f"columns 'logit_1' and 'logits_1' {SAME}"),
    "a padded number": ({**TWO, "logit_01": [1, 2]}, "two columns of scores are for class 1"),
    "a sum": (
        {**WORDS, "logit_sum": [1, 2]},
        "column 'logit_sum' has the name of a statistic, not of a class; remove it or rename it",
    ),
    "two kinds": (
        {**WORDS, "prob_max": [1, 2]},
        "has columns of logits ('logit_a') and probs ('prob_max'); remove one kind, or add --kind "
        "logits or --kind probs (in a sweep file's task: `inputs: {kind: logits}`)",
    ),
    "a label without a column": ({**TWO, "label": [0, 2]}, "label: 2 in row 1 is not a class"),
    "one column": ({"prob_1": [0.5, 1.0], "label": [0, 1]}, "expected one score per class, got"),
    "one nameless column": (
        {"prob": [0.5, 1.0], "label": [0, 1]},
        "expected one score per class, ",
    ),
    "lists in text": (
        {"logits": ["[1, 2]", "[3, 4]"], "label": [0, 1]},
        "row 0, column 'logits': expected a number, got '[1, 2]'",
    ),
}


@pytest.mark.parametrize("case", COLUMNS)
def test_columns_that_are_not_classes_are_refused(case, tmp_path):
    columns, told = COLUMNS[case]
    path = table(tmp_path / "a.csv", **columns)
    assert refusal(read_logits, path).startswith(f"{path}: {told}".replace("label: ", "labels: "))


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_the_kind_chooses_among_columns_of_two_kinds(ending, tmp_path):
    probs = {"prob_0": [0.75, 0.25], "prob_1": [0.25, 0.75], "prediction": [0, 1]}
    path = table(tmp_path / f"a{ending}", **TWO, **probs)
    np.testing.assert_array_equal(read_quietly(path, "logits"), [[1.5, 0.5], [-2, 1]])
    np.testing.assert_allclose(np.exp(read_quietly(path, "probs")), [[0.75, 0.25], [0.25, 0.75]])
    both = write(tmp_path / "a.npz", probs=PROBS, logits=np.log(PROBS) + 1)
    np.testing.assert_array_equal(read_quietly(both, "probs"), np.log(PROBS))


def test_a_class_may_be_called_as_a_figure_if_labels_say_so(tmp_path):
    columns = {"label": ["max", "min"], "logit_min": [1.5, -2.0], "logit_max": [0.5, 1.0]}
    rows = read_logits(table(tmp_path / "a.csv", **columns)).rows
    assert rows.labels.tolist() == [1, 0]


def test_a_column_named_like_no_label_gets_a_note(tmp_path):
    path = table(tmp_path / "a.csv", **WORDS, logit_extra=[0.0, 0.0])
    with pytest.warns(DataNote, match="no row has the label 'extra'; its column is read as a"):
        assert read_logits(path).rows.logits.shape == (2, 3)


def test_the_first_missing_columns_are_named_and_the_others_counted(tmp_path):
    columns = {f"logit_{number}": [0.5, 1.0] for number in (0, 2, 9, 10)}
    with pytest.warns(
        DataNote, match=r"is for class 1, 3, 4, 5, 6 and 2 more; the file has 4 classes"
    ):
        read_logits(table(tmp_path / "a.csv", label=[0, 2], **columns))


def test_masked_labels_are_counted_in_all_parts_of_a_file(tmp_path):
    rows = np.array([[0.0, 1.0, -np.inf], [1.0, 0.0, 0.5], [-np.inf, 1.0, 0.0]])
    path = tmp_path / "a.npz"
    fit, test = {"logits_fit": rows[:2], "labels_fit": [2, 0]}, {"logits_test": rows[1:]}
    np.savez(path, **fit, **test, labels_test=[1, 0])
    told = "masked in 2 of 4 rows, such as row 0 of labels_fit; calibrators are not fitted on such"
    with pytest.warns(DataNote, match=told):
        read_logits(path)


def test_a_class_without_a_column_gets_a_note(tmp_path):
    path = table(tmp_path / "a.csv", label=[0, 2], logit_2=[0.5, 1.0], logit_0=[1.5, -2.0])
    with pytest.warns(DataNote, match="no column of scores is for class 1; the file has 2 classes"):
        rows = read_logits(path).rows
    assert rows.labels.tolist() == [0, 1]
    assert rows.logits.tolist() == [[1.5, 0.5], [-2, 1]]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("0,1.5,2\n1,,3\n", "row 1, column 'logit_0': expected a number, got ''"),
        ("0,1.5,2\n1,3,nan\n", "row 1, column 'logit_1': expected a number, got 'nan'"),
        ('0,1.5,2\n\n1,"a,b",3\n', "row 1, column 'logit_0': expected a number, got 'a,b'"),
        ("0,1.5,2\n1,3\n", "row 1 has 2 cells, the header has 3"),
        (",1.5,2\n1,3,4\n", "labels has no label in row 0"),
        ("0,1.5,2\nx,3,4\n", "labels: 'x' in row 1 is not a class; classes are '0', '1'"),
    ],
)
def test_a_wrong_cell_is_named_by_row_and_column(text, told, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(f"label,logit_0,logit_1\n{text}")
    assert refusal(read_logits, path) == f"{path}: {told}"


@pytest.mark.parametrize(
    ("ending", "mark", "word"),
    [(".csv", ";", "semicolons"), (".csv", "\t", "tabs"), (".tsv", ",", "commas")],
)
def test_a_table_with_another_separator_is_refused_with_its_name(ending, mark, word, tmp_path):
    path = tmp_path / f"a{ending}"
    path.write_text(mark.join(["label", "prob_0", "prob_1"]) + f"\n0{mark}0.5{mark}0.5\n")
    told = f"{path}: columns are separated by {word}; save it with commas as .csv, or with tabs as"
    assert refusal(read_logits, path) == f"{told} .tsv"


@pytest.mark.parametrize("ending", [".pkl", ".pt", ".npz"])
@pytest.mark.parametrize("packed", [True, False])
def test_a_file_saved_by_torch_is_refused_with_a_remedy(ending, packed, tmp_path):
    path = tmp_path / f"a{ending}"
    content = {"logits": torch.zeros(2, 3), "labels": torch.tensor([0, 1])}
    torch.save(content, path, _use_new_zipfile_serialization=packed)
    if ending == ".npz" and not packed:
        assert "is not an intact .npz archive" in refusal(read_logits, path)
        return
    assert refusal(read_logits, path, "logits") == (
        f"{path}: saved by torch.save; save arrays instead: "
        "np.savez(PATH, logits=logits.numpy(), labels=labels.numpy())"
    )

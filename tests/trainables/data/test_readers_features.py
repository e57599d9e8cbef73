from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

from trainables.common.errors import InputError
from trainables.data import (
    DataNote,
    FeatureShape,
    PreparedData,
    SplitSpec,
    find_reader,
    missing_download,
    prepare,
    read_logits,
    read_source,
)
from trainables.models import build_model

COUNTS = {"train": 30, "validation": 9, "test": 12}
GENERATOR = np.random.default_rng(0)
FEATURES = {part: GENERATOR.normal(size=(n, 5)).astype(np.float32) for part, n in COUNTS.items()}
LABELS = {part: np.arange(n) % 3 for part, n in COUNTS.items()}
Arrays = dict[str, Any]


def named(*parts: str) -> Arrays:
    return {
        **{f"features_{part}": FEATURES[part] for part in parts},
        **{f"labels_{part}": LABELS[part] for part in parts},
    }


def write_npz(folder: Path, arrays: Arrays) -> Path:
    np.savez(folder / "f.npz", **arrays)
    return folder / "f.npz"


def write_npy(folder: Path, arrays: Arrays) -> Path:
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return folder


def write_lists(folder: Path, arrays: Arrays) -> Path:
    return write_table(folder, lambda values: {"features": values.tolist()})


def write_columns(folder: Path, arrays: Arrays) -> Path:
    # In the order of text: feature_10 would be before feature_2.
    return write_table(folder, lambda v: {f"feature_{2 * k + 6}": v[:, k] for k in (2, 0, 1, 4, 3)})


def write_table(folder: Path, columns: Callable[[np.ndarray], Arrays]) -> Path:
    values = np.concatenate([*FEATURES.values()])
    splits = np.repeat([*COUNTS], [*COUNTS.values()])
    table = {"label": np.concatenate([*LABELS.values()]), "split": splits, **columns(values)}
    pyarrow.parquet.write_table(pa.table(table), folder / "f.parquet")
    return folder / "f.parquet"


@pytest.mark.parametrize("write", [write_npz, write_npy, write_lists, write_columns])
def test_every_form_gives_the_same_rows_and_its_own_validation(write: Any, tmp_path: Path) -> None:
    place = write(tmp_path, named(*COUNTS))
    data = prepare(f"features:{place}", "unused", SplitSpec("own"), tmp_path / "data")
    found = data.search()
    for part, rows in (("train", found.train), ("validation", found.validation)):
        np.testing.assert_array_equal(rows.values, FEATURES[part])
        np.testing.assert_array_equal(rows.labels, LABELS[part])
    np.testing.assert_array_equal(data.test().values, FEATURES["test"])
    np.testing.assert_allclose(data.info.inputs.mean, FEATURES["train"].mean(0), rtol=1e-5)
    np.testing.assert_allclose(data.info.inputs.std, FEATURES["train"].std(0), rtol=1e-5)


def test_a_row_may_move_from_training_to_validation(tmp_path: Path) -> None:
    def counts(train: int) -> dict[str, int]:
        arrays = named("test")
        for name, values in (("features", FEATURES), ("labels", LABELS)):
            known = np.concatenate([values["train"], values["validation"]])
            arrays[f"{name}_train"], arrays[f"{name}_validation"] = known[:train], known[train:]
        place = write_npz(tmp_path, arrays)
        return prepare(f"features:{place}", "unused", SplitSpec("own"), tmp_path / "data").counts

    assert [counts(train)["train"] for train in (30, 29)] == [30, 29]


def test_files_of_arrays_stay_mapped(tmp_path: Path) -> None:
    place = write_npy(tmp_path, named("train", "test"))
    _, train, test = find_reader(f"features:{place}", "unused").read(False)
    for rows in (train, test):
        assert all(isinstance(piece, np.memmap) for piece in rows.pieces)
    np.testing.assert_array_equal(
        train.take(np.array([7, 2])).read(0, 2), FEATURES["train"][[7, 2]]
    )


def test_rows_without_parts_are_split_and_named_by_their_classes(tmp_path: Path) -> None:
    names = np.array(["cat", "dog", "eel"])
    arrays = {"X": FEATURES["train"].astype(np.float16), "y": names[LABELS["train"]]}
    place = write_npz(tmp_path, arrays)
    data = prepare(f"features:{place}", "unused", SplitSpec(), tmp_path / "data")
    assert data.info.classes == tuple(names)
    assert [*data.counts.values()] == [20, 2, 8]
    assert data.search().train.values.dtype == np.float32


def test_copies_between_parts_are_counted(tmp_path: Path) -> None:
    arrays = named("train", "test")
    arrays["features_test"] = np.vstack([FEATURES["train"][:4], FEATURES["test"][4:]])
    place = write_npz(tmp_path, arrays)
    data = prepare(f"features:{place}", "unused", SplitSpec(), tmp_path / "data")
    assert data.copies is not None
    assert data.copies.test == 4


WRONG = {
    "nan": (
        {"features_train": np.where(np.arange(5) == 2, np.nan, FEATURES["train"])},
        "features_train: expected finite numbers in the range of float32, got nan in row 0, column",
    ),
    "large": (
        {"features_train": 1e300 * FEATURES["train"].astype(float)},
        r"features_train: expected finite numbers .*, got .*e\+\d+ in row 0, column 0",
    ),
    "flat": (
        {"features_train": FEATURES["train"][:, 0]},
        r"features_train: expected numbers \(N, D\), one row per label, "
        r"got float32 \(30,\)",
    ),
    "lengths": (
        {"labels_test": LABELS["test"][:5]},
        "features_test has 12 rows but labels_test has 5",
    ),
    "widths": (
        {"features_test": FEATURES["test"][:, :3]},
        "features_test has 3 features, features_train",
    ),
    "label": ({"labels_test": LABELS["test"] + 5}, "labels_test: 5 in row 0 is not a class"),
    "negative": ({"labels_train": LABELS["train"] - 1}, "labels_train: expected 0 to .*, got -1"),
    "gap": ({"labels_train": 2 * LABELS["train"]}, "labels_train has 2 but not 1; without"),
    "missing": (
        {"labels_test": None},
        "no array 'labels_test'; arrays are features_train, features_",
    ),
    "no train": ({"features_train": None}, "no array 'features_train'; arrays are"),
    "unseen": (
        {"labels_train": LABELS["train"] % 2, "classes": np.array(["a", "b", "c"])},
        r"test has class 'c' \(2\), which train lacks",
    ),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.filterwarnings("ignore::trainables.data.DataNote")
def test_invalid_feature_files_get_one_line_with_array_and_row(case: str, tmp_path: Path) -> None:
    changes, message = WRONG[case]
    arrays = {**named("train", "test"), **changes}
    place = write_npz(tmp_path, {name: its for name, its in arrays.items() if its is not None})
    with pytest.raises(InputError, match=message) as raised:
        read_source(f"features:{place}", "unused")
    assert str(raised.value).startswith(f"{place}: ")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent.npz", "absent.npz does not exist"),
        ("f.txt", "expected an ending of .npz, .npy, .csv, .tsv, .parquet, got '.txt'"),
        ("empty", "no .npy files; put features.npy and labels.npy there"),
    ],
)
def test_wrong_places_are_refused_before_anything_is_read(name, message, tmp_path):
    (tmp_path / "f.txt").touch()
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=message):
        missing_download(f"features:{tmp_path / name}", "unused", SplitSpec())


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"label": [0, 1]}, "no columns of features; name them feature_0"),
        ({"feature_0": [0.5, 1.5]}, "no columns of labels; name one column `label`"),
        (
            {"label": [0, 1], "feature_0": [0.5, 1.5], "split": ["train", "held"]},
            "column 'split': 'held' in row 1; expected train, validation or test",
        ),
    ],
)
def test_wrong_tables_are_refused(table: Arrays, message: str, tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pa.table(table), tmp_path / "f.parquet")
    with pytest.raises(InputError, match=message):
        read_source(f"features:{tmp_path / 'f.parquet'}", "unused")


def test_labels_from_one_are_refused_with_a_remedy(tmp_path: Path) -> None:
    place = write_npz(tmp_path, {"features": FEATURES["train"], "labels": LABELS["train"] + 1})
    with pytest.raises(InputError, match=r"labels has 1 but not 0; .* renumber them"):
        read_source(f"features:{place}", "unused")


def test_one_hot_labels_are_understood_with_a_note(tmp_path: Path) -> None:
    arrays = {"embeddings": FEATURES["train"], "targets": np.eye(3)[LABELS["train"]]}
    with pytest.warns(DataNote, match="targets is one-hot"):
        found = read_source(f"features:{write_npz(tmp_path, arrays)}", "unused")
    np.testing.assert_array_equal(found.train.labels, LABELS["train"])


@torch.no_grad()
@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_heads_see_standardised_features(name: str) -> None:
    torch.manual_seed(0)
    plain = build_model(name, 3, FeatureShape(2))
    given = build_model(name, 3, FeatureShape(2, (5.0, -100.0), (2.0, 50.0)))
    constants = {k: v for k, v in given.state_dict().items() if k.startswith("extractor.0.")}
    given.load_state_dict({**plain.state_dict(), **constants})
    rows = torch.randn(4, 2)
    shifted = rows * torch.tensor([2.0, 50.0]) + torch.tensor([5.0, -100.0])
    torch.testing.assert_close(given(shifted), plain(rows), rtol=1e-4, atol=1e-5)


NAMES = np.array(["ant", "bee", "cat"])
EMBEDDINGS = GENERATOR.normal(size=(3, 5)).astype(np.float32)


def cosines(part: str) -> np.ndarray:
    lengths = np.linalg.norm(FEATURES[part], axis=1)[:, None] * np.linalg.norm(EMBEDDINGS, axis=1)
    return FEATURES[part] @ EMBEDDINGS.T / lengths


def write_zero_shot(folder: Path, **changes: Any) -> Path:
    extra = {"class_embeddings": EMBEDDINGS, "logit_scale": np.float32(50)}
    arrays = {**named(*COUNTS), **extra, **changes}
    return write_npz(folder, {name: its for name, its in arrays.items() if its is not None})


def test_features_with_class_embeddings_are_zero_shot_logits(tmp_path: Path) -> None:
    names = np.array(["cat", "dog", "eel"])
    file = read_logits(write_zero_shot(tmp_path, classes=names))
    assert file.classes == tuple(names)
    assert file.fit is not None
    fit = np.concatenate([cosines("train"), cosines("validation")])
    np.testing.assert_allclose(file.fit.logits, 50 * fit, atol=1e-4)
    np.testing.assert_allclose(file.rows.logits, 50 * cosines("test"), atol=1e-4)
    labels = np.concatenate([LABELS["train"], LABELS["validation"]])
    np.testing.assert_array_equal(file.fit.labels, labels)
    np.testing.assert_array_equal(file.rows.labels, LABELS["test"])


def test_zero_shot_logits_need_no_training_rows(tmp_path: Path) -> None:
    extra = {"class_embeddings": EMBEDDINGS, "logit_scale": 50.0}
    file = read_logits(write_npz(tmp_path, {**named("test"), **extra}))
    assert file.fit is None
    np.testing.assert_allclose(file.rows.logits, 50 * cosines("test"), atol=1e-4)
    with pytest.raises(InputError, match=r"no array 'features'; a zero-shot task needs features"):
        read_logits(write_npz(tmp_path, {"labels": LABELS["test"], **extra}))


def test_an_absent_logit_scale_is_that_of_clip_and_a_logarithm_is_noted(tmp_path: Path) -> None:
    with pytest.warns(DataNote, match="no array `logit_scale`: cosines are multiplied by 100"):
        file = read_logits(write_zero_shot(tmp_path, logit_scale=None))
    np.testing.assert_allclose(file.rows.logits, 100 * cosines("test"), atol=1e-4)
    with pytest.warns(DataNote, match=r"logit_scale is 4\.605; CLIP stores its logarithm"):
        read_logits(write_zero_shot(tmp_path, logit_scale=np.float32(4.6052)))


@pytest.mark.parametrize("write", [write_npz, write_npy])
@pytest.mark.parametrize("model", ["probe", "clip-adapter"])
def test_heads_begin_with_class_embeddings(model: str, write: Any, tmp_path: Path) -> None:
    extra = {"class_embeddings": EMBEDDINGS, "logit_scale": np.float32(50)}
    place = write(tmp_path, {**named(*COUNTS), **extra})
    data = prepare(f"features:{place}", "unused", SplitSpec("own"), tmp_path / "data")
    network = build_model(model, 3, PreparedData.open(data.directory).info.inputs.shape)
    for layer in network.extractor.modules():
        if isinstance(layer, torch.nn.Linear):
            torch.nn.init.zeros_(layer.weight)  # The adapter adds nothing then.
    logits = network(torch.from_numpy(FEATURES["test"])).detach()
    np.testing.assert_allclose(logits, 50 * cosines("test"), atol=1e-4)
    assert network.classifier.weight.requires_grad == (model == "probe")


@pytest.mark.parametrize("seen", [[0, 2], [0, 1]])
@pytest.mark.parametrize("classes", [None, NAMES])
def test_classes_with_embeddings_need_no_training_rows(
    classes: Any, seen: list[int], tmp_path: Path
) -> None:
    labels = np.array(seen)[np.arange(30) % 2]
    place = write_zero_shot(tmp_path, labels_train=labels, classes=classes)
    (missing,) = {0, 1, 2} - {*seen}
    names = ("0", "1", "2") if classes is None else tuple(NAMES)
    with pytest.warns(
        DataNote, match=rf"no training rows of 1 of 3 classes, .* '{names[missing]}'"
    ):
        data = prepare(f"features:{place}", "unused", SplitSpec("own"), tmp_path / "data")
    assert data.info.classes == names
    np.testing.assert_array_equal(data.search().train.labels, labels)
    np.testing.assert_array_equal(data.test().labels, LABELS["test"])
    network = build_model("probe", data.info.num_classes, data.info.inputs.shape)
    logits = network(torch.from_numpy(FEATURES["test"])).detach()
    np.testing.assert_allclose(logits, 50 * cosines("test"), atol=1e-4)


@pytest.mark.filterwarnings("ignore:.*no training rows:trainables.data.DataNote")
def test_rows_of_embeddings_are_the_sorted_names_of_all_parts(tmp_path: Path) -> None:
    named = {f"labels_{part}": NAMES[LABELS[part]] for part in COUNTS}
    named["labels_train"] = NAMES[np.arange(30) % 2 + 1]
    place = write_zero_shot(tmp_path, **named)
    with pytest.warns(DataNote, match="the 3 rows of class_embeddings are read as .*.0 is 'ant'"):
        found = read_source(f"features:{place}", "unused")
    assert found.info.classes == tuple(NAMES)
    np.testing.assert_array_equal(found.train.labels[:30], np.arange(30) % 2 + 1)
    some = {name: np.where(its == "ant", "bee", its) for name, its in named.items()}
    place = write_zero_shot(tmp_path, **some)
    with pytest.raises(InputError, match=r"2 names for the 3 rows .*; add an array `classes` with"):
        read_source(f"features:{place}", "unused")
    with pytest.raises(InputError, match=r"got 2 classes .* 3 columns; add an array `classes` wi"):
        read_logits(place)


def test_heads_without_class_embeddings_are_refused(tmp_path: Path) -> None:
    place = write_npz(tmp_path, named(*COUNTS))
    data = prepare(f"features:{place}", "unused", SplitSpec("own"), tmp_path / "data")
    assert "class_weights" not in data.info.to_dict()
    with pytest.raises(InputError, match=r"^model 'probe' starts from class embeddings; "):
        build_model("probe", 3, data.info.inputs.shape)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"class_embeddings": EMBEDDINGS[:, :4]},
            r"class_embeddings: expected floats \(3, 5\), one row per class, got float32 \(3, 4\)",
        ),
        (
            {"class_embeddings": EMBEDDINGS[:2]},
            "labels_train: 2 in row 2, but class_embeddings has 2 rows, one per class, counted fr",
        ),
        (
            {"class_embeddings": EMBEDDINGS[:2], "classes": NAMES},
            r"class_embeddings: expected floats \(3, 5\), one row per class, got float32 \(2, 5\)",
        ),
        (
            {"class_embeddings": EMBEDDINGS * [[1], [0], [1]]},
            "class_embeddings: row 1 has length 0; cosines need finite rows that are not 0",
        ),
        (
            {"logit_scale": np.float32(-1)},
            r"logit_scale: expected one number above 0, got float32 -1\.0",
        ),
    ],
)
def test_wrong_class_embeddings_are_refused(changes: Arrays, message: str, tmp_path: Path) -> None:
    place = write_zero_shot(tmp_path, **changes)
    with pytest.raises(InputError, match=f"{place}: {message}"):
        read_source(f"features:{place}", "unused")


def test_zero_shot_logits_of_features_without_length_are_refused(tmp_path: Path) -> None:
    test = FEATURES["test"].copy()
    test[7] = 0
    with pytest.raises(InputError, match=r"features_test: row 7 has length 0; cosines need"):
        read_logits(write_zero_shot(tmp_path, features_test=test))

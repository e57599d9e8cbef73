import codecs
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
import torch
from small_data import refusal

from trainables.common.errors import InputError
from trainables.data import (
    DataNote,
    GivenLogits,
    LogitFile,
    SplitSpec,
    find_reader,
    logit_sets,
    missing_download,
    prepare,
    read_logits,
    read_source,
    split_address,
)

SCORES = np.array([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]])
LOGITS = 4 * SCORES


def write(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def values_of(file: LogitFile) -> list[list[float]]:
    return file.rows.logits.tolist()


@pytest.mark.parametrize("given", ["f2", "f4", ">f4", "f8", ">f8", "g", "i2", "u1"])
@pytest.mark.parametrize("labels", ["u1", ">i4", "i8"])
def test_logits_of_any_type_keep_their_values(tmp_path, given, labels):
    kept = torch.float64 if given in ("f8", ">f8", "g") else torch.float32
    logits = LOGITS.astype(given)
    file = read_logits(write(tmp_path / "a.npz", logits=logits, labels=np.array([2, 1], labels)))
    assert file.rows.logits.dtype == kept
    assert values_of(file) == logits.astype(float).tolist()
    assert (file.rows.labels.dtype, file.rows.labels.tolist()) == (torch.int64, [2, 1])


@pytest.mark.parametrize("labels", [[2, 1], [[2], [1]]])
@pytest.mark.parametrize(("given", "kept"), [("f2", "f4"), ("f4", "f4"), ("f8", "f8")])
def test_probabilities_become_logarithms_of_their_precision(tmp_path, given, kept, labels):
    file = read_logits(write(tmp_path / "a.npz", probs=SCORES.astype(given), labels=labels))
    found, least = file.rows.logits.numpy(), np.log(np.finfo(kept).tiny)
    assert found.dtype == kept
    np.testing.assert_allclose(found[0], np.log(SCORES[0]), rtol=1e-6)
    np.testing.assert_allclose(found[1], [least, 0, least], rtol=1e-6)


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ([0.5, 0.4991], ""),
        ([0.5, 0.5009], ""),
        ([0.5, 0.485], "row 4 adds up to 0.985, expected 1; most rows do"),
        ([0.5, 0.515], "row 4 adds up to 1.015, expected 1; most rows do"),
        ([1.0001, -0.0001], "-0.0001 in row 4, class 1 is not a probability; expected values in"),
        ([1.0, np.nan], "nan in row 4, class 1 is not a probability"),
        ([2.0, -1.0], "-1 in row 4, class 1 is not a probability; if these are logits, add --kind"),
    ],
)
def test_probabilities_add_up_and_the_first_row_that_does_not_is_named(tmp_path, row, text):
    probs = np.array([[0.53125, 0.46875]] * 4 + [row] * 2 + [[0.25, 0.75]])
    path = write(tmp_path / "a.npz", probs=probs, labels=np.array([0, 1] * 3 + [0]))
    if not text:
        np.testing.assert_allclose(read_logits(path).rows.logits, np.log(probs))
        return
    with pytest.raises(InputError, match=text):
        read_logits(path)


@pytest.mark.parametrize("name", ["{0}_{1}", "{1}_{0}"])
@pytest.mark.parametrize("pair", [("logits", "labels"), ("predictions", "ground_truth")])
def test_an_archive_may_have_one_part_to_fit_on_and_one_to_test_on(tmp_path, name, pair):
    parts = {"fit": (LOGITS, [2, 1]), "test": (SCORES[:1] + 1, [0])}
    arrays = {
        name.format(array, part): values
        for part, both in parts.items()
        for array, values in zip(pair, both, strict=True)
    }
    file = read_logits(write(tmp_path / "a.npz", **arrays), "logits")
    assert file.fit is not None
    assert (len(file.fit), len(file.rows), file.name) == (2, 1, "a")
    assert (file.fit.labels.tolist(), file.rows.labels.tolist()) == ([2, 1], [0])
    assert values_of(file) == (SCORES[:1] + 1).tolist()
    wider = {**arrays, name.format(pair[0], "test"): np.zeros((1, 4))}
    with pytest.raises(InputError, match="in both parts, got 3 to fit on and 4 to test on"):
        read_logits(write(tmp_path / "b.npz", **wider), "logits")


def test_a_part_named_twice_or_not_at_all_is_refused(tmp_path):
    arrays = {"logits_fit": SCORES, "labels_fit": [2, 1]}
    path = tmp_path / "a.npz"
    for part, more in (("fit", {"fit_logits": SCORES}), ("test", {})):
        scores = (f"{base}_{part} or {part}_{base}" for base in ("logits", "probs", "predictions"))
        assert refusal(read_logits, write(path, **arrays, **more)) == (
            f"{path}: scores: expected exactly one array named {' or '.join(scores)}; the file has "
            f"{', '.join((*arrays, *more))}"
        )


def test_the_sets_of_a_folder_are_its_files_by_name(tmp_path):
    write(tmp_path / "b.npz", logits=LOGITS, labels=[2, 1])
    for name in ("c.p", "a.pkl", "d.pickle"):
        (tmp_path / name).write_bytes(pickle.dumps(((LOGITS, np.array([2, 1])),) * 2))
    (tmp_path / "notes.txt").write_text("?")
    (tmp_path / "below").mkdir()
    found = logit_sets(tmp_path)
    assert list(found) == ["a", "b", "c", "d"]
    assert found["c"] == str(tmp_path / "c.p")
    assert logit_sets(tmp_path / "b.npz") == {"b": str(tmp_path / "b.npz")}
    for address in found.values():
        assert values_of(read_logits(address, "logits")) == LOGITS.tolist()
    write(tmp_path / "c.npz", logits=LOGITS, labels=[2, 1])
    endings = ".npz, .npy, .csv, .tsv, .parquet, .p, .pkl, .pickle, .h5, .hdf5, .jsonl, .json"
    for place, text in (
        (tmp_path, f"{tmp_path / 'c.npz'} and {tmp_path / 'c.p'} have the same name"),
        (tmp_path / "below", f"no logits; expected files ending in {endings}"),
        (tmp_path / "none", "no such file or folder"),
    ):
        assert refusal(logit_sets, place) == f"{place}: {text}"


@pytest.mark.parametrize(
    ("address", "path", "name"),
    [
        ("a.h5:cifar/resnet", "a.h5", "cifar/resnet"),
        ("b/a.hdf5:/cifar/resnet/", "b/a.hdf5", "cifar/resnet"),
        ("a.h5", "a.h5", ""),
        ("a.h5:", "a.h5", ""),
        ("c:a.npz", "c:a.npz", ""),
        ("x.h5:y/z.h5:cifar/resnet", "x.h5:y/z.h5", "cifar/resnet"),
    ],
)
def test_an_address_is_a_path_and_perhaps_a_set(address, path, name):
    assert split_address(address) == (Path(path), name)


class Elsewhere(pickle.Pickler):
    def persistent_id(self, value: Any) -> str | None:
        return "elsewhere" if isinstance(value, np.ndarray) else None


class Encoded:
    def __reduce__(self) -> tuple[Any, ...]:
        return codecs.encode, ("text", "rot13")


def test_a_pickle_that_refers_elsewhere_or_to_another_codec_is_refused(tmp_path):
    with (tmp_path / "a.p").open("wb") as stream:
        Elsewhere(stream).dump(((SCORES, SCORES),) * 2)
    (tmp_path / "b.p").write_bytes(pickle.dumps(Encoded()))
    for name, text in (
        ("a", "the pickle refers to 'elsewhere' outside the file; only NumPy arrays are allowed"),
        ("b", "the pickle uses the codec 'rot13'; only latin1 is allowed"),
    ):
        told = refusal(read_logits, tmp_path / f"{name}.p", "logits")
        assert told == f"{tmp_path / name}.p: {text}"


def test_an_hdf5_file_without_h5py_names_the_package_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    (tmp_path / "a.h5").touch()
    told = f"{tmp_path}/a.h5: needs h5py: pip install 'calsweep[hdf5]'"
    assert refusal(read_logits, tmp_path / "a.h5") == told


@pytest.mark.parametrize("read", [read_logits, logit_sets])
def test_logits_at_a_url_are_refused(read):
    with pytest.raises(InputError, match=r"logits: 's3:/+bucket/a\.npz' is a URL; use a path on"):
        read("s3://bucket/a.npz")


def test_a_set_of_an_hdf5_file(tmp_path):
    path = tmp_path / "arena.h5"
    with h5py.File(path, "w") as file:
        for number, name in enumerate(("svhn/vit", "cifar/vit")):
            for part, rows in (("cal", 2), ("test", 1)):
                file[f"{name}/probas_{part}"] = SCORES[:rows][:, [number, 1 - number, 2]]
                file[f"{name}/labels_{part}"] = np.array([2, 1])[:rows]
        file["cifar/half/probas_cal"] = SCORES
        file["readme"] = "?"
        file["empty/readme"] = "?"
    assert sorted(logit_sets(path)) == ["cifar/half", "cifar/vit", "svhn/vit"]
    assert logit_sets(f"{path}:cifar/vit") == {"cifar/vit": f"{path}:cifar/vit"}
    beside = write(tmp_path / "net.npz", logits=LOGITS, labels=[2, 1])
    assert logit_sets(tmp_path) == {**logit_sets(path), "net": str(beside)}
    for number, name in enumerate(("svhn/vit", "cifar/vit")):
        file = read_logits(f"{path}:/{name}/")
        assert file.fit is not None
        assert (file.name, len(file.fit), len(file.rows)) == (name, 2, 1)
        expected = np.log(SCORES[:1][:, [number, 1 - number, 2]])
        np.testing.assert_allclose(file.rows.logits, expected)
    assert read_logits(f"{path}:cifar/vit", "probs").rows.labels.tolist() == [2]
    needed = "expected probas_cal, labels_cal, probas_test, labels_test"
    for address, kind, text in (
        (str(path), None, "has 3 sets; add a name after a colon, such as PATH:cifar/half"),
        (
            f"{path}:cifar/vit",
            "logits",
            "the logits are probabilities (no negative value, every row adds up to 1); add "
            "--kind probs (in a sweep file's task: `inputs: {kind: probs}`)",
        ),
        (f"{path}:cifar/half", None, f"/cifar/half has no array 'labels_cal'; {needed}"),
        (f"{path}:cifar", None, f"/cifar has no array 'probas_cal'; {needed}"),
        (f"{path}:none/vit", None, f"no set 'none/vit'; sets are {', '.join(logit_sets(path))}"),
        (f"{path}:readme", None, f"no set 'readme'; sets are {', '.join(logit_sets(path))}"),
    ):
        assert refusal(read_logits, address, kind) == f"{path}: {text}"
    (tmp_path / "outside.h5").write_bytes(path.read_bytes())
    with h5py.File(path, "a") as file:
        del file["cifar"]
        file["svhn/other"] = h5py.SoftLink("/svhn/vit")
        file["svhn/outside"] = h5py.ExternalLink("outside.h5", "/svhn/vit")
    assert read_logits(path).name == "svhn/vit"
    path.write_bytes(path.read_bytes()[:600])
    with pytest.raises(InputError, match=rf"^{path}: cannot be read as HDF5 \("):
        read_logits(path)
    with h5py.File(path, "w") as file:
        file["cifar/readme"] = "?"
    with pytest.raises(InputError, match=rf"^{path}: no group DATASET/MODEL, as "):
        logit_sets(path)


@pytest.mark.parametrize("kind", [OSError, KeyError, RuntimeError, ValueError])
def test_errors_of_h5py_become_input_errors(kind, tmp_path, monkeypatch):
    def refuse(*_: Any) -> None:
        raise kind("bad heap")

    monkeypatch.setattr(h5py, "File", refuse)
    path = tmp_path / "arena.h5"
    path.touch()
    with pytest.raises(InputError, match=rf"^{path}: cannot be read as HDF5 \('?bad heap'?\)$"):
        read_logits(path)


def test_a_pickled_pair_may_be_of_lists_and_of_older_arrays(tmp_path):
    content = pickle.dumps([[LOGITS, np.array([2, 1])]] * 2, protocol=2)
    homes = b"numpy.core", b"numpy._core"
    for number in (0, 1):
        path = tmp_path / f"{number}.p"
        path.write_bytes(content.replace(homes[1 - number], homes[number]))
        file = read_logits(path, "logits")
        assert file.name == f"{number}"
        assert values_of(file) == LOGITS.tolist()
        assert file.rows.labels.tolist() == [2, 1]


Parts = dict[str, tuple[np.ndarray, np.ndarray]]


def write_parts(path: Path, parts: Parts) -> str:
    """Write the parts ``fit`` and ``test``, scores and labels each, in the format of an ending."""
    if path.suffix == ".npz":
        arrays = {f"probs_{part}": scores for part, (scores, _) in parts.items()}
        write(path, **arrays, **{f"labels_{part}": labels for part, (_, labels) in parts.items()})
        return str(path)
    if path.suffix == ".p":
        path.write_bytes(pickle.dumps((parts["fit"], parts["test"])))
        return str(path)
    with h5py.File(path, "w") as file:
        for part, (scores, labels) in parts.items():
            name = {"fit": "cal", "test": "test"}[part]
            file[f"cifar/vit/probas_{name}"], file[f"cifar/vit/labels_{name}"] = scores, labels
    return f"{path}:cifar/vit"


FAULTS: dict[str, tuple[Callable[[np.ndarray, np.ndarray], tuple[Any, Any]], str]] = {
    "other classes": (
        lambda scores, labels: (np.pad(scores, ((0, 0), (0, 1))), labels),
        "expected equally many classes in both parts, got {} to fit on and {} to test on",
    ),
    "a label too high": (
        lambda scores, labels: (scores, labels + np.array([0, 0, 0, 3, 0])),
        r"[\w ]*labels\w*: 3 in row 3; expected 0 to 2",
    ),
    "labels that are no whole numbers": (
        lambda scores, labels: (scores, labels / 2),
        r"[\w ]*labels\w*: expected a whole number or a name, got 0\.5 in row [01]",
    ),
    "whole numbers": (
        lambda scores, labels: (np.eye(3, dtype=int)[labels], labels),
        "probabilities: expected floating values",
    ),
}


@pytest.mark.parametrize("ending", [".npz", ".p", ".h5"])
def test_faults_in_each_part_are_named_for_every_format(ending, tmp_path):
    scores = np.random.default_rng(0).dirichlet([1, 1, 1], 10)
    good: Parts = {
        "fit": (scores[:5], np.array([0, 1, 2, 0, 1])),
        "test": (scores[5:], np.array([2, 1, 2, 0, 1])),
    }
    address = write_parts(tmp_path / f"good{ending}", good)
    file = read_logits(address, "probs")
    assert file.fit is not None
    for rows, (given, labels) in zip((file.fit, file.rows), good.values(), strict=True):
        np.testing.assert_allclose(rows.logits, np.log(given))
        assert rows.labels.tolist() == labels.tolist()
    for number, (spoil, text) in enumerate(FAULTS.values()):
        for part in good:
            path = tmp_path / f"{part}{number}{ending}"
            address = write_parts(path, {**good, part: spoil(*good[part])})
            told = text.format(*((4, 3) if part == "fit" else (3, 4)))
            with pytest.raises(InputError, match=rf"^{path}: (logits: )?{told}"):
                read_logits(address, "probs")


@pytest.mark.parametrize("ending", [".npz", ".p", ".h5", ".hdf5"])
def test_a_file_of_two_parts_is_fitted_on_one_and_tested_on_the_other(ending, tmp_path):
    scores = np.random.default_rng(0).dirichlet([1, 1, 1], 16)
    labels = np.arange(16) % 3
    parts = {"fit": (scores[:11], labels[:11]), "test": (scores[11:], labels[11:])}
    path = tmp_path / f"a{ending}"
    name, settings = f"logits:{write_parts(path, parts)}", {"kind": "probs"}
    reader = find_reader(name, "unused", settings)
    told = f"{name.removeprefix('logits:')}: 3 classes, 11 fitting and 5 test rows"
    assert reader.check().detail == told
    assert reader.test_paths() == reader.files() == [path]
    data = prepare(name, "unused", SplitSpec("all", seed=3), tmp_path / "d", settings=settings)
    assert data.counts == {"train": 0, "validation": 11, "test": 5}
    held, judged, told = data.search().validation, data.test(), reader.labels()
    np.testing.assert_allclose(held.values, np.log(scores[:11]), rtol=1e-6)
    np.testing.assert_allclose(judged.values, np.log(scores[11:]), rtol=1e-6)
    for rows, expected, found in zip((held, judged), (labels[:11], labels[11:]), told, strict=True):
        assert rows.labels.tolist() == found.tolist() == expected.tolist()
    before = reader.signature()
    path.write_bytes(path.read_bytes() + b"\n")
    assert reader.signature() != before


def test_a_logit_that_single_precision_cannot_hold_is_refused(tmp_path):
    path = write(tmp_path / "a.npz", logits=[[0.0, 1e39], [3e38, 0.0]], labels=[0, 1])
    assert len(read_logits(path).rows) == 2
    with pytest.raises(InputError, match=rf"^{path}: a logit is outside the range of float32$"):
        read_source(f"logits:{path}", "unused")
    assert not find_reader(f"logits:{path}", "unused").check().present


def test_logits_are_rows_of_a_data_set(tmp_path):
    rows = np.random.default_rng(0).normal(size=(12, 3))
    path = write(tmp_path / "a.npz", predictions=rows, ground_truth=np.arange(12) % 3)
    name, settings = f"logits:{path}", {"kind": "logits"}
    source = read_source(name, "unused", settings=settings)
    assert (source.info.classes, source.info.inputs) == (("0", "1", "2"), GivenLogits(3))
    np.testing.assert_array_equal(source.train.read(0, 12), rows.astype(np.float32))
    assert source.test is None
    reader = find_reader(name, "unused", settings)
    told = f"{path}: 3 classes, 12 rows; `split.test` holds out test rows"
    assert reader.check().detail == told
    assert reader.labels()[0].tolist() == source.train.labels.tolist()
    found = prepare(name, "unused", SplitSpec("all", 4), tmp_path / "p", settings=settings)
    assert found.counts == {"train": 0, "validation": 8, "test": 4}
    whole = SplitSpec(8, 4)
    assert missing_download(name, "unused", whole, settings) == ""
    with pytest.raises(InputError, match="validation=9 is more than 8 rows"):
        missing_download(name, "unused", SplitSpec(9, 4), settings)
    for wrong, text in (
        ({"kind": "p"}, "inputs.kind='p' is not one of logits, probs"),
        ({"kind": "probs", "size": 3}, "unknown key inputs.size; keys are kind"),
    ):
        told = refusal(find_reader, name, "unused", wrong)
        assert told == f"dataset {name!r}: {text}"
    assert not find_reader(name, "unused").check().present
    batcher = found.info.inputs.batcher(found.test().values)
    (batch,) = batcher.batches(torch.tensor([2, 0]), 2)
    for seen in (batcher.plain(batch), batcher.view(batch, "none", torch.Generator())):
        assert torch.equal(seen, torch.from_numpy(found.test().values[[2, 0]]))
    shape = found.info.inputs.shape
    assert (shape.kind, shape.width) == ("logits", 3)
    assert torch.equal(shape.blank(torch.device("cpu")), torch.zeros(1, 3))
    for other in (rows, rows[:, :2].astype(np.float32)):
        with pytest.raises(ValueError, match=r"^logits: ") as refused:
            found.info.inputs.batcher(other)
        told = f"logits: expected float32 (N, 3), got {other.dtype} {other.shape}"
        assert str(refused.value) == told


def _as_table(path: Path, frame: pd.DataFrame) -> Path:
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
    return path


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".parquet"])
def test_tables_and_archives_give_the_same_rows(ending, tmp_path):
    logits = np.random.default_rng(0).normal(size=(20, 12))
    labels = np.arange(20) % 12
    columns = {f"logit_{k}": logits[:, k] for k in sorted(range(12), key=str)}
    frame = pd.DataFrame({"id": range(20), "label": labels, **columns})
    file = read_logits(_as_table(tmp_path / f"net{ending}", frame))
    # Before 3.1 pandas reads some numbers from texts as the float beside the nearest.
    np.testing.assert_allclose(file.rows.logits, logits, rtol=1e-13)
    np.testing.assert_array_equal(file.rows.labels, labels)
    assert file.name == "net"
    words = ["cat", "ant", "bee"]  # Columns have the order, not the alphabet.
    named = {f"prob_{word}": SCORES[:, k] for k, word in enumerate(words)}
    frame = pd.DataFrame({**named, "label": ["bee", "ant"]})
    rows = read_logits(_as_table(tmp_path / f"words{ending}", frame)).rows
    assert rows.labels.tolist() == [2, 1]
    np.testing.assert_allclose(rows.logits[0].exp(), SCORES[0])


def test_a_column_of_lists_is_a_row_each(tmp_path):
    path = tmp_path / "a.parquet"
    pd.DataFrame({"logits": LOGITS.tolist(), "label": [2, 1]}).to_parquet(path)
    assert values_of(read_logits(path)) == LOGITS.tolist()


def test_npy_files_whose_names_pair_are_one_set(tmp_path):
    arrays = {"a_logits": LOGITS, "a_labels": [2, 1], "val_logits": LOGITS, "val_labels": [2, 1]}
    for name, values in {**arrays, "test_logits": LOGITS[:1], "test_y": [0]}.items():
        np.save(tmp_path / f"{name}.npy", values)
    sets = logit_sets(tmp_path)
    assert list(sets) == ["a", tmp_path.name]
    assert values_of(read_logits(sets["a"])) == LOGITS.tolist()
    parted = read_logits(sets[tmp_path.name])
    assert parted.fit is not None
    assert (parted.fit.labels.tolist(), parted.rows.labels.tolist()) == ([2, 1], [0])
    np.save(tmp_path / "a_targets.npy", [0, 0])
    told = f"{tmp_path}/a_labels.npy and {tmp_path}/a_targets.npy have the same role; remove one"
    assert refusal(read_logits, sets["a"]) == told
    (tmp_path / "a_targets.npy").unlink()
    before = find_reader(f"logits:{sets['a']}", "unused").signature()
    np.save(tmp_path / "a_labels.npy", [1, 1, 1])
    assert find_reader(f"logits:{sets['a']}", "unused").signature() != before


def test_labels_in_other_forms_are_taken_with_a_note(tmp_path):
    path = write(tmp_path / "a.npz", logits=LOGITS, labels=np.array([True, False]))
    with pytest.warns(DataNote, match="has true and false: read as 1 and 0"):
        assert read_logits(path).rows.labels.tolist() == [1, 0]


def test_a_folder_instead_of_a_file_gets_its_own_message(tmp_path):
    with pytest.raises(InputError, match=f"^{tmp_path}: is a folder; use a file$"):
        read_logits(tmp_path)


def test_names_of_classes_are_sorted_unless_classes_says_more(tmp_path):
    logits = np.concatenate((LOGITS, LOGITS))
    labels = np.array(["dog", "cat", "ant", "dog"])
    path = write(tmp_path / "a.npz", logits=logits, labels=labels)
    with pytest.warns(DataNote, match=r"sorted order \(0 is 'ant', 1 is 'cat', 2 is 'dog'\)"):
        assert read_logits(path).rows.labels.tolist() == [2, 1, 0, 2]
    path = write(tmp_path / "b.npz", logits=logits, labels=labels, classes=["dog", "cat", "ant"])
    assert read_logits(path).rows.labels.tolist() == [0, 1, 2, 0]
    path = write(tmp_path / "c.npz", logits=logits, labels=labels, classes=["dog", "cat", "bee"])
    with pytest.raises(
        InputError, match="'ant' in row 2 is not a class; classes are 'dog', 'cat', 'bee'"
    ):
        read_logits(path)


def test_probabilities_named_logits_are_refused_with_a_remedy(tmp_path):
    path = write(tmp_path / "a.npz", logits=SCORES, labels=[2, 1])
    told = r"the logits are probabilities .*add --kind probs .*`inputs: \{kind: probs\}`"
    with pytest.raises(InputError, match=told):
        read_logits(path)
    np.testing.assert_allclose(read_logits(path, "probs").rows.logits[0].exp(), SCORES[0])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a,b\n1,2\n", "no columns of labels (it has 'a', 'b'); name one column `label`"),
        ("label,x,y\n", "several columns of labels (it has 'label', 'x', 'y')"),
        ("label,a,b\n0,1,2\n", "no columns of scores (it has 'a', 'b'); name them logit_CLASS"),
        (
            "label,0,1\n0,1,2\n",
            "are the scores logits or probabilities? Add --kind logits or --kind probs",
        ),
        ("label,logit_0,logit_0\n0,1,2\n", "has two columns named 'logit_0'"),
        ("label,logit_0,logit_1\n0,1,2,3\n", "row 0 has 4 cells, the header has 3"),
        ("label,logit_0,logit_1\n0,1,x\n", "row 0, column 'logit_1': expected a number, got 'x'"),
        ("label,logit_0,logit_1\n0,1\n", "row 0 has 2 cells, the header has 3"),
        ("", "cannot be read as a table"),
        ("label,logit_0,logit_1\n", "logits: expected shape (N, K), N >= 1 and K >= 2, got (0, 2)"),
    ],
)
def test_a_table_that_does_not_say_enough_is_refused(text, told, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(text)
    assert refusal(read_logits, path).startswith(f"{path}: {told}")

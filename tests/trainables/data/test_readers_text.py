import json
import lzma
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sklearn.datasets
import torch
from sklearn.utils import Bunch
from small_data import refusal

from trainables.common.errors import InputError
from trainables.data import (
    DataNote,
    PreparedData,
    SplitSpec,
    find_prepared,
    find_reader,
    missing_download,
    prepare,
    read_source,
)
from trainables.data import _texts as texts_module
from trainables.data._rows import fingerprint
from trainables.data._source import SourceStatus
from trainables.data._texts import LabelledTexts, Texts, words_of
from trainables.models import build_model

Row = dict[str, object]
Write = Callable[..., Path]


def rows(count: int, *, names: bool = False) -> list[Row]:
    return [
        {
            "text": f"A story of {('cats', 'dogs')[k % 2]}, no. {k}",
            "label": ("cat", "dog")[k % 2] if names else k % 2,
        }
        for k in range(count)
    ]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write ``PART.jsonl`` files, and ``classes.json`` if there are classes."""

    def write(classes: list[str] | None = None, **parts: list[Row]) -> Path:
        folder = tmp_path / "texts"
        folder.mkdir(exist_ok=True)
        for part, lines in parts.items():
            text = "".join(json.dumps(line) + "\n" for line in lines)
            (folder / f"{part}.jsonl").write_text(text, encoding="utf-8")
        if classes is not None:
            (folder / "classes.json").write_text(json.dumps({"classes": classes}))
        return folder

    return write


def prepared(
    path: Path, folder: Path, split: SplitSpec | None = None, **inputs: int | str
) -> PreparedData:
    return prepare(f"text:{path}", "unused", split or SplitSpec(), folder / "p", settings=inputs)


def test_words_are_in_small_letters_without_signs():
    words = words_of("Don't PANIC: it's 42_times 'over' Größe!")
    assert words == ["don't", "panic", "it's", "42", "times", "over", "größe"]


def test_lines_with_and_without_a_test_set(write):
    folder = write(["cat", "dog"], train=rows(8), test=rows(4, names=True))
    source = read_source(f"text:{folder}", "unused")
    assert source.info.classes == ("cat", "dog")
    assert (source.info.name, source.info.source) == (f"text:{folder}", str(folder))
    assert source.train.read(0, 2).tolist() == ["A story of cats, no. 0", "A story of dogs, no. 1"]
    assert source.test is not None
    np.testing.assert_array_equal(source.test.labels, [0, 1, 0, 1])
    alone = read_source(f"text:{folder / 'test.jsonl'}", "unused")
    assert alone.test is None
    assert alone.info.classes == ("cat", "dog")
    told = find_reader(f"text:{folder}", "unused").check().detail
    assert told == f"{folder}: 2 classes, 8 training and 4 test texts"
    assert find_reader(f"text:{folder}", "unused").test_paths() == [folder / "test.jsonl"]
    (folder / "train.jsonl").unlink()
    with pytest.raises(InputError, match="two or more class folders"):
        read_source(f"text:{folder}", "unused")


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".parquet"])
def test_tables_and_lines_give_the_same_rows(ending, write, tmp_path):
    folder = write(train=rows(8, names=True))
    expected = read_source(f"text:{folder / 'train.jsonl'}", "unused")
    frame = pd.DataFrame(rows(8, names=True)).rename(columns={"text": "review", "label": "kind"})
    path = tmp_path / f"train{ending}"
    if ending == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, sep="\t" if ending == ".tsv" else ",")
    with pytest.raises(
        InputError, match=r"no column 'text'; use inputs: \{text: COLUMN\}; columns"
    ):
        read_source(f"text:{path}", "unused")
    settings = {"text": "review", "label": "kind"}
    found = read_source(f"text:{path}", "unused", settings=settings)
    assert found.fingerprint == expected.fingerprint
    assert found.info.classes == ("cat", "dog")
    frame.loc[5, "kind"] = None
    frame.to_csv(tmp_path / "blank.csv")
    with pytest.raises(InputError, match=r"blank\.csv: kind has no label in row 5$"):
        read_source(f"text:{tmp_path / 'blank.csv'}", "unused", settings=settings)
    frame.loc[3, "review"] = " "
    frame.to_csv(tmp_path / "blank.csv")
    with pytest.raises(
        InputError, match=r"blank\.csv: column 'review': expected a text in row 3, got ' '$"
    ):
        read_source(f"text:{tmp_path / 'blank.csv'}", "unused", settings=settings)


MARK = "\ufeff"  # The byte order mark that editors write.


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.xz", ".csv", ".tsv", ".parquet"])
def test_blanks_around_labels_and_marks_of_the_byte_order_mean_nothing(ending, write, tmp_path):
    plain = rows(8, names=True)
    expected = read_source(f"text:{write(train=plain) / 'train.jsonl'}", "unused")
    spaced = [row | {"label": f"{row['label']}{' ' * (k == 2)}"} for k, row in enumerate(plain)]
    path = tmp_path / f"spaced{ending}"
    if ending == ".parquet":
        pd.DataFrame(spaced).to_parquet(path)
    elif ending in (".csv", ".tsv"):
        text = pd.DataFrame(spaced).to_csv(sep="\t" if ending == ".tsv" else ",")
        path.write_text(MARK + text, encoding="utf-8")
    else:
        text = MARK + "".join(json.dumps(row) + "\n" for row in spaced)
        path.write_bytes(lzma.compress(text.encode()) if ".xz" in ending else text.encode())
    with pytest.warns(DataNote) as told:
        found = read_source(f"text:{path}", "unused")
    assert {str(each.message) for each in told} == {
        f"{path}: label: removed the blanks around 1 of 8 labels, such as 'cat ' in row 2"
    }
    assert (found.fingerprint, found.info.classes) == (expected.fingerprint, ("cat", "dog"))


def test_whole_floats_of_lines_are_taken_as_those_of_tables(write):
    expected = read_source(f"text:{write(train=rows(8))}", "unused")
    floats = [row | {"label": float(str(row["label"]))} for row in rows(7)]
    folder = write(train=[*floats, rows(8)[7]])
    with pytest.warns(DataNote, match="label is float64: its whole numbers are used as labels"):
        assert read_source(f"text:{folder}", "unused").fingerprint == expected.fingerprint


def test_a_list_of_classes_may_have_a_mark_and_blanks(write):
    folder = write(train=rows(8, names=True))
    (folder / "classes.json").write_text(MARK + '{"classes": ["dog ", "cat"]}', encoding="utf-8")
    source = read_source(f"text:{folder}", "unused")
    assert source.info.classes == ("dog", "cat")
    assert source.train.labels.tolist() == [1, 0] * 4


@pytest.mark.parametrize("lines", [True, False])
def test_a_note_says_that_a_validation_folder_is_not_used(lines, tmp_path):
    for part in ("train", "val", "test"):
        (tmp_path / part).mkdir()
        for kind in ("cat", "dog"):
            (tmp_path / part / kind).mkdir()
            (tmp_path / part / kind / "1").write_text(f"a {kind}")
        if lines:
            (tmp_path / f"{part}.csv").write_text("text,label\na cat,cat\na dog,dog\n")
    with pytest.warns(DataNote, match="val is not used; validation is drawn from train"):
        assert read_source(f"text:{tmp_path}", "unused").test is not None


def test_texts_without_a_test_set_are_sealed_entirely(write, tmp_path):
    lines = write(train=rows(8)) / "train.jsonl"
    assert find_reader(f"text:{lines}", "unused").test_paths() == [lines]
    assert find_reader(f"text:{lines.parent}", "unused").test_paths() == [lines]
    for part in ("train/a", "test/a"):
        (tmp_path / "own" / part).mkdir(parents=True)
    reader = find_reader(f"text:{tmp_path / 'own'}", "unused")
    assert reader.test_paths() == [tmp_path / "own" / "test"]
    (tmp_path / "own" / "test" / "a").rename(tmp_path / "own" / "b")
    (tmp_path / "own" / "test").rmdir()
    assert reader.test_paths() == [tmp_path / "own"]


def test_classes_are_those_of_the_training_texts(write):
    folder = write(train=rows(8, names=True), test=rows(1, names=True))
    assert read_source(f"text:{folder}", "unused").info.classes == ("cat", "dog")
    named = [{"text": "x", "label": f"class {k % 9}"} for k in range(18)]
    found = read_source(f"text:{write(train=named) / 'train.jsonl'}", "unused")
    assert found.info.classes == tuple(f"class {k}" for k in range(9))
    numbered = [{"text": "x", "label": k % 12} for k in range(24)]
    found = read_source(f"text:{write(train=numbered) / 'train.jsonl'}", "unused")
    assert found.info.classes == tuple(map(str, range(12)))
    np.testing.assert_array_equal(found.train.labels, np.arange(24) % 12)


def test_changed_classes_or_embeddings_change_the_signature_of_texts(write, tmp_path):
    vectors = tmp_path / "glove.txt"
    vectors.write_text("\n".join(GLOVE) + "\n", encoding="utf-8")
    folder = write(["cat", "dog"], train=rows(8), test=rows(4))
    reader = find_reader(f"text:{folder}", "unused", {"embeddings": str(vectors)})
    seen = {reader.signature()}
    for path in (folder / "train.jsonl", folder / "test.jsonl", folder / "classes.json", vectors):
        path.write_bytes(path.read_bytes() + b"\n")
        seen.add(reader.signature())
    assert len(seen) == 5
    files = tmp_path / "files"
    for name in ("cat", "dog"):
        (files / name).mkdir(parents=True)
        (files / name / "1.txt").write_text("cats")
    other = find_reader(f"text:{files}", "unused", {"embeddings": str(vectors)})
    seen = {other.signature()}
    for path in (vectors, files / "cat" / "1.txt", files / "dog" / "1.txt"):
        path.write_bytes(path.read_bytes() + b"\n")
        seen.add(other.signature())
    assert len(seen) == 4


def test_packed_lines_are_the_same(write):
    folder = write(train=rows(8, names=True))
    before = read_source(f"text:{folder}", "unused")
    plain = folder / "train.jsonl"
    with lzma.open(folder / "train.jsonl.xz", "wb") as stream:
        stream.write(plain.read_bytes())
    plain.unlink()
    assert read_source(f"text:{folder}", "unused").fingerprint == before.fingerprint


@pytest.mark.parametrize("parted", [True, False])
def test_class_folders_and_lines_give_the_same_rows(write, tmp_path, parted):
    lines = sorted(rows(8, names=True), key=lambda row: str(row["label"]))
    parts = {"train": lines, "test": lines[2:7]} if parted else {"train": lines}
    expected = read_source(f"text:{write(**parts)}", "unused")
    for part, its in parts.items():
        for number, row in enumerate(its):
            place = tmp_path / "files" / (part if parted else "") / str(row["label"]) / f"{number}"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(str(row["text"]), encoding="utf-8")
            (place.parent / ".hidden").write_bytes(b"\xff")
            (place.parent / "below").mkdir(exist_ok=True)
    found = read_source(f"text:{tmp_path / 'files'}", "unused")
    assert found.fingerprint == expected.fingerprint
    assert found.info.classes == expected.info.classes
    rule = (
        "test is the part named so; validation is a stratified draw from train"
        if parted
        else "no test texts: test and validation are stratified draws"
    )
    assert found.info.split_rule == expected.info.split_rule == rule


def test_words_and_length_are_those_of_the_training_rows_alone(write, tmp_path):
    """Every text has a word of its own: only those of training texts may get a number."""
    data = prepared(write(train=rows(40), test=rows(80)[40:]), tmp_path, SplitSpec(validation=10))
    train = np.load(data.directory / "search" / "train_indices.npy")
    inputs = data.info.inputs
    assert {word for word in inputs.words if word.isdigit()} == {str(k) for k in train}
    assert inputs.length == 6
    texts = [f"A story of {('cats', 'dogs')[k % 2]}, no. {k}" for k in train]
    stored = data.search().train.values
    np.testing.assert_array_equal(inputs.encode(np.array(texts, object)), stored)
    numbers = [inputs.words.index(word) + 1 for word in words_of(texts[0])]
    assert stored[0].tolist() == numbers
    assert PreparedData.open(data.directory).info == data.info


def test_rare_words_go_first_and_long_texts_keep_their_end(write, tmp_path):
    folder = write(train=[{"text": "b a a c c c", "label": k % 2} for k in range(12)])
    assert prepared(folder, tmp_path, vocabulary=2).info.inputs.length == 5
    inputs = prepared(folder, tmp_path, vocabulary=2, length=4).info.inputs
    assert inputs.words == ("c", "a")
    assert inputs.encode(np.array(["b a c", "", "a a c c c c"], object)).tolist() == [
        [0, 0, 2, 1],
        [0, 0, 0, 0],
        [1, 1, 1, 1],
    ]


def test_equally_frequent_words_are_taken_in_alphabetical_order():
    texts = LabelledTexts.of(["d b c", "b c a", "a e"], np.arange(3))
    assert Texts(vocabulary=4).fitted(texts).words == ("a", "b", "c", "d")
    assert Texts().fitted(LabelledTexts.of(["?"], np.zeros(1, np.int64))).length == 1


def test_the_fingerprint_of_texts_follows_where_each_ends_and_its_label():
    texts = (["ab", "c"], ["a", "bc"], ["abc", ""], ["c", "ab"], ["ab", "c "], ["ab"], ["ab", "ç"])
    rows = [LabelledTexts.of(its, np.arange(len(its))) for its in texts]
    rows += [LabelledTexts.of(["ab", "c"], np.array([0, 0]))]
    assert len(set(map(fingerprint, rows))) == len(rows)
    again = LabelledTexts.of(["c", "ab"], np.array([1, 0])).take(np.array([1, 0]))
    assert fingerprint(again) == fingerprint(rows[0])


def test_texts_have_no_augmented_views():
    batcher = Texts(length=3).batcher(np.zeros((2, 3), np.int32))
    (batch,) = batcher.batches(torch.arange(2), 2)
    assert torch.equal(batcher.view(batch, "none", torch.Generator()), batch)
    with pytest.raises(ValueError, match="augmentation='crop-flip' is not one of none"):
        batcher.view(batch, "crop-flip", torch.Generator())


def test_rows_hold_numbers_of_words(monkeypatch):
    monkeypatch.setattr(texts_module, "BLOCK", 2)
    rows = LabelledTexts.of(["a b", "c", "b b a"], np.arange(3))
    inputs = Texts().fitted(rows)
    assert [block.tolist() for block in rows.blocks()] == [["a b", "c"], ["b b a"]]
    stored = inputs.encode(rows.take(np.array([2, 0])).read(0, 2))
    assert stored.tolist() == [[1, 1, 2], [0, 2, 1]]
    (batch,) = inputs.batcher(np.array(["b ? a c c a"])).batches(torch.arange(1), 1)
    assert batch.tolist() == [[3, 3, 2]]
    for number in (0, 3):
        inputs.check(np.full((1, 3), number, np.int32))
    for wrong in (np.zeros((2, 3)), np.zeros((2, 4), np.int32)):
        with pytest.raises(ValueError, match=r"^texts: ") as refused:
            inputs.check(wrong)
        told = f"texts: expected int32 (N, 3), got {wrong.dtype} {wrong.shape}"
        assert str(refused.value) == told
    for number in (-1, 4):
        with pytest.raises(ValueError, match=f"texts: expected 0 to 3, got {number}"):
            inputs.check(np.array([[0, 1, number]], np.int32))


def test_prepared_texts_are_found_by_their_settings(write, tmp_path):
    folder = write(train=rows(40))
    made = prepared(folder, tmp_path, length=5)
    where = (f"text:{folder}", "unused", SplitSpec(), tmp_path / "p")
    assert find_prepared(*where, {"length": 5}) == made
    for settings in (None, {"length": 4}):
        assert find_prepared(*where, settings) is None
    assert missing_download(*where[:3]) == ""
    with pytest.raises(InputError, match="split validation=39"):
        missing_download(*where[:2], SplitSpec(validation=39))
    with pytest.raises(InputError, match=r"unknown key inputs\.size"):
        missing_download(*where[:3], {"size": 3})


def test_the_key_of_texts_depends_on_vocabulary_and_length(write, tmp_path):
    folder = write(train=rows(40))
    keys = {prepared(folder, tmp_path, length=length).key for length in (5, 6, 6)}
    keys.add(prepared(folder, tmp_path, vocabulary=3, length=6).key)
    keys.add(prepared(folder, tmp_path, SplitSpec(seed=1), length=6).key)
    assert len(keys) == 4
    # Made once; a change here prepares everybody's texts anew.
    assert prepared(folder, tmp_path).key == "0430d8a9e208e98e0d9a2abd4840d138"


def test_twenty_newsgroups_is_downloaded_once_and_kept_as_lines(tmp_path, monkeypatch):
    asked: list[str] = []
    root = tmp_path / "new" / "data"

    def fetch(data_home: str, subset: str, shuffle: bool) -> Bunch:
        asked.append(subset)
        if len(asked) == 1:
            raise OSError("no network\nat all")
        named = [
            (f"20news-bydate-{p}/{c}/{n}", k)
            for p in ("train", "test")
            for k, c in enumerate("ba")
            for n in (20, 3)
        ]
        return Bunch(
            data=[f"Newsgroups: {name}\n\nbody of {name}\n\nend" for name, _ in named],
            filenames=np.array([f"{data_home}/{name}" for name, _ in named]),
            target=np.array([label for _, label in named]),
            target_names=["b", "a"],
        )

    monkeypatch.setattr(sklearn.datasets, "fetch_20newsgroups", fetch)
    status = find_reader("20newsgroups", root).check()
    assert status.detail == f"{root / '20newsgroups' / 'train.jsonl.xz'} is missing"
    assert not status.present
    told = f"dataset '20newsgroups' is not downloaded yet: {status.detail}"
    assert missing_download("20newsgroups", root) == told
    told = f"dataset '20newsgroups': OSError: no network at all; {status.remedy}"
    assert refusal(read_source, "20newsgroups", root) == told
    first, second = (read_source("20newsgroups", root) for _ in range(2))
    assert asked == ["all"] * 2
    assert first.info.classes == ("b", "a")
    assert first.fingerprint == second.fingerprint
    assert first.train.read(0, 4).tolist() == [
        f"body of 20news-bydate-train/{name}\n\nend" for name in ("b/3", "b/20", "a/3", "a/20")
    ]
    assert find_reader("20newsgroups", root).check().present
    (tested,) = find_reader("20newsgroups", root).test_paths()
    assert tested.name == "test.jsonl.xz"
    tested.unlink()
    place = root / "20newsgroups"
    assert refusal(read_source, "20newsgroups", root, download=False) == (
        f"dataset '20newsgroups': {place}/test.jsonl.xz is missing; allow the download, or put "
        f"train.jsonl.xz, test.jsonl.xz, classes.json into {place} (see docs/data.md)"
    )
    assert read_source("20newsgroups", root).fingerprint == first.fingerprint
    assert asked == ["all"] * 3
    assert list(root.iterdir()) == [place]


@pytest.mark.shared
def test_twenty_newsgroups_is_whole(shared):
    source = read_source("20newsgroups", shared / "data", download=False)
    assert (len(source.train), len(source.test or ()), source.info.num_classes) == (11314, 7532, 20)


OUTSIDE = {
    b"2": "2 in line 9; expected 0 to 1",
    b"-1": "-1 in line 9; expected 0 to 1",
    b'"%s"' % (b"c" * 38): f"'{'c' * 38}' in line 9 is not a class; classes are 'cat', 'dog'",
    b'"%s"' % (b"c" * 39): f"'{'c' * 39}... in line 9 is not a class; classes are 'cat', 'dog'",
}


@pytest.mark.parametrize("label", OUTSIDE)
def test_a_label_of_no_class_is_named(write, label):
    path = write(["cat", "dog"], train=rows(8)) / "train.jsonl"
    path.write_bytes(path.read_bytes() + b'{"text": "x", "label": %s}\n' % label)
    told = refusal(find_reader(f"text:{path.parent}", "unused").labels)
    assert told == f"{path}: label: {OUTSIDE[label]}"


@pytest.mark.parametrize("ending", [".jsonl", ".csv"])
def test_numeric_names_of_classes_decide_over_numbers(write, ending, tmp_path):
    folder = write(["1", "2", "3"], train=[{"text": "x", "label": 1 + k % 3} for k in range(6)])
    if ending == ".csv":
        (folder / "train.jsonl").unlink()
        pd.DataFrame({"text": "x", "label": [1 + k % 3 for k in range(6)]}).to_csv(
            folder / "train.csv"
        )
    assert read_source(f"text:{folder}", "unused").train.labels.tolist() == [0, 1, 2, 0, 1, 2]


LABEL, TEXT = (
    "`label` must be the number or the name of a class, got",
    "`text` must be a non-empty string, got",
)
KEYS = "each line needs the keys `text` and `label`"
BAD_LINES = {
    b'{"text": "x", "label": true}': f": {LABEL} True",
    b'{"text": "x", "label": " "}': f": {LABEL} ' '",
    b'{"text": "x"}': f": {LABEL} None",
    b'{"text": " ", "label": 0}': f": {TEXT} ' '; {KEYS}",
    b'{"label": 0}': f": {TEXT} None; {KEYS}",
    b"[]": f": {TEXT} ' '; {KEYS}",
    b"{": " is not JSON: ",
    b'{"text": "x", "label": %s}' % (b"1" * 5000): " is not JSON: Exceeds the limit (4300 digits)",
    b"": " is empty; add its text, or remove it",
    b'{"text": "\xff", "label": 0}': (
        " is not UTF-8 (invalid start byte at byte 10); save it as UTF-8"
    ),
}


@pytest.mark.parametrize("line", BAD_LINES)
def test_a_bad_line_is_named(write, line):
    path = write(["cat", "dog"], train=rows(8)) / "train.jsonl"
    path.write_bytes(path.read_bytes() + line + b"\n")
    told = refusal(find_reader(f"text:{path.parent}", "unused").labels)
    assert told.startswith(f"{path}, line 9{BAD_LINES[line]}")


def test_the_status_of_one_file_of_lines(write):
    path = write(train=rows(1200)) / "train.jsonl"
    found = find_reader(f"text:{path}", "unused").check()
    told = "1,200 texts; `split.test` holds out test texts"
    assert found == SourceStatus(True, f"{path}: 2 classes, {told}")
    path.unlink()
    found = find_reader(f"text:{path}", "unused").check()
    told = f"{path} cannot be read: [Errno 2] No such file or directory: '{path}'"
    assert (found.present, found.detail) == (False, told)


def _repack(path: Path, content: bytes) -> None:
    path.unlink()
    path.with_name("train.jsonl.xz").write_bytes(content)


def _half(packed: bytes) -> bytes:
    return packed[: len(packed) // 2]


# What becomes of ``train.jsonl`` or of ``classes.json``, and what is said of it.
SPOILT_LINES: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (
        lambda path: path.write_bytes(b""),
        "train.jsonl is empty; expected one line per text",
    ),
    "no xz": (
        lambda path: _repack(path, b"no xz"),
        "train.jsonl.xz cannot be read: Input format not supported by decoder",
    ),
    "half an xz": (
        lambda path: _repack(path, _half(lzma.compress(path.read_bytes()))),
        "train.jsonl.xz cannot be read: Compressed file ended before the end-of-stream marker",
    ),
    "a gap": (
        lambda path: path.write_text('{"text": "x", "label": 0}\n{"text": "y", "label": 2}\n'),
        "train.jsonl: labels have gaps; without classes.json, they must be 0, 1, ... without gaps",
    ),
    "numbers and names": (
        lambda path: path.write_text('{"text": "x", "label": 0}\n{"text": "y", "label": "b"}\n'),
        "train.jsonl: labels are numbers and names; use one form, or add a classes.json",
    ),
    "nested too deep": (
        lambda path: path.write_bytes(b"[" * 100_000),
        "train.jsonl, line 1 is not JSON: maximum recursion",
    ),
}
NO_CLASSES = 'classes.json: expected {"classes": [NAME, NAME, ...]}'
SPOILT_CLASSES = {
    '{"classes": ["cat", 3]}': NO_CLASSES,
    '["cat", "dog"]': NO_CLASSES,
    "[" * 100_000: "classes.json: maximum recursion",
    '{"classes": ["cat", "dog", "cow", "hen"]}': "train.jsonl: class 'cow' has no training text",
}


def assert_refused(folder: Path, text: str) -> None:
    assert refusal(read_source, f"text:{folder}", "unused").startswith(f"{folder}/{text}")
    assert not find_reader(f"text:{folder}", "unused").check().present


@pytest.mark.parametrize("fault", SPOILT_LINES)
def test_bad_lines_are_named(write, fault):
    folder = write(train=rows(8))
    spoil, text = SPOILT_LINES[fault]
    spoil(folder / "train.jsonl")
    assert_refused(folder, text)


@pytest.mark.parametrize("content", SPOILT_CLASSES, ids=range(len(SPOILT_CLASSES)))
def test_a_bad_list_of_classes_is_named(write, content):
    folder = write(train=rows(8))
    (folder / "classes.json").write_text(content)
    assert_refused(folder, SPOILT_CLASSES[content])


@pytest.mark.parametrize(("content", "text"), [(b"\xe9t\xe9", "not UTF-8"), (b"", "empty; ")])
def test_a_bad_file_of_a_class_is_named(tmp_path, content, text):
    for name in ("cat", "dog"):
        (tmp_path / "own" / name).mkdir(parents=True)
        (tmp_path / "own" / name / "1.txt").write_text("fine")
    (tmp_path / "own" / "dog" / "2.txt").write_bytes(content)
    path = tmp_path / "own" / "dog" / "2.txt"
    with pytest.raises(InputError, match=rf"^{path} is {text}"):
        read_source(f"text:{tmp_path / 'own'}", "unused")


def test_a_folder_without_texts_is_refused_with_the_expected_layout(tmp_path):
    told = refusal(read_source, f"text:{tmp_path / 'none'}", "unused")
    assert told.startswith(f"{tmp_path}/none does not exist or is not a folder; use JSON lines")
    (tmp_path / "cat").mkdir()
    (tmp_path / "dog").mkdir()
    told = refusal(read_source, f"text:{tmp_path}", "unused")
    assert told.startswith(f"{tmp_path}/cat has no text; use JSON lines")


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ({"length": 0}, "inputs.length=0 is outside [1, inf)"),
        ({"vocabulary": "many"}, "inputs.vocabulary='many' is not a number in [1, inf)"),
        (
            {"size": 3},
            "unknown key inputs.size; keys are vocabulary, length, embeddings, text, label",
        ),
        ({"label": 3}, "inputs.label: expected the name of a column, got 3"),
        (
            {"embeddings": "/none/at.all"},
            "inputs.embeddings: /none/at.all does not exist; put a file with one word and its "
            "vector per line there, such as GloVe, or remove `embeddings` to learn them",
        ),
        (
            {"embeddings": "s3://b/x"},
            "inputs.embeddings: 's3://b/x' is a URL; use a path on this machine",
        ),
    ],
)
def test_a_wrong_setting_is_named(inputs, text):
    told = refusal(find_reader, "text:own.jsonl", "unused", inputs)
    assert told == f"dataset 'text:own.jsonl': {text}"


def test_digits_take_no_setting():
    told = refusal(find_reader, "digits", "unused", {"length": 3})
    assert told == "dataset 'digits': unknown key inputs.length; keys are none"


GLOVE = (
    "cats 1 2 3",
    "dogs -1 0.5 0",
    "of 4 5 6",
    ". . . 7 8 9",
    "of you@x.org 7 8 9",
    "unseen 1 1 1",
)


def test_vectors_are_read_from_a_text_file(write, tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text("\n".join(GLOVE) + "\n", encoding="utf-8")
    data = prepared(write(train=rows(40)), tmp_path, embeddings=str(path))
    for inputs in (data.info.inputs, PreparedData.open(data.directory).info.inputs):
        vectors = inputs.shape.vectors
        assert vectors.shape == (len(inputs.words) + 1, 3)
        expected = {"cats": [1, 2, 3], "dogs": [-1, 0.5, 0], "of": [4, 5, 6]}
        for number, word in enumerate(("", *inputs.words)):
            assert vectors[number].tolist() == expected.get(word, [0, 0, 0])
    network = build_model("gpool-cnn", 2, data.info.inputs.shape)
    assert torch.equal(network.state_dict()["extractor.0.weight"], vectors)
    assert "extractor.0.weight" not in dict(network.named_parameters())
    again = prepared(write(train=rows(40)), tmp_path, embeddings=str(path))
    assert again.key == data.key != prepared(write(train=rows(40)), tmp_path).key
    path.write_text("\n".join(GLOVE[1:]) + "\n", encoding="utf-8")
    assert prepared(write(train=rows(40)), tmp_path, embeddings=str(path)).key != data.key


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (("cats 1 2 3", "dogs 1 2"), ", line 2: expected a word and its vector"),
        (("cats 1 2 x",), ", line 1: could not convert string to float: 'x'"),
        (("cats 1 2 nan",), ", line 1: a value is not finite"),
        (("cats",), ", line 1: expected a word and its vector"),
        (("cows 1 2 3",), " has no vector for any of the 33 words of the texts"),
        ((), " has no vector for any of the 33 words of the texts"),
        (
            ("cats 1 2 3", "d\xf6gs 1 2 3"),
            " cannot be read: 'utf-8' codec can't decode byte 0xf6 in position 12: invalid start "
            "byte",
        ),
    ],
)
def test_bad_vectors_are_named(write, tmp_path, lines, text):
    path = tmp_path / "glove.txt"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="latin-1")
    told = refusal(prepared, write(train=rows(40)), tmp_path, embeddings=str(path))
    assert told == f"{path}{text}"

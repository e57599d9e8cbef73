import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from trainables.common.errors import InputError
from trainables.data import (
    GivenLogits,
    PreparedData,
    RowArrays,
    Source,
    SplitSpec,
    _prepared,
    find_prepared,
    find_reader,
    prepare,
    read_source,
)
from trainables.data._prepare import raw_test_paths
from trainables.data._rows import fingerprint
from trainables.data.digits import DigitsReader
from trainables.data.npz import NpzReader


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that were read, in order."""
    seen: list[str] = []
    for reader in (DigitsReader, NpzReader):
        whole = reader.read

        def read(self, download, whole=whole):
            seen.append(self.name)
            return whole(self, download)

        monkeypatch.setattr(reader, "read", read)
    return seen


def test_parts_are_those_of_the_source(digits, tmp_path):
    source = read_source("digits", tmp_path)
    data, test = digits.search(), digits.test()
    for part, arrays in (("train", data.train), ("validation", data.validation), ("test", test)):
        name = "test/indices.npy" if part == "test" else f"search/{part}_indices.npy"
        rows = np.load(digits.directory / name)
        assert len(rows) == digits.counts[part]
        np.testing.assert_array_equal(arrays.values, source.train.values[rows])
        np.testing.assert_array_equal(arrays.labels, source.train.labels[rows])


def test_prepared_data_is_readable_by_others_and_described(digits):
    assert digits.directory.stat().st_mode & 0o777 == 0o755
    # Made once; a change here prepares everybody's data anew.
    assert digits.key == "1875ae12eb60f27b0deab19f74170e74"
    manifest = json.loads((digits.directory / "split.json").read_text())
    for part in ("train", "validation"):
        labels = np.load(digits.directory / "search" / f"{part}_labels.npy")
        assert manifest["class_counts"][part] == np.bincount(labels).tolist()


def test_counts_include_classes_without_rows(archive, write_npz, tmp_path):
    found = prepare(write_npz(archive), tmp_path, SplitSpec(validation=1), tmp_path / "p")
    counts = json.loads((found.directory / "split.json").read_text())["class_counts"]
    held = int(found.search().validation.labels[0])
    assert counts == {
        "train": [9 if label == held else 10 for label in range(4)],
        "validation": [int(label == held) for label in range(4)],
    }


def test_arrays_are_mapped_and_cannot_be_written(digits):
    images = digits.search().train.values
    assert isinstance(images, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        images[0] = 0


def test_noisy_digits_are_the_digits_under_the_same_noise_always(tmp_path):
    plain, noisy = (read_source(name, tmp_path) for name in ("digits", "digits-noisy"))
    assert noisy.fingerprint == "d23a51fa615a1927c99c4cbd009ac2afe138353ccbbaeab33437ddd434bf607e"
    assert noisy.info.source == f"{plain.info.source}; noise of deviation 90 of 255"
    assert (noisy.info.name, noisy.info.inputs) == ("digits-noisy", plain.info.inputs)


def test_open_returns_the_data_of_prepare(digits, monkeypatch):
    assert PreparedData.open(digits.directory) == digits
    monkeypatch.chdir(digits.directory.parent)
    assert PreparedData.open(digits.key) == digits  # Other processes may have another folder.
    assert digits.directory.name == digits.key


def test_key_follows_content_and_split(archive, write_npz, tmp_path):
    name = write_npz(archive)
    first = prepare(name, tmp_path, SplitSpec(), tmp_path / "p")
    other_seed = prepare(name, tmp_path, SplitSpec(seed=1), tmp_path / "p")
    archive["x_test"][0, 0, 0, 0] ^= 1
    changed = prepare(write_npz(archive), tmp_path, SplitSpec(), tmp_path / "p")
    assert len({first.key, other_seed.key, changed.key}) == 3
    assert first.fingerprint == other_seed.fingerprint != changed.fingerprint


@pytest.mark.parametrize("kind", ["npz", "folder", "text", "logits", "voc"])
def test_a_relative_name_means_another_file_elsewhere(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    reader = find_reader(f"{kind}:own/a:b", "raw")
    assert reader.full_name() == f"{kind}:{tmp_path / 'own' / 'a:b'}"
    assert reader.root == tmp_path / "raw"
    assert find_reader("digits", "raw").full_name() == "digits"


def test_fingerprint_follows_form_labels_and_parts():
    def rows(shape: tuple[int, ...], kind: type = np.uint8, first: int = 0) -> RowArrays:
        return RowArrays(np.zeros(shape, kind), np.array([first, 1]))

    plain, wide, other = rows((2, 4)), rows((2, 2, 2)), rows((2, 4), first=1)
    parts = [
        *((plain,), (wide,), (rows((2, 4), np.int8),), (other,)),
        *((plain, None), (plain, plain), (plain, other), (other, plain)),
    ]
    assert len({fingerprint(*its) for its in parts}) == len(parts)
    assert fingerprint(rows((2, 4))) == fingerprint(plain)


@pytest.mark.parametrize("step", [1, 3, 4, 100])
def test_blocks_are_all_rows_in_order(step, monkeypatch):
    monkeypatch.setattr("trainables.data._rows.BLOCK_BYTES", 6 * step)
    rows = RowArrays(np.arange(24, dtype=np.int16).reshape(8, 3), np.arange(8))
    blocks = list(rows.blocks())
    np.testing.assert_array_equal(np.concatenate(blocks), rows.values)
    assert [len(block) for block in blocks[:-1]] == [step] * ((8 - 1) // step)


def test_rows_are_written_in_blocks_with_a_notice_every_few_seconds(tmp_path, monkeypatch):
    told: list[str] = []
    seconds = [0.0]
    monkeypatch.setattr(_prepared, "time", SimpleNamespace(monotonic=lambda: seconds[-1]))

    def blocks() -> Iterator[np.ndarray]:
        for _ in range(7):
            seconds.append(seconds[-1] + 2)
            yield np.full((3, 2), seconds[-1], np.float32)

    _prepared.write_blocks(tmp_path / "a.npy", GivenLogits(2), 21, blocks(), told.append)
    assert told == ["9 of 21 logits", "18 of 21 logits"]
    np.testing.assert_array_equal(
        _prepared.read_array(tmp_path / "a.npy"), np.repeat(seconds[1:], 6).reshape(21, 2)
    )


def test_key_is_free_of_the_path(archive, write_npz, tmp_path):
    name = write_npz(archive)
    first = prepare(name, tmp_path, SplitSpec(), tmp_path / "p")
    copy = tmp_path / "copy.npz"
    copy.write_bytes(Path(name.removeprefix("npz:")).read_bytes())
    second = prepare(f"npz:{copy}", tmp_path, SplitSpec(), tmp_path / "q")
    assert first.key == second.key


def test_sources_of_one_name_in_two_places_are_all_remembered(
    svhn, archive, write_npz, tmp_path, monkeypatch
):
    made = Path(write_npz(archive).removeprefix("npz:"))
    split, places = SplitSpec(validation=10), [tmp_path / "one", tmp_path / "other"]
    for place in places:
        place.mkdir()
        for path in (made, *svhn[0].glob("*.mat")):
            shutil.copy(path, place)
        monkeypatch.chdir(place)
        for name, root in (("svhn", place), ("npz:own.npz", tmp_path)):
            prepare(name, root, split, tmp_path / "p", download=False)
    expected = {place / name for place in places for name in ("test_32x32.mat", "own.npz")}
    assert set(raw_test_paths(tmp_path / "p")) == expected


def test_data_outside_the_root_is_found_from_every_root(archive, write_npz, tmp_path):
    split = SplitSpec(validation=4)
    for name in (write_npz(archive), "digits"):
        made = prepare(name, tmp_path / "data", split, tmp_path / "p")
        assert find_prepared(name, tmp_path / "elsewhere", split, tmp_path / "p") == made


@pytest.mark.parametrize("victim", ["search/train_images.npy", "test/labels.npy", "split.json"])
@pytest.mark.parametrize("how", ["shorter", "flipped", "absent"])
def test_damaged_data_is_made_again(tmp_path, reads, victim, how):
    found = prepare("digits", tmp_path, SplitSpec(), tmp_path / "p")
    before = {name: (found.directory / name).read_bytes() for name in found.files}
    path = found.directory / victim
    content = path.read_bytes()
    if how == "absent":
        path.unlink()
    else:
        path.write_bytes(content[:-1] if how == "shorter" else content[:-1] + b"\x07")
    again = prepare("digits", tmp_path, SplitSpec(), tmp_path / "p")
    assert reads == ["digits", "digits"]
    assert {name: (again.directory / name).read_bytes() for name in again.files} == before
    assert sorted(p.name for p in (tmp_path / "p").iterdir() if p.is_dir()) == sorted(
        [again.key, "sources"]
    )


def test_a_damaged_record_of_a_source_is_passed_over(tmp_path):
    where = ("digits", tmp_path, SplitSpec(), tmp_path / "p")
    made = prepare(*where)
    (path,) = (tmp_path / "p" / "sources").iterdir()
    whole = json.loads(path.read_text())
    assert find_prepared(*where) == made
    strange: list[object] = [[], None, "text", 3, {}]
    for key in ("schema", "fingerprint", "info"):
        strange += [{k: v for k, v in whole.items() if k != key}, {**whole, key: 3}]
    info = whole["info"]
    strange += [{**whole, "info": {**info, "size": 3}}, {**whole, "info": {**info, "more": 3}}]
    strange += [{**whole, "info": {k: v for k, v in info.items() if k != key}} for key in info]
    for document in strange:
        path.write_text(json.dumps(document))
        assert find_prepared(*where) is None
    before = tmp_path / "before"
    before.hardlink_to(path)
    assert prepare(*where) == made
    assert json.loads(path.read_text()) == whole
    # Replaced and not written over: a process that reads it meanwhile sees all of one or the other.
    assert json.loads(before.read_text()) == strange[-1]


def test_rows_that_an_older_edition_of_a_reader_stored_are_read_again(tmp_path, monkeypatch):
    np.savez(tmp_path / "a.npz", logits=np.arange(8).reshape(4, 2), labels=[0, 1, 0, 1])
    where = (f"logits:{tmp_path / 'a.npz'}", tmp_path, SplitSpec("all", 0.5), tmp_path / "p")
    with monkeypatch.context() as older:
        older.setattr("trainables.data.logits.LogitsReader.edition", 0)
        made = prepare(*where)
    assert find_prepared(*where) is None
    assert prepare(*where) == made == find_prepared(*where)


def test_open_names_the_damaged_file(tmp_path):
    with pytest.raises(InputError, match=rf"^{tmp_path}/split\.json cannot be read: "):
        PreparedData.open(tmp_path)
    found = prepare("digits", tmp_path, SplitSpec(), tmp_path / "p")
    path = found.directory / "search" / "train_labels.npy"
    size = path.stat().st_size
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"\x07")
    with pytest.raises(InputError, match=rf"^{path} does not match its checksum$"):
        found.verify()
    path.unlink()
    with pytest.raises(InputError, match=rf"^{path} is missing$"):
        found.verify()
    with pytest.raises(InputError, match=rf"^{path} is missing$"):
        PreparedData.open(found.directory)
    path.touch()
    with pytest.raises(InputError, match=rf"^{path} has 0 bytes, not {size}$"):
        PreparedData.open(found.directory)
    with pytest.raises(InputError, match=rf"^{path} cannot be read: No data left"):
        found.search()


@pytest.mark.parametrize(
    "header", ["{'descr'", "{'descr': ',', 'fortran_order': False, 'shape': (3,)}", "(" * 4000, ""]
)
def test_an_array_whose_head_is_damaged_is_named(header, tmp_path):
    path = tmp_path / "a.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode())
    for content in (path.read_bytes(), b"PK\x03\x04", b"\x80"):
        path.write_bytes(content)
        with pytest.raises(InputError, match=rf"^{path} cannot be read: "):
            _prepared.read_array(path)


def test_files_of_the_right_size_with_other_rows_are_refused(tmp_path):
    found = prepare("digits", tmp_path, SplitSpec(), tmp_path / "p")
    images = found.directory / "search" / "train_images.npy"
    labels = found.directory / "search" / "train_labels.npy"
    whole, numbers = np.load(images), np.load(labels)
    np.save(images, whole.reshape(-1, 8, 4, 2))
    folder = found.directory / "search"
    with pytest.raises(InputError, match=rf"^{folder} cannot be read: images have 2 channels"):
        PreparedData.open(found.directory).search()
    np.save(images, whole)
    np.save(labels, numbers.view(np.int32).reshape(-1, 2)[:, 0].repeat(2))
    with pytest.raises(InputError, match=rf"^{folder} cannot be read: labels: expected int64"):
        PreparedData.open(found.directory).search()


def test_a_manifest_of_impossible_values_is_refused_by_its_name(tmp_path):
    found = prepare("digits", tmp_path, SplitSpec(), tmp_path / "p")
    path = found.directory / "split.json"
    whole = json.loads(path.read_text())
    another = "is not a manifest of version 1$"
    refused = [
        ([], another),
        ({}, another),
        ({**whole, "schema": 2}, another),
        ({"schema": 1}, "is damaged: "),
        ({"schema": 1, "key": "k", "info": 3}, "is damaged: "),
        ({**whole, "split": {"validation": 0}}, "is damaged: "),
        ({**whole, "split": {"unknown": 1}}, "is damaged: "),
        ({**whole, "info": {**whole["info"], "classes": ["one"]}}, "is damaged: "),
        ({**whole, "info": {**whole["info"], "kind": "sounds"}}, "is damaged: "),
        ({**whole, "files": {"search/train_labels.npy": {}}}, "is damaged: "),
    ]
    texts = [(json.dumps(document), text) for document, text in refused]
    for content, text in (*texts, ("[" * 100_000, "cannot be read: ")):
        path.write_text(content)
        with pytest.raises(InputError, match=f"^{path} {text}"):
            PreparedData.open(found.directory)
        assert prepare("digits", tmp_path, SplitSpec(), tmp_path / "p") == found


def test_threads_at_once_read_once(tmp_path, reads):
    with ThreadPoolExecutor(4) as pool:
        found = list(
            pool.map(lambda _: prepare("digits", tmp_path, SplitSpec(), tmp_path / "p"), range(4))
        )
    assert len({prepared.key for prepared in found}) == 1
    assert reads == ["digits"]


def test_too_small_for_the_split(tmp_path):
    told = r"^dataset 'digits': split train_limit=5: expected 10 to 1213 rows, got 5$"
    with pytest.raises(InputError, match=told):
        prepare("digits", tmp_path, SplitSpec(train_limit=5), tmp_path / "p")


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        (np.zeros(2, np.int32), "^labels: expected int64, got int32$"),
        (np.zeros(2), r"^labels: expected integers, got float64 \(2,\)$"),
        (np.zeros(3, np.int64), "2 rows but 3 labels"),
        (np.array([0, -1]), "labels: expected 0 to .*, got -1$"),
        (np.array([2**31, 0]), f"labels: expected 0 to {2**31 - 1}, got {2**31}"),
        (np.zeros((2, 1), np.int64), r"labels: expected shape \(N,\), got \(2, 1\)"),
    ],
)
def test_labels_are_checked(labels, text):
    RowArrays(np.zeros((2, 3, 3, 1), np.uint8), np.array([0, 2**31 - 1]))
    RowArrays(np.zeros((0, 3, 3, 1), np.uint8), np.zeros(0, np.int64))
    with pytest.raises(ValueError, match=text):
        RowArrays(np.zeros((2, 3, 3, 1), np.uint8), labels)


@pytest.mark.parametrize("part", ["train", "test"])
def test_labels_are_those_of_classes(part, tmp_path):
    source = read_source("digits", tmp_path)
    parts = {"train": source.train, "test": source.train}
    Source(source.info, **parts, fingerprint="")
    parts[part] = RowArrays(source.train.values[:2], np.array([0, 10]))
    with pytest.raises(ValueError, match=r"label 10 is outside \[0, 9\]"):
        Source(source.info, **parts, fingerprint="")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (np.zeros((2, 8, 8, 1)), r"images: expected uint8 \(8, 8, 1\), got float64 \(8, 8, 1\)"),
        (np.zeros((2, 8, 8), np.uint8), r"images: expected .*, got uint8 \(8, 8\)$"),
        (np.zeros((2, 8, 9, 1), np.uint8), r"images: expected .*, got uint8 \(8, 9, 1\)$"),
    ],
)
def test_rows_are_checked(values, text, tmp_path):
    info = read_source("digits", tmp_path).info
    with pytest.raises(ValueError, match=text):
        Source(info, RowArrays(values, np.zeros(2, np.int64)), None, "")


def test_another_copy_of_the_source_reuses_prepared_data(tmp_path):
    first = prepare("digits", tmp_path / "one", SplitSpec(), tmp_path / "p")
    made = first.directory.stat().st_ino
    again = prepare("digits", tmp_path / "two", SplitSpec(), tmp_path / "p")
    assert again.directory == first.directory
    assert again.directory.stat().st_ino == made
    (first.directory / "split.json").write_text("damaged")
    mended = prepare("digits", tmp_path / "three", SplitSpec(), tmp_path / "p")
    assert mended.directory.stat().st_ino != made

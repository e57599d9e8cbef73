"""Prepared data: stored once, found again, never used when damaged."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from trainables.common.errors import InputError
from trainables.data import PreparedData, RowArrays, Source, SplitSpec, prepare, read_source
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


def test_parts_are_those_of_the_source(digits: PreparedData, tmp_path: Path):
    source = read_source("digits", tmp_path)
    data, test = digits.search(), digits.test()
    for part, arrays in (("train", data.train), ("validation", data.validation), ("test", test)):
        name = "test/indices.npy" if part == "test" else f"search/{part}_indices.npy"
        rows = np.load(digits.directory / name)
        assert len(rows) == digits.counts[part]
        np.testing.assert_array_equal(arrays.values, source.train.values[rows])
        np.testing.assert_array_equal(arrays.labels, source.train.labels[rows])


def test_arrays_are_mapped_and_cannot_be_written(digits: PreparedData):
    images = digits.search().train.values
    assert isinstance(images, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        images[0] = 0


def test_noisy_digits_are_the_digits_under_the_same_noise_always(tmp_path: Path):
    plain, noisy = (read_source(name, tmp_path) for name in ("digits", "digits-noisy"))
    np.testing.assert_array_equal(noisy.train.labels, plain.train.labels)
    middle = (plain.train.values > 110) & (plain.train.values < 145)
    noise = noisy.train.values[middle].astype(int) - plain.train.values[middle]
    assert abs(noise.mean()) < 1
    assert 75 < noise.std() < 85  # Of 90, before black and white cut it off.
    assert noisy.fingerprint == "d23a51fa615a1927c99c4cbd009ac2afe138353ccbbaeab33437ddd434bf607e"
    assert "noise" in noisy.info.source


def test_open_gives_what_prepare_gave(digits: PreparedData):
    assert PreparedData.open(digits.directory) == digits
    assert digits.directory.name == digits.key


def test_second_time_reads_nothing(tmp_path: Path, reads: list[str]):
    first, second = (prepare("digits", tmp_path, SplitSpec(), tmp_path / "p") for _ in range(2))
    assert first == second
    assert reads == ["digits"]


def test_key_follows_content_and_split(archive, write_npz, tmp_path: Path):
    name = write_npz(archive)
    first = prepare(name, tmp_path, SplitSpec(), tmp_path / "p")
    other_seed = prepare(name, tmp_path, SplitSpec(seed=1), tmp_path / "p")
    archive["x_test"][0, 0, 0, 0] ^= 1
    changed = prepare(write_npz(archive), tmp_path, SplitSpec(), tmp_path / "p")
    assert len({first.key, other_seed.key, changed.key}) == 3
    assert first.fingerprint == other_seed.fingerprint != changed.fingerprint


def test_key_is_free_of_the_path(archive, write_npz, tmp_path: Path):
    name = write_npz(archive)
    first = prepare(name, tmp_path, SplitSpec(), tmp_path / "p")
    copy = tmp_path / "copy.npz"
    copy.write_bytes(Path(name.removeprefix("npz:")).read_bytes())
    second = prepare(f"npz:{copy}", tmp_path, SplitSpec(), tmp_path / "q")
    assert first.key == second.key


@pytest.mark.parametrize("victim", ["search/train_images.npy", "test/labels.npy", "split.json"])
@pytest.mark.parametrize("how", ["shorter", "flipped", "absent"])
def test_damaged_data_is_made_again(tmp_path: Path, reads: list[str], victim: str, how: str):
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


def test_open_names_what_is_wrong(tmp_path: Path):
    with pytest.raises(InputError, match=r"split\.json cannot be read"):
        PreparedData.open(tmp_path)
    found = prepare("digits", tmp_path, SplitSpec(), tmp_path / "p")
    (found.directory / "search" / "train_labels.npy").unlink()
    with pytest.raises(InputError, match=r"train_labels\.npy is absent"):
        PreparedData.open(found.directory)


@pytest.mark.parametrize("document", [[], {}, {"schema": 1}, {"schema": 1, "key": "k", "info": 3}])
def test_open_refuses_a_wrong_manifest(tmp_path: Path, document):
    (tmp_path / "split.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match=r"split\.json"):
        PreparedData.open(tmp_path)


def test_threads_at_once_read_once(tmp_path: Path, reads: list[str]):
    with ThreadPoolExecutor(4) as pool:
        found = list(
            pool.map(lambda _: prepare("digits", tmp_path, SplitSpec(), tmp_path / "p"), range(4))
        )
    assert len({prepared.key for prepared in found}) == 1
    assert reads == ["digits"]


def _prepare_into(queue, folder: Path) -> None:
    queue.put(prepare("digits", folder, SplitSpec(), folder / "p").key)


def test_processes_at_once(tmp_path: Path):
    context = get_context("fork")
    queue = context.SimpleQueue()
    running = [context.Process(target=_prepare_into, args=(queue, tmp_path)) for _ in range(3)]
    for process in running:
        process.start()
    keys = {queue.get() for _ in running}
    for process in running:
        process.join()
    assert [process.exitcode for process in running] == [0, 0, 0]
    (key,) = keys
    PreparedData.open(tmp_path / "p" / key).verify()


def test_too_small_for_the_split(tmp_path: Path):
    with pytest.raises(InputError, match="dataset 'digits': split train_limit=5"):
        prepare("digits", tmp_path, SplitSpec(train_limit=5), tmp_path / "p")


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        (np.zeros(2, np.int32), "labels is int32"),
        (np.zeros(3, np.int64), "2 rows but 3 labels"),
        (np.array([0, -1]), "labels holds -1"),
    ],
)
def test_labels_are_checked(labels: np.ndarray, text: str):
    with pytest.raises(ValueError, match=text):
        RowArrays(np.zeros((2, 3, 3, 1), np.uint8), labels)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (np.zeros((2, 8, 8, 1)), r"images are float64 \(8, 8, 1\), expected uint8 \(8, 8, 1\)"),
        (np.zeros((2, 8, 8), np.uint8), r"images are uint8 \(8, 8\), expected"),
        (np.zeros((2, 8, 9, 1), np.uint8), r"images are uint8 \(8, 9, 1\), expected"),
    ],
)
def test_rows_are_checked(values: np.ndarray, text: str, tmp_path: Path):
    info = read_source("digits", tmp_path).info
    with pytest.raises(ValueError, match=text):
        Source(info, RowArrays(values, np.zeros(2, np.int64)), None, "")

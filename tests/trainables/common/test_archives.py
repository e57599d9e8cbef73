import io
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import psutil
import pytest

from trainables.common.archives import ArrayArchive, ArrayHeader
from trainables.common.errors import InputError
from trainables.data import find_reader, read_logits, read_source

ROWS = 6
DATA = {
    "x_train": np.arange(ROWS * 16, dtype=np.uint8).reshape(ROWS, 4, 4, 1),
    "y_train": np.arange(ROWS) % 2,
    "x_test": np.zeros((ROWS, 4, 4, 1), np.uint8),
    "y_test": np.arange(ROWS) % 2,
}
LOGITS = {"logits": np.eye(ROWS, 2, dtype=np.float32), "labels": np.arange(ROWS) % 2}


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def headed(dtype: str, shape: Any, body: bytes = b"") -> bytes:
    """Return an ``.npy`` file that claims a type and a shape."""
    buffer = io.BytesIO()
    fields = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, fields)
    return buffer.getvalue() + body


def spelled(header: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()


def write(path: Path, members: dict[str, bytes], packing: int = zipfile.ZIP_DEFLATED) -> None:
    with zipfile.ZipFile(path, "w", packing) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def claim_size(path: Path, size: int, packed: bool) -> None:
    """Have the archive's directory claim an unpacked size of its last member, or a packed too."""
    content = bytearray(path.read_bytes())
    entry = content.rindex(b"PK\x01\x02")
    for place in (20, 24) if packed else (24,):
        content[entry + place : entry + place + 4] = size.to_bytes(4, "little")
    path.write_bytes(content)


MEMBERS: dict[str, tuple[bytes, str]] = {
    "10^12 rows": (headed("u1", (10**12, 4, 4, 1)), "header says uint8 (1000000000000, 4, 4, 1)"),
    "10^30 rows": (headed("u1", (10**30, 4, 4, 1)), "but the archive has another size"),
    "one row too many": (headed("u1", (2, 4, 4, 1), bytes(16)), "32 bytes, but the archive"),
    "rows behind the last": (headed("u1", (1, 4, 4, 1), bytes(17)), "16 bytes, but the archive"),
    "negative rows": (headed("u1", (-1, 4, 4, 1)), "is negative"),
    "long strings": (headed("U250000000", (ROWS,)), "but the archive has another size"),
    "objects": (npy(np.array([object()])), "Python objects, which are never loaded"),
    "fields": (npy(np.zeros(ROWS, [("a", "u1")])), ""),
    "named fields": (npy(np.zeros(ROWS, [("ä\u20ac", "u1")])), ""),
    "no array": (b"some text", "magic string"),
    "nothing": (b"", ""),
    "cut header": (headed("u1", (ROWS, 4, 4, 1))[:40], ""),
    "no header": (b"\x93NUMPY\x01\x00\x05\x00abcde", ""),
    "deep header": (b"\x93NUMPY\x01\x00\xff\x0f" + b"(" * 4095, ""),
    "a type that is a comma": (
        spelled("{'descr': ',', 'fortran_order': False, 'shape': (3,)}"),
        "",
    ),
    "a type of one part": (
        spelled("{'descr': ('<f4',), 'fortran_order': False, 'shape': (3,)}"),
        "",
    ),
    "keys without an order": (spelled("{1: 2, 'a': 3}"), ""),
    "another version": (b"\x93NUMPY\x09\x00\x05\x00abcde", ""),
}


def assert_refused(read: Callable[[], Any], expected: str) -> None:
    with pytest.raises(InputError) as caught:
        read()
    said = str(caught.value)
    assert said.isprintable()
    assert "own.npz" in said
    assert expected in said


@pytest.mark.parametrize("fault", MEMBERS)
def test_an_archive_member_that_is_no_array_is_refused(tmp_path, fault):
    content, expected = MEMBERS[fault]
    path = tmp_path / "own.npz"
    for arrays in (DATA, LOGITS):
        for key in arrays:
            members = {f"{name}.npy": npy(array) for name, array in arrays.items()}
            write(path, {**members, f"{key}.npy": content})
            if arrays is LOGITS:
                assert_refused(lambda: read_logits(path), expected)
                continue
            assert_refused(lambda: read_source(f"npz:{path}", "unused"), expected)
            status = find_reader(f"npz:{path}", "unused").check()
            assert not status.present
            assert expected in status.detail


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("packing", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_directory_with_the_wrong_size_of_the_header_is_refused(tmp_path, packing, packed):
    shape = (4 * 10**9 // 16, 4, 4, 1)
    content = headed("u1", shape)
    members = {f"{key}.npy": npy(array) for key, array in DATA.items() if key != "x_train"}
    write(tmp_path / "own.npz", {**members, "x_train.npy": content}, packing)
    claim_size(tmp_path / "own.npz", len(content) + 4 * 10**9, packed)
    tracemalloc.start()
    # Newer versions of zipfile see for themselves that members would overlap.
    expected = "cannot be read" if packed else "another size"
    assert_refused(lambda: read_source(f"npz:{tmp_path / 'own.npz'}", "unused"), expected)
    assert tracemalloc.get_traced_memory()[1] < 10**8
    tracemalloc.stop()


def test_an_archive_that_unpacks_to_more_than_the_free_memory_is_refused(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "own.npz", zeros=np.zeros(10**7, np.uint8))
    free = SimpleNamespace(available=10**7)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    assert ArrayArchive(tmp_path / "own.npz").read("zeros").nbytes == 10**7
    free.available -= 1
    assert_refused(lambda: ArrayArchive(tmp_path / "own.npz").read("zeros"), "0.0 GiB are free")
    claimed = ArrayHeader(np.dtype("f4"), (5, 2**27))
    monkeypatch.setattr(ArrayArchive, "header", lambda *_: claimed)
    free.available = 3 * 2**29
    expected = "it needs 2.5 GiB of memory, 1.5 GiB are free"
    assert_refused(lambda: ArrayArchive(tmp_path / "own.npz").read("zeros"), expected)


@pytest.mark.parametrize("packing", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compressions_other_than_numpys_are_refused(tmp_path, packing):
    write(tmp_path / "own.npz", {f"{key}.npy": npy(a) for key, a in DATA.items()}, packing)
    assert_refused(lambda: read_source(f"npz:{tmp_path / 'own.npz'}", "unused"), "compression")


@pytest.mark.parametrize("kind", [MemoryError, OverflowError])  # Others come of members above.
def test_errors_of_numpy_become_input_errors(tmp_path, kind, monkeypatch):
    path = tmp_path / "own.npz"
    np.savez(path, **DATA)
    monkeypatch.setattr(np, "load", Mock(side_effect=kind("no\nway")))
    with pytest.raises(InputError) as caught:
        ArrayArchive(path).read("y_test")
    assert str(caught.value) == f"{path}: key 'y_test' cannot be read: no way"


def test_a_member_that_needs_a_password(tmp_path):
    np.savez(tmp_path / "own.npz", **DATA)
    content = bytearray((tmp_path / "own.npz").read_bytes())
    content[content.rindex(b"PK\x01\x02") + 8] |= 1
    content[content.rindex(b"PK\x03\x04") + 6] |= 1
    (tmp_path / "own.npz").write_bytes(content)
    assert_refused(lambda: ArrayArchive(tmp_path / "own.npz").read("y_test"), "password")


def test_a_cut_archive(tmp_path):
    path = tmp_path / "own.npz"
    np.savez(path, **DATA)
    content = path.read_bytes()
    assert len(content) > 1200
    for length in range(0, 1200, 61):
        path.write_bytes(content[:length])
        told = "own.npz is not an intact .npz archive: "
        assert_refused(lambda: read_source(f"npz:{path}", "unused"), told)
        assert_refused(lambda: read_logits(path), told)


def test_a_flipped_bit_in_an_archive_is_refused_or_changes_no_value(tmp_path):
    path = tmp_path / "own.npz"
    np.savez_compressed(path, **DATA)
    whole = path.read_bytes()
    for seed in range(60):
        content, rng = bytearray(whole), np.random.default_rng(seed)
        content[rng.integers(len(content))] ^= 1 << rng.integers(8)
        path.write_bytes(content)
        try:
            source = read_source(f"npz:{path}", "unused")
        except InputError as error:
            said = str(error)
            assert_refused(lambda: read_source(f"npz:{path}", "unused"), said)
        else:
            np.testing.assert_array_equal(source.train.values, DATA["x_train"])


def test_an_archive_is_read_as_numpy_reads_it(tmp_path):
    arrays = {
        "plain": np.arange(6),
        "turned": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "swapped": np.arange(6, dtype=">i4"),
        "single": np.array(3.0),
        "none": np.zeros((0, 4), np.uint8),
        "texts": np.array(["a", "bc"]),
    }
    np.savez(tmp_path / "own.npz", **arrays)
    archive = ArrayArchive(tmp_path / "own.npz")
    assert archive.names == list(arrays)
    for name, array in arrays.items():
        header = archive.header(name)
        assert (header.dtype, header.shape, header.ndim) == (array.dtype, array.shape, array.ndim)
        np.testing.assert_array_equal(archive.read(name), array)


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
def test_both_formats_of_plain_arrays_are_read(tmp_path, version):
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.arange(6), version)
    write(tmp_path / "own.npz", {"x.npy": buffer.getvalue()})
    np.testing.assert_array_equal(ArrayArchive(tmp_path / "own.npz").read("x"), np.arange(6))


def test_a_missing_array_is_refused_with_the_existing_names(tmp_path):
    path = tmp_path / "own.npz"
    for arrays, there in ((LOGITS, "logits, labels"), ({}, "none")):
        np.savez(path, **arrays)
        with pytest.raises(InputError) as caught:
            ArrayArchive(path).read("x")
        told = f"{path}: key 'x' cannot be read: it does not exist; keys are {there}"
        assert str(caught.value) == told
    path.unlink()
    with pytest.raises(InputError, match=rf"^{path} does not exist$"):
        ArrayArchive(path)

"""Reads files of logits that somebody else wrote, trusting nothing in them; writes whole files."""

from __future__ import annotations

import codecs
import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from torch import Tensor

from trainables.calibrators import check_rows
from trainables.common.archives import ArrayArchive
from trainables.common.errors import InputError
from trainables.common.files import drafted
from trainables.common.paths import local_path

KINDS = ("logits", "probs")
SCORE_ARRAYS = {"logits": "logits", "probs": "probs", "predictions": None}
LABEL_ARRAYS = ("labels", "ground_truth")
SUM_TOLERANCE = 1e-3
ROWS_AT_ONCE = 4096
ROW_RANGE = re.compile(r"(\d{0,18}):(\d{0,18})")


@dataclass(frozen=True)
class LogitRows:
    """Logits (N, K), float32 or float64, and labels (N,), int64, of some rows."""

    logits: Tensor
    labels: Tensor

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.labels)

    def take(self, rows: slice) -> LogitRows:
        """Return a view of some rows."""
        return LogitRows(self.logits[rows], self.labels[rows])


@dataclass(frozen=True)
class LogitFile:
    """What one file holds.

    Attributes:
        name: The file's name without its ending.
        rows: All rows; of a pickled pair, the second part (test).
        fit: Of a pickled pair, the first part (validation); None for other files.
    """

    name: str
    rows: LogitRows
    fit: LogitRows | None = None


def read_logits(path: str | Path, kind: str | None = None) -> LogitFile:
    """Read a file of logits or probabilities.

    A ``.npz`` holds ``logits`` or ``probs`` with ``labels``, or netcal's ``predictions`` with
    ``ground_truth``; a ``.p``, ``.pkl`` or ``.pickle`` holds the pair of pairs
    ``((validation scores, labels), (test scores, labels))`` of the NN_calibration collection and is
    read by an unpickler that knows NumPy arrays and nothing else. Probabilities become logarithms;
    a probability of 0 counts as the smallest normal number of its precision.

    Args:
        path: The file.
        kind: ``logits`` or ``probs``; needed unless the array is named so. It is never guessed.

    Raises:
        InputError: If the file cannot be read, does not say what it holds, contradicts ``kind``, or
            holds wrong shapes, values or labels.
    """
    place = Path(path)
    if kind is not None and kind not in KINDS:
        raise InputError(f"kind={kind!r} is not one of {', '.join(KINDS)}")
    if not local_path(place, "logits").is_file():
        raise InputError(f"{place}: no such file")
    if place.suffix == ".npz":
        return LogitFile(place.stem, _read_npz(place, kind))
    if place.suffix in (".p", ".pkl", ".pickle"):
        return _read_pair(place, kind)
    raise InputError(f"{place}: ending {place.suffix!r}, allowed are .npz, .p, .pkl, .pickle")


def parse_rows(text: str, count: int) -> slice:
    """Turn ``0:5000`` into a slice of ``count`` rows; either end may be left out.

    Raises:
        InputError: If the text is no range, or the range is empty or ends behind the last row.
    """
    match = ROW_RANGE.fullmatch(text.strip())
    if match is None:
        raise InputError(f"rows {text!r}: expected START:STOP, such as 0:5000")
    start, stop = int(match[1] or 0), int(match[2] or count)
    if not 0 <= start < stop <= count:
        raise InputError(f"rows {text!r}: allowed are 0 <= START < STOP <= {count}")
    return slice(start, stop)


def make_folder(folder: str | Path) -> Path:
    """Return a folder for results, which is made if need be.

    Raises:
        InputError: If it is a URL, or cannot be made, for instance because a file has its name.
    """
    place = Path(folder)
    local_path(place, "results")
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{place}: cannot be a folder for results ({error.strerror})") from error
    return place


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file, or leave what was there.

    Raises:
        InputError: If it cannot be written.
    """
    try:
        with drafted(path) as draft, draft.open("wb") as stream:
            write(stream)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error


def save_log_probs(path: Path, log_probs: Tensor, labels: Tensor) -> None:
    """Write log-probabilities as ``logits`` with ``labels``, which ``read_logits`` reads again.

    Raises:
        InputError: If the file cannot be written.
    """
    logits, truth = log_probs.numpy(), labels.numpy()
    write_whole(path, lambda stream: np.savez(stream, logits=logits, labels=truth))


def _read_npz(path: Path, kind: str | None) -> LogitRows:
    archive = ArrayArchive(path)
    scores_name = _only(path, archive.names, tuple(SCORE_ARRAYS), "scores")
    labels_name = _only(path, archive.names, LABEL_ARRAYS, "labels")
    scores, labels = archive.read(scores_name), archive.read(labels_name)
    named = SCORE_ARRAYS[scores_name]
    if named is not None and kind not in (None, named):
        raise InputError(f"{path}: its array is named {scores_name!r}, but kind={kind!r} was given")
    return _rows(path, scores, labels, _need_kind(path, named or kind))


def _only(path: Path, names: list[str], wanted: tuple[str, ...], what: str) -> str:
    found = [name for name in wanted if name in names]
    if len(found) != 1:
        raise InputError(
            f"{path}: {what}: expected exactly one array named {' or '.join(wanted)}; "
            f"the file has {', '.join(names) or 'none'}"
        )
    return found[0]


def _need_kind(path: Path, kind: str | None) -> str:
    if kind is None:
        raise InputError(f"{path}: does not say what it holds; give the kind: {', '.join(KINDS)}")
    return kind


def _rows(path: Path, scores: Any, labels: Any, kind: str) -> LogitRows:
    values = _numbers(path, scores, "scores", "fiu")
    targets = _numbers(path, labels, "labels", "iu")
    if targets.ndim == 2 and targets.shape[1] == 1:
        targets = targets[:, 0]
    if kind == "probs":
        values = _log(path, values)
    try:
        logits, checked = check_rows(values, targets.astype(np.int64))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    return LogitRows(logits, checked)


def _numbers(path: Path, values: Any, what: str, kinds: str) -> np.ndarray:
    if not isinstance(values, np.ndarray) or values.dtype.kind not in kinds:
        found = values.dtype if isinstance(values, np.ndarray) else type(values).__name__
        wanted = "an array of whole numbers" if kinds == "iu" else "an array of numbers"
        raise InputError(f"{path}: {what}: expected {wanted}, found {found}")
    if values.dtype.kind == "f" and values.dtype.itemsize not in (4, 8):
        values = values.astype(np.float32 if values.dtype.itemsize < 4 else np.float64)
    return np.ascontiguousarray(values.astype(values.dtype.newbyteorder("="), copy=False))


def _log(path: Path, probs: np.ndarray) -> np.ndarray:
    """Return the logarithms of probabilities (N, K), a few thousand rows at a time."""
    if probs.ndim != 2 or probs.dtype.kind != "f":
        raise InputError(
            f"{path}: probabilities: expected floating values of shape (N, K), found "
            f"{probs.dtype} of shape {probs.shape}"
        )
    floor, out = np.finfo(probs.dtype).tiny, np.empty_like(probs)
    for start in range(0, len(probs), ROWS_AT_ONCE):
        part = probs[start : start + ROWS_AT_ONCE]
        off = np.abs(part.sum(axis=1, dtype=np.float64) - 1)
        wrong = ~(off <= SUM_TOLERANCE) | (part < 0).any(axis=1)
        if wrong.any():
            row = int(wrong.argmax())
            raise InputError(
                f"{path}: row {start + row} is no set of probabilities: sum "
                f"{part[row].sum():.6g}, smallest {part[row].min():.6g}; a sum of 1 and no "
                "negative value are allowed (or give kind=logits)"
            )
        np.log(np.maximum(part, floor), out=out[start : start + ROWS_AT_ONCE])
    return out


def _read_pair(path: Path, kind: str | None) -> LogitFile:
    try:
        with path.open("rb") as file:
            content = ArrayUnpickler(file).load()
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except Exception as error:
        # a damaged pickle may raise anything at all, and all of it means the same
        raise InputError(f"{path}: cannot be read as a pickled pair ({error})") from error
    needed = _need_kind(path, kind)
    pairs = [_pair(path, pair) for pair in _pair(path, content)]
    first, second = (_rows(path, scores, labels, needed) for scores, labels in pairs)
    if first.logits.shape[1] != second.logits.shape[1]:
        raise InputError(
            f"{path}: {first.logits.shape[1]} classes for validation, "
            f"{second.logits.shape[1]} for test; they must agree"
        )
    return LogitFile(path.stem, second, first)


def _pair(path: Path, content: Any) -> tuple[Any, Any]:
    if not isinstance(content, tuple | list) or len(content) != 2:
        raise InputError(
            f"{path}: expected ((validation scores, labels), (test scores, labels)), "
            f"found {type(content).__name__}"
        )
    return content[0], content[1]


def _latin1(text: str, encoding: str) -> bytes:
    """Stand in for ``codecs.encode``, with which old pickles spell bytes."""
    if codecs.lookup(encoding).name != "iso8859-1":
        raise InputError(f"pickle asks for the codec {encoding!r}, only latin1 is allowed")
    return text.encode("latin1")


def _array_parts() -> dict[tuple[str, str], Any]:
    reconstruct = np.zeros(0).__reduce__()[0]
    buffers = np.zeros(1).__reduce_ex__(5)[0]
    homes = ("numpy.core", "numpy._core")
    return {
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): _latin1,
        **{(f"{home}.multiarray", "_reconstruct"): reconstruct for home in homes},
        **{(f"{home}.numeric", "_frombuffer"): buffers for home in homes},
    }


class ArrayUnpickler(pickle.Unpickler):
    """An unpickler for NumPy arrays in tuples and lists; any other name is an error."""

    _known = _array_parts()

    def __init__(self, file: Any) -> None:
        super().__init__(file, encoding="latin1")

    def find_class(self, module: str, name: str) -> Any:
        """Return one of the few callables that build an array; refuse anything else."""
        if (module, name) not in self._known:
            raise InputError(f"pickle asks for {module}.{name}; only NumPy arrays are allowed")
        return self._known[module, name]

    def persistent_load(self, pid: Any) -> Any:
        """Refuse references to anything outside the file."""
        raise InputError(f"pickle refers to {pid!r} outside the file; only arrays are allowed")

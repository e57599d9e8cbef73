"""Reads files of logits that somebody else wrote, trusting nothing in them."""

from __future__ import annotations

import codecs
import pickle
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from trainables.common.archives import ArrayArchive
from trainables.common.errors import InputError
from trainables.common.logit_rows import ROWS_AT_ONCE, check_rows
from trainables.common.paths import local_path
from trainables.data._labels import note, number_names, plain_labels, shown_names
from trainables.data._logit_arrays import (
    HDF5,
    ArrayFiles,
    NamedArrays,
    ScoreTable,
    find_sets,
    plain_name,
    read_set,
    split_address,
)
from trainables.data._tables import TABLES

KINDS = ("logits", "probs")
SCORE_ARRAYS = {"logits": "logits", "probs": "probs", "predictions": None}
LABEL_ARRAYS = ("labels", "ground_truth")
CLASSES = "classes"
PARTS = ("fit", "test")
PICKLES = (".p", ".pkl", ".pickle")
ENDINGS = (".npz", ".npy", *TABLES, *PICKLES, *HDF5)
SUM_TOLERANCE = 1e-3

Part = tuple[Any, Any, str | None]
"""Scores, labels and the kind of the scores."""


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
    """What one file, or one set of a file of several, holds.

    Attributes:
        name: The file's name without its ending, or the set's name.
        rows: All rows; those to judge on (test) where the file has two parts.
        fit: The rows to fit on (validation) where the file has two parts; else None.
    """

    name: str
    rows: LogitRows
    fit: LogitRows | None = None


def read_logits(path: str | Path, kind: str | None = None) -> LogitFile:
    """Read a file of logits or probabilities.

    A ``.npz`` holds ``logits`` or ``probs`` with ``labels``, or netcal's ``predictions`` with
    ``ground_truth``; or two parts of them, as ``logits_fit``, ``labels_fit``, ``logits_test`` and
    ``labels_test``. Files ``.npy`` of one folder are as the arrays of an archive, those whose names
    differ in these words alone; the path is that of the scores. A ``.csv``, ``.tsv`` or
    ``.parquet`` has a column ``label`` and a column ``logit_CLASS`` or ``prob_CLASS`` for each
    class, or ``logits`` or ``probs`` as a list a row. A ``.p``, ``.pkl`` or ``.pickle`` holds the
    pair of pairs ``((validation scores, labels), (test scores, labels))`` of the NN_calibration
    collection and is read by an unpickler that knows NumPy arrays and nothing else. A ``.h5`` or
    ``.hdf5`` in the format of CalArena,
    ``{dataset}/{model}/{probas_cal, labels_cal, probas_test, labels_test}``, is written
    ``PATH:dataset/model``, which may be left out where there is one. Probabilities become
    logarithms; a probability of 0 counts as the smallest normal number of its precision.

    Labels are class numbers; one-hot rows, whole numbers as floats, and names are understood too,
    with a ``DataNote``. Names are numbered as columns or an array ``classes`` say, or else sorted.

    Args:
        path: The file.
        kind: ``logits`` or ``probs``; needed unless the array is named so, and what counts if it is
            given. It is never guessed.

    Raises:
        InputError: If the file cannot be read, does not say what it holds, holds probabilities as
            logits, or has wrong shapes, values or labels.
    """
    place, chosen = split_address(path)
    if kind is not None and kind not in KINDS:
        raise InputError(f"kind={kind!r} is not one of {', '.join(KINDS)}")
    if not local_path(place, "logits").is_file():
        raise InputError(
            f"{place}: {'a folder; name a file' if place.is_dir() else 'no such file'}"
        )
    if place.suffix == ".npz":
        return _read_arrays(ArrayArchive(place), place.stem, kind)
    if place.suffix == ".npy":
        files = ArrayFiles(place)
        return _read_arrays(files, files.name, kind)
    if place.suffix in TABLES:
        return _read_arrays(ScoreTable(place), place.stem, kind)
    if place.suffix in PICKLES:
        return _read_pair(place, kind)
    if place.suffix in HDF5:
        return _read_set(place, chosen, kind)
    raise InputError(f"{place}: ending {place.suffix!r}, allowed are {', '.join(ENDINGS)}")


def logit_sets(path: str | Path) -> dict[str, str]:
    """Return the sets of logits at a path by name, each as ``read_logits`` takes it.

    A folder has one for each of its files (of ``.npy`` files for those that belong together), an
    HDF5 file one a dataset and model, any other file one.

    Raises:
        InputError: If there is nothing, an HDF5 file cannot be read, or two have the same name.
    """
    place, chosen = split_address(path)
    if not local_path(place, "logits").exists():
        raise InputError(f"{place}: no such file or folder")
    files = [place]
    if place.is_dir():
        files = sorted(file for file in place.iterdir() if file.suffix in ENDINGS)
    found: dict[str, str] = {}
    for file in files:
        sets = {file.stem: str(file)}
        if file.suffix == ".npy":
            arrays = ArrayFiles(file)
            sets = {arrays.name: str(arrays.path)}
        if file.suffix in HDF5:
            names = [chosen] if chosen else find_sets(file)
            sets = {name: f"{file}:{name}" for name in names}
        for name, address in sets.items():
            if found.get(name, address) != address:
                raise InputError(f"{place}: {found[name]} and {address} have the same name")
            found[name] = address
    if not found:
        raise InputError(f"{place}: no logits in it; allowed endings are {', '.join(ENDINGS)}")
    return found


def _read_arrays(arrays: NamedArrays, name: str, kind: str | None) -> LogitFile:
    known: dict[str, str] = {}
    for given in arrays.names:
        plain = plain_name(given)
        if plain in known:
            both = f"{known[plain]!r} and {given!r}"
            raise InputError(f"{arrays.path}: {both} mean the same; keep one of them")
        known[plain] = given
    parted = any(
        plain.endswith(f"_{part}") or plain.startswith(f"{part}_")
        for plain in known
        for part in PARTS
    )
    parts = [_find_part(arrays, known, kind, part) for part in (PARTS if parted else ("",))]
    return _file(arrays.path, name, parts, _class_names(arrays, [labels for _, labels, _ in parts]))


def _file(path: Path, name: str, parts: Iterable[Part], classes: tuple[str, ...] = ()) -> LogitFile:
    """Return the one part, or the part to fit on and the part to test on, checked."""
    rows = [_rows(path, *part, classes) for part in parts]
    if len(rows) == 1:
        return LogitFile(name, rows[0])
    fit, test = rows
    ours, others = fit.logits.shape[1], test.logits.shape[1]
    if ours != others:
        raise InputError(f"{path}: {ours} classes to fit on, {others} to test on; they must agree")
    return LogitFile(name, test, fit)


def _find_part(arrays: NamedArrays, known: dict[str, str], kind: str | None, part: str) -> Part:
    """Return one part, or the whole where ``part`` is empty."""
    path = arrays.path
    score_arrays = {name: given for base, given in SCORE_ARRAYS.items() for name in _of(base, part)}
    label_arrays = [name for base in LABEL_ARRAYS for name in _of(base, part)]
    scores = _only(path, known, score_arrays, "scores")
    labels = _only(path, known, label_arrays, "labels")
    found = plain_labels(arrays.read(known[labels]), known[labels], path)
    return arrays.read(known[scores]), found, kind or score_arrays[scores]


def _class_names(arrays: NamedArrays, labels: list[np.ndarray]) -> tuple[str, ...]:
    """Return what the columns of scores stand for, where labels are names."""
    if any(part.dtype.kind != "U" for part in labels):
        return ()
    if CLASSES in arrays.names:
        return tuple(map(str, arrays.read(CLASSES).ravel().tolist()))
    names = tuple(np.unique(np.concatenate(labels)).tolist())
    how = f"labels are names, taken in sorted order ({shown_names(names)})"
    note(arrays.path, f"{how}; `classes` names another order")
    return names


def _of(base: str, part: str) -> tuple[str, ...]:
    """Return the names that an array may have in a part."""
    return (f"{base}_{part}", f"{part}_{base}") if part else (base,)


def _read_set(path: Path, chosen: str, kind: str | None) -> LogitFile:
    if kind == "logits":
        raise InputError(f"{path}: holds probabilities (probas_cal), but kind='logits' was given")
    name, arrays = read_set(path, chosen)
    parts = ((arrays[f"probas_{of}"], arrays[f"labels_{of}"], "probs") for of in ("cal", "test"))
    return _file(path, name, parts)


def _only(path: Path, names: Collection[str], wanted: Collection[str], what: str) -> str:
    found = [name for name in wanted if name in names]
    if len(found) != 1:
        raise InputError(
            f"{path}: {what}: expected exactly one array named {' or '.join(wanted)}; "
            f"the file has {', '.join(names) or 'none'}"
        )
    return found[0]


def _rows(
    path: Path, scores: Any, labels: Any, kind: str | None, names: tuple[str, ...]
) -> LogitRows:
    if kind is None:
        raise InputError(
            f"{path}: does not say what it holds; give the kind (in a task: inputs.kind): "
            f"{', '.join(KINDS)}"
        )
    values = _numbers(path, scores, "scores", "fiu")
    if names and values.shape[1:] != (len(names),):
        raise InputError(
            f"{path}: {len(names)} classes ({shown_names(names)}) for scores of shape "
            f"{values.shape}; they need a column each"
        )
    if names:
        labels = number_names(labels, names, "labels", path)
    elif isinstance(labels, np.ndarray):
        labels = plain_labels(labels, "labels", path)
    targets = _numbers(path, labels, "labels", "iu")
    if kind == "probs":
        values = _log(path, values)
    elif _is_matrix(values) and len(values) and _strange_row(values) is None:
        raise InputError(
            f"{path}: its logits are probabilities (no row has a negative value, each adds up to "
            "1); give --kind probs, in a task inputs: {kind: probs}"
        )
    try:
        logits, checked = check_rows(values, targets.astype(np.int64))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    return LogitRows(logits, checked)


def _is_matrix(values: np.ndarray) -> bool:
    return values.ndim == 2 and values.dtype.kind == "f"


def _strange_row(scores: np.ndarray) -> int | None:
    """Return the first row of scores (N, K) that is no set of probabilities, or None."""
    for start in range(0, len(scores), ROWS_AT_ONCE):
        part = scores[start : start + ROWS_AT_ONCE]
        off = np.abs(part.sum(axis=1, dtype=np.float64) - 1)
        wrong = ~(off <= SUM_TOLERANCE) | (part < 0).any(axis=1)
        if wrong.any():
            return start + int(wrong.argmax())
    return None


def _numbers(path: Path, values: Any, what: str, kinds: str) -> np.ndarray:
    if not isinstance(values, np.ndarray) or values.dtype.kind not in kinds:
        found = values.dtype if isinstance(values, np.ndarray) else type(values).__name__
        wanted = "an array of whole numbers" if kinds == "iu" else "an array of numbers"
        raise InputError(f"{path}: {what}: expected {wanted}, found {found}")
    if values.dtype.kind == "f" and values.dtype.itemsize not in (4, 8):
        values = values.astype(np.float32 if values.dtype.itemsize < 4 else np.float64)
    return np.ascontiguousarray(values.astype(values.dtype.newbyteorder("="), copy=False))


def _log(path: Path, probs: np.ndarray) -> np.ndarray:
    """Return the logarithms of probabilities (N, K)."""
    if not _is_matrix(probs):
        raise InputError(
            f"{path}: probabilities: expected floating values of shape (N, K), found "
            f"{probs.dtype} of shape {probs.shape}"
        )
    row = _strange_row(probs)
    if row is not None:
        raise InputError(
            f"{path}: row {row} is no set of probabilities: sum {probs[row].sum():.6g}, smallest "
            f"{probs[row].min():.6g}; a sum of 1 and no negative value are allowed (or give "
            "kind=logits)"
        )
    positive = np.maximum(probs, np.finfo(probs.dtype).tiny)
    return np.log(positive, out=positive)


def _read_pair(path: Path, kind: str | None) -> LogitFile:
    try:
        with path.open("rb") as file:
            content = ArrayUnpickler(file).load()
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except Exception as error:
        # a damaged pickle may raise anything at all, and all of it means the same
        raise InputError(f"{path}: cannot be read as a pickled pair ({error})") from error
    return _file(path, path.stem, [(*_pair(path, pair), kind) for pair in _pair(path, content)])


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

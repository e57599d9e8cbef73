"""Reads files of logits from untrusted sources."""

from __future__ import annotations

import codecs
import pickle
import zipfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trainables.common.archives import ArrayArchive
from trainables.common.errors import InputError
from trainables.common.later import Tensor
from trainables.common.logit_rows import check_rows, masked_labels
from trainables.common.paths import local_path
from trainables.data._choice_logs import LOGS, SUMMARY, read_answers
from trainables.data._class_embeddings import EMBEDDINGS, ZeroShotArrays
from trainables.data._class_numbers import LabelPart, number_labels, unnamed_classes
from trainables.data._feature_arrays import feature_files, known_names, require_complete
from trainables.data._inputs import check_classes
from trainables.data._labels import note, plain_labels, shown_names
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
from trainables.data._score_kinds import check_are_logits, check_columns, log_probs
from trainables.data._tables import TABLES

KINDS = ("logits", "probs")
SCORE_ARRAYS = {"logits": "logits", "probs": "probs", "predictions": None}
LABEL_ARRAYS = ("labels", "ground_truth")
CLASSES = "classes"
PARTS = ("fit", "test")
PICKLES = (".p", ".pkl", ".pickle")
ENDINGS = (".npz", ".npy", *TABLES, *PICKLES, *HDF5, *LOGS)
TORCH_ENDINGS = (".pt", ".pth")
MOST_ABSENT = 2  # If more classes have no row, they are probably just rare.
TORCH_MAGIC = 0x1950A86A20F9469CFC6C  # The first object of files of torch before 1.6.
TORCH_SAVED = (
    "saved by torch.save; save arrays instead: "
    "np.savez(PATH, logits=logits.numpy(), labels=labels.numpy())"
)


class Part(NamedTuple):
    """Scores and labels of one part, the scores' kind (None if unknown), and the labels' name."""

    scores: Any
    labels: Any
    kind: str | None
    name: str


@dataclass(frozen=True)
class LogitRows:
    """Logits (N, K), float32 or float64, and labels (N,), int64, of some rows."""

    logits: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: slice) -> LogitRows:
        """Return a view of some rows."""
        return LogitRows(self.logits[rows], self.labels[rows])


@dataclass(frozen=True)
class LogitFile:
    """The content of a file, or of one set of a file with several.

    Attributes:
        name: The name of the file or of the set.
        rows: All rows, or the rows to test on if the file has two parts.
        fit: The rows to fit on (validation) if the file has two parts, else None.
        classes: The names of the classes; empty if the file has none.
    """

    name: str
    rows: LogitRows
    fit: LogitRows | None = None
    classes: tuple[str, ...] = ()


def read_logits(path: str | Path, kind: str | None = None) -> LogitFile:
    """Read a file of logits or probabilities.

    - ``.npz``: ``logits`` or ``probs`` with ``labels``, or netcal's ``predictions`` with
      ``ground_truth``; or two parts, ``logits_fit``, ``labels_fit``, ``logits_test`` and
      ``labels_test``. With ``class_embeddings``, zero-shot logits; see ``ZeroShotArrays``. A folder
      with ``class_embeddings.npy`` is read in the same way.
    - ``.npy``: one of several files in a folder. Their names contain the names of arrays above and
      are otherwise equal, such as ``a_logits.npy`` and ``a_labels.npy``.
    - ``.csv``, ``.tsv``, ``.parquet``: a column ``label`` and a column ``logit_CLASS`` or
      ``prob_CLASS`` per class, or a list per row in ``logits`` or ``probs``.
    - ``.p``, ``.pkl``, ``.pickle``: ``((validation scores, labels), (test scores, labels))`` as in
      the NN_calibration collection; the unpickler accepts NumPy arrays only.
    - ``.h5``, ``.hdf5``: the groups ``{dataset}/{model}`` of CalArena with the arrays
      ``probas_cal``, ``labels_cal``, ``probas_test`` and ``labels_test``. The path is
      ``PATH:dataset/model`` if the file has more than one group.
    - ``.jsonl``, ``.json``: logs of lm-evaluation-harness and Inspect AI; see ``read_answers``.

    Probabilities become logarithms; see ``log_probs`` for zeros and for rounded probabilities.

    Labels are names of classes, such as the ``1`` of a column ``logit_1``, or count the classes
    from 0; see ``number_labels``. One-hot rows and floats that are whole numbers are read with a
    ``DataNote``. Class names are those of columns or of an array ``classes``, or else the sorted
    labels if these are names.

    Args:
        path: The file.
        kind: ``logits`` or ``probs``; overrides names of arrays, and is required if these do not
            name the kind. Ignored for logs.
    """
    place, chosen = split_address(path)
    if kind is not None and kind not in KINDS:
        raise InputError(f"kind={kind!r} is not one of {', '.join(KINDS)}")
    local_path(place, "logits")
    if is_zero_shot(place):
        return _read_arrays(_as_logits(feature_files(place)), place.name, kind)
    if not place.is_file():
        raise InputError(
            f"{place}: {'is a folder; use a file' if place.is_dir() else 'no such file'}"
        )
    if place.suffix in TORCH_ENDINGS or _is_torch_saved(place):
        raise InputError(f"{place}: {TORCH_SAVED}")
    if place.suffix == ".npz":
        return _read_arrays(_as_logits(ArrayArchive(place)), place.stem, kind)
    if place.suffix == ".npy":
        files = ArrayFiles(place)
        return _read_arrays(files, files.name, kind)
    if place.suffix in TABLES:
        return _read_arrays(ScoreTable(place, kind), place.stem, kind)
    if place.suffix in PICKLES:
        return _read_pair(place, kind)
    if place.suffix in HDF5:
        return _read_set(place, chosen, kind)
    if place.suffix in LOGS:
        return _file(place, place.stem, [Part(*read_answers(place), "logits", "target")])
    raise InputError(f"{place}: expected an ending of {', '.join(ENDINGS)}, got {place.suffix!r}")


def logit_sets(path: str | Path) -> dict[str, str]:
    """Return the sets of logits at a path: addresses for ``read_logits``, by name."""
    place, chosen = split_address(path)
    if not local_path(place, "logits").exists():
        raise InputError(f"{place}: no such file or folder")
    files = [place]
    if place.is_dir() and not is_zero_shot(place):
        files = sorted(
            file
            for file in place.iterdir()
            if file.suffix in ENDINGS and not file.name.startswith(SUMMARY)
        )
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
        raise InputError(f"{place}: no logits; expected files ending in {', '.join(ENDINGS)}")
    return found


def is_zero_shot(place: Path) -> bool:
    """Return True for a folder of features with class embeddings; see ``require_complete``."""
    require_complete(place)
    return (place / "class_embeddings.npy").is_file()


def _as_logits(arrays: NamedArrays) -> NamedArrays:
    """Return zero-shot logits if arrays have class embeddings but no scores, else the arrays."""
    words = {word for name in arrays.names for word in name.split("_")}
    if words & {"logits", "probs"} or not words & {"class"}:
        return arrays
    names = known_names(arrays)
    return ZeroShotArrays(arrays, names) if EMBEDDINGS in names else arrays


def _read_arrays(arrays: NamedArrays, name: str, kind: str | None) -> LogitFile:
    known: dict[str, str] = {}
    for given in arrays.names:
        plain = plain_name(given)
        if plain in known:
            both = f"{known[plain]!r} and {given!r}"
            raise InputError(f"{arrays.path}: arrays {both} have the same role; remove one")
        known[plain] = given
    parted = any(
        plain.endswith(f"_{part}") or plain.startswith(f"{part}_")
        for plain in known
        for part in PARTS
    )
    parts = [_find_part(arrays, known, kind, part) for part in (PARTS if parted else ("",))]
    return _file(arrays.path, name, parts, arrays)


def _file(
    path: Path, name: str, parts: Sequence[Part], arrays: NamedArrays | None = None
) -> LogitFile:
    """Check and combine one part, or the part to fit on and the part to test on."""
    scores = [_scores(path, part) for part in parts]
    ours, others = scores[0].shape[-1], scores[-1].shape[-1]
    if ours != others:
        raise InputError(
            f"{path}: expected equally many classes in both parts, got {ours} to fit on and "
            f"{others} to test on"
        )
    classes = () if arrays is None else _given_classes(arrays, parts, ours)
    labels, names = _label_numbers(path, parts, classes, ours)
    rows = [_rows(path, *part) for part in zip(scores, labels, strict=True)]
    _note_masked(path, parts, rows)
    return LogitFile(name, rows[-1], rows[0] if rows[1:] else None, names)


def _note_masked(path: Path, parts: Sequence[Part], rows: Sequence[LogitRows]) -> None:
    """Note how many rows have a label whose class is masked."""
    masked = [masked_labels(part.logits, part.labels) for part in rows]
    count, total = sum(map(len, masked)), sum(map(len, rows))
    if count:
        part, first = next(
            (p.name, int(numbers[0]))
            for p, numbers in zip(parts, masked, strict=True)
            if len(numbers)
        )
        note(
            path,
            f"the label's class is masked in {count:,} of {total:,} rows, such as row {first} of "
            f"{part}; calibrators are not fitted on such rows",
        )


def _find_part(arrays: NamedArrays, known: dict[str, str], kind: str | None, part: str) -> Part:
    """Return one part; ``part`` is "" for a file without parts."""
    path = arrays.path
    score_arrays = {name: given for base, given in SCORE_ARRAYS.items() for name in _of(base, part)}
    label_arrays = [name for base in LABEL_ARRAYS for name in _of(base, part)]
    of_kind = [name for name in known if kind and score_arrays.get(name) == kind]
    scores = _only(path, known, of_kind or score_arrays, "scores")
    labels = known[_only(path, known, label_arrays, "labels")]
    values = arrays.read(known[scores])
    return Part(values, arrays.read(labels), kind or score_arrays[scores], labels)


def _given_classes(arrays: NamedArrays, parts: Sequence[Part], width: int) -> tuple[str, ...]:
    """Return the class names in the array ``classes``; empty if the file does not have it.

    If all labels are numbers, invalid names are ignored with a note; otherwise they are an error.
    """
    path = arrays.path
    if CLASSES not in arrays.names:
        return ()
    try:
        given = arrays.read(CLASSES).ravel()
        if given.dtype.kind == "S":
            given = np.char.decode(given, "utf-8", "backslashreplace")
        names = tuple(map(str, given.tolist()))
        check_classes(names)
        _check_width(path, names, width)
    except ValueError as error:
        why = str(error).removeprefix(f"{path}: ")
        if any(part.labels.dtype.kind not in "biuf" for part in parts):
            raise InputError(f"{path}: {why}") from error
        note(path, f"`classes` is not used: {why}")
        return ()
    return names


def _check_width(path: Path, names: tuple[str, ...], width: int, remedy: str = "") -> None:
    if len(names) != width:
        found = f"got {len(names)} classes ({shown_names(names)}) and {width} columns"
        raise InputError(f"{path}: expected one column of scores per class, {found}{remedy}")


def _label_numbers(
    path: Path, parts: Sequence[Part], classes: tuple[str, ...], width: int
) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Return the labels of all parts as numbers of columns, and the names of classes, if any."""
    columns = classes or unnamed_classes(width)
    labels = [_plain(path, part, columns) for part in parts]
    if not classes and all(_are_names(each, columns) for each in labels):
        columns = classes = _sorted_names(path, labels, width)
    label_parts = [
        LabelPart(each.tolist(), f"{path}: {part.name}")
        for each, part in zip(labels, parts, strict=True)
    ]
    numbers = number_labels(label_parts, columns)
    if classes and all(each.dtype.kind == "U" for each in labels):
        _note_absent(path, classes, numbers)
    return numbers, classes


def _plain(path: Path, part: Part, columns: tuple[str, ...]) -> np.ndarray:
    """Return labels (N,) of one part, names or whole numbers."""
    if not isinstance(part.labels, np.ndarray):
        found = type(part.labels).__name__
        raise InputError(f"{path}: {part.name}: expected an array of labels, got {found}")
    labels = plain_labels(part.labels, part.name, path, columns)
    if labels.ndim != 1:
        shape = f"got shape {labels.shape}"
        raise InputError(f"{path}: {part.name}: expected one label per row, {shape}")
    if labels.dtype.kind == "f" and len(labels):
        row = int((np.mod(labels, 1) != 0).argmax())
        raise InputError(
            f"{path}: {part.name}: expected a whole number or a name, got {labels[row]} in row "
            f"{row}"
        )
    if labels.dtype.kind not in "iuU":
        raise InputError(
            f"{path}: {part.name}: expected whole numbers or names, got {labels.dtype}"
        )
    return labels


def _note_absent(path: Path, classes: tuple[str, ...], numbers: Sequence[np.ndarray]) -> None:
    """Note one or two classes that no row has as its label: their columns may not be scores."""
    absent = [classes[k] for k in np.setdiff1d(range(len(classes)), np.concatenate(numbers))]
    if 0 < len(absent) <= MOST_ABSENT:
        names = " or ".join(map(repr, absent))
        note(path, f"no row has the label {names}; its column is read as a class too")


def _are_names(labels: np.ndarray, columns: tuple[str, ...]) -> bool:
    """Return True if labels are names; labels of one-hot rows are placeholders (``columns``)."""
    return labels.dtype.kind == "U" and not np.isin(labels, columns).any()


def _sorted_names(path: Path, labels: Sequence[np.ndarray], width: int) -> tuple[str, ...]:
    names = tuple(np.unique(np.concatenate(labels)).tolist())
    _check_width(path, names, width, "; add an array `classes` with the name of each column")
    how = f"the columns are assigned to the labels in sorted order ({shown_names(names)})"
    note(path, f"{how}; for another order add an array `classes`")
    return names


def _of(base: str, part: str) -> tuple[str, ...]:
    """Return the possible names of a part's array."""
    return (f"{base}_{part}", f"{part}_{base}") if part else (base,)


def _read_set(path: Path, chosen: str, kind: str | None) -> LogitFile:
    name, arrays = read_set(path, chosen)
    parts = [
        Part(arrays[f"probas_{of}"], arrays[f"labels_{of}"], kind or "probs", f"labels_{of}")
        for of in ("cal", "test")
    ]
    return _file(path, name, parts)


def _only(path: Path, names: Collection[str], wanted: Collection[str], what: str) -> str:
    found = [name for name in wanted if name in names]
    if len(found) != 1:
        raise InputError(
            f"{path}: {what}: expected exactly one array named {' or '.join(wanted)}; "
            f"the file has {', '.join(names) or 'none'}"
        )
    return found[0]


def _scores(path: Path, part: Part) -> np.ndarray:
    """Return the scores of one part as logits (N, K)."""
    if part.kind is None:
        raise InputError(
            f"{path}: are the scores logits or probabilities? Add --kind logits or --kind probs "
            "(in a sweep file's task: `inputs: {kind: probs}`)"
        )
    values = _numbers(path, part.scores)
    check_columns(values, path)
    if part.kind == "probs":
        return log_probs(values, path)
    check_are_logits(values, path)
    return values


def _rows(path: Path, values: np.ndarray, labels: np.ndarray) -> LogitRows:
    try:
        return LogitRows(*check_rows(values, labels))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _numbers(path: Path, values: Any) -> np.ndarray:
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "fiu":
        found = values.dtype if isinstance(values, np.ndarray) else type(values).__name__
        raise InputError(f"{path}: scores: expected an array of numbers, got {found}")
    if values.dtype.kind == "f" and values.dtype.itemsize not in (4, 8):
        values = values.astype(np.float32 if values.dtype.itemsize < 4 else np.float64)
    return np.ascontiguousarray(values.astype(values.dtype.newbyteorder("="), copy=False))


def _read_pair(path: Path, kind: str | None) -> LogitFile:
    try:
        with path.open("rb") as file:
            content = ArrayUnpickler(file).load()
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except Exception as error:
        # Damaged pickles can raise any exception.
        raise InputError(f"{path}: cannot be read as a pickled pair ({error})") from error
    if isinstance(content, int) and content == TORCH_MAGIC:
        raise InputError(f"{path}: {TORCH_SAVED}")
    pairs = [_pair(path, pair) for pair in _pair(path, content)]
    names = ("validation labels", "test labels")
    parts = [Part(*pair, kind, name) for pair, name in zip(pairs, names, strict=True)]
    return _file(path, path.stem, parts)


def _is_torch_saved(path: Path) -> bool:
    """Return True for an archive of ``torch.save``, whatever its ending."""
    if not zipfile.is_zipfile(path):
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("/data.pkl") for name in archive.namelist())
    except zipfile.BadZipFile:
        return False  # The reader of its format reports the damage.


def _pair(path: Path, content: Any) -> tuple[Any, Any]:
    if not isinstance(content, tuple | list) or len(content) != 2:
        raise InputError(
            f"{path}: expected ((validation scores, labels), (test scores, labels)), "
            f"got {type(content).__name__}"
        )
    return content[0], content[1]


def _latin1(text: str, encoding: str) -> bytes:
    """Replace ``codecs.encode``, which old pickles call to build bytes."""
    if codecs.lookup(encoding).name != "iso8859-1":
        raise InputError(f"the pickle uses the codec {encoding!r}; only latin1 is allowed")
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
    """An unpickler for NumPy arrays in tuples and lists; it refuses all other classes."""

    _known = _array_parts()

    def __init__(self, file: Any) -> None:
        super().__init__(file, encoding="latin1")

    def find_class(self, module: str, name: str) -> Any:
        """Return a callable that builds arrays; refuse all others."""
        if (module, name) not in self._known:
            raise InputError(f"the pickle uses {module}.{name}; only NumPy arrays are allowed")
        return self._known[module, name]

    def persistent_load(self, pid: Any) -> Any:
        """Refuse references to anything outside the file."""
        raise InputError(
            f"the pickle refers to {pid!r} outside the file; only NumPy arrays are allowed"
        )

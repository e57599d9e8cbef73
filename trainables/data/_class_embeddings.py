"""Zero-shot logits: scaled cosines of features and class embeddings (Radford et al., 2021)."""

import base64
from collections.abc import Mapping

import numpy as np

from trainables.common.errors import InputError
from trainables.data._labels import note, shown_names
from trainables.data._logit_arrays import NamedArrays

EMBEDDINGS, SCALE = "class_features", "logit_scale"
CLIP_SCALE = 100.0  # The upper limit of the scale in the training of CLIP.
FIT, TEST = ("train", "validation"), ("test",)
SUSPICIOUS_SCALE = 10.0  # CLIP stores the logarithm, 4.6.


def class_weights(
    arrays: NamedArrays, names: Mapping[str, str], width: int, classes: int | None = None
) -> np.ndarray | None:
    """Return the scaled unit embedding of each class, (K, D) float32, or None without embeddings.

    Args:
        arrays: The arrays of a file of features.
        names: The name of each array in the file, by its plain name; see ``known_names``.
        width: D.
        classes: K, or None if it is unknown.
    """
    if EMBEDDINGS not in names:
        return None
    where = f"{arrays.path}: {names[EMBEDDINGS]}"
    rows = arrays.read(names[EMBEDDINGS])
    if rows.dtype.kind != "f" or rows.shape[1:] != (width,) or classes not in (None, len(rows)):
        expected = f"expected floats ({classes or 'K'}, {width}), one row per class"
        raise InputError(f"{where}: {expected}, got {rows.dtype} {rows.shape}")
    rows = rows.astype(np.float64)
    weights = _scale(arrays, names) * rows / _lengths(rows, where)
    return weights.astype(np.float32)


def embedded_classes(
    arrays: NamedArrays, names: Mapping[str, str], labels: Mapping[str, np.ndarray]
) -> tuple[str, ...]:
    """Return the names of the classes that have embeddings; empty if the file has none.

    The classes are the sorted labels if training labels are names, else the numbers of the
    embeddings' rows. ``labels`` has the labels of each part, of which ``train`` is required.
    """
    if EMBEDDINGS not in names:
        return ()
    count = len(arrays.read(names[EMBEDDINGS]))
    if labels["train"].dtype.kind != "U":
        for part, values in labels.items():
            if values.dtype.kind != "U" and values.max(initial=0) >= count:
                row = int((values >= count).argmax())
                place = f"{arrays.path}: {names[f'labels_{part}']}: {values[row]} in row {row}"
                rest = f"{names[EMBEDDINGS]} has {count} rows, one per class, counted from 0"
                raise InputError(f"{place}, but {rest}")
        return tuple(map(str, range(count)))
    found = tuple(np.unique(np.concatenate([*labels.values()])).tolist())
    rows = f"the {count} rows of {names[EMBEDDINGS]}"
    if len(found) != count:
        remedy = "add an array `classes` with the name of each row"
        raise InputError(f"{arrays.path}: labels have {len(found)} names for {rows}; {remedy}")
    how = f"{rows} are read as the labels in sorted order ({shown_names(found)})"
    note(arrays.path, f"{how}; for another order add an array `classes`")
    return found


def _lengths(rows: np.ndarray, where: str) -> np.ndarray:
    """Return the length of each row, (N, 1); refuse lengths that are 0 or not finite."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    wrong = ~(np.isfinite(lengths) & (lengths > 0))
    if wrong.any():
        row = int(wrong.argmax())
        problem = f"row {row} has length {lengths[row, 0]:g}"
        raise InputError(f"{where}: {problem}; cosines need finite rows that are not 0")
    return lengths


def _scale(arrays: NamedArrays, names: Mapping[str, str]) -> float:
    if SCALE not in names:
        note(arrays.path, f"no array `logit_scale`: cosines are multiplied by {CLIP_SCALE:g}")
        return CLIP_SCALE
    scale = arrays.read(names[SCALE])
    if scale.size != 1 or scale.dtype.kind not in "fiu" or not 0 < scale.item() < np.inf:
        got = f"got {scale.dtype} {scale.tolist() if scale.size == 1 else scale.shape}"
        raise InputError(f"{arrays.path}: logit_scale: expected one number above 0, {got}")
    if scale.item() < SUSPICIOUS_SCALE:
        text = f"logit_scale is {scale.item():.4g}; CLIP stores its logarithm"
        note(arrays.path, f"{text}; if this is the logarithm, save the exponential")
    return float(scale.item())


class ZeroShotArrays:
    """Zero-shot logits as arrays with the names of a file of logits, such as ``logits_fit``.

    If the file has test rows and other rows, these are the parts ``test`` and ``fit``; else there
    is one part without a name.

    Args:
        arrays: The file's arrays, including the embeddings.
        names: The name of each array in the file, by its plain name; see ``known_names``.
    """

    def __init__(self, arrays: NamedArrays, names: Mapping[str, str]) -> None:
        self.path = arrays.path
        self._arrays, self._own = arrays, names
        parts = [part for part in FIT + TEST if f"features_{part}" in names] or ["train"]
        fit = [part for part in parts if part in FIT]
        parted = 0 < len(fit) < len(parts)
        self._parts = {"fit": fit, "test": list(TEST)} if parted else {"": parts}

    @property
    def names(self) -> list[str]:
        """Return the names of arrays, such as ``logits_fit``."""
        parts = [f"_{part}" if part else "" for part in self._parts]
        classes = ["classes"] if "classes" in self._own else []
        return [*(f"{kind}{part}" for part in parts for kind in ("logits", "labels")), *classes]

    def read(self, name: str) -> np.ndarray:
        """Return logits (N, K), labels (N,) or names of classes (K,)."""
        kind, _, part = name.partition("_")
        if kind == "classes":
            return self._arrays.read(self._own["classes"])
        if kind == "labels":
            return np.concatenate([self._read(f"labels_{own}") for own in self._parts[part]])
        return np.concatenate([self._logits(f"features_{own}") for own in self._parts[part]])

    def _read(self, name: str) -> np.ndarray:
        if name not in self._own:
            need = "a zero-shot task needs features and labels"
            raise InputError(f"{self.path}: no array {name.removesuffix('_train')!r}; {need}")
        return self._arrays.read(self._own[name])

    def _logits(self, name: str) -> np.ndarray:
        features, where = self._read(name), f"{self.path}: {self._own[name]}"
        if features.dtype.kind != "f" or features.ndim != 2:
            got = f"{features.dtype} {features.shape}"
            raise InputError(f"{where}: expected numbers (N, D), got {got}")
        weights = class_weights(self._arrays, self._own, features.shape[1])
        assert weights is not None
        features = features.astype(np.float32)
        return features @ weights.T / _lengths(features, where)


def pack(weights: np.ndarray | None) -> str:
    """Return weights (K, D), float32, as text for a manifest; empty for None."""
    return "" if weights is None else base64.b64encode(weights.astype("<f4").tobytes()).decode()


def unpack(text: str, width: int) -> np.ndarray:
    """Undo ``pack``: return weights (K, ``width``), read-only."""
    return np.frombuffer(base64.b64decode(text), "<f4").reshape(-1, width)

"""Classes given as text embeddings: zero-shot logits are scaled cosines (Radford et al., 2021)."""

import base64
from collections.abc import Mapping

import numpy as np

from trainables.common.errors import InputError
from trainables.data._labels import note
from trainables.data._logit_arrays import NamedArrays

EMBEDDINGS, SCALE = "class_features", "logit_scale"
CLIP_SCALE = 100.0  # Where the training of CLIP clips it.
FIT, TEST = ("train", "validation"), ("test",)
SUSPICIOUS_SCALE = 10.0  # CLIP stores the logarithm, 4.6.


def class_weights(
    arrays: NamedArrays, names: Mapping[str, str], width: int, classes: int | None = None
) -> np.ndarray | None:
    """Return the scaled unit embedding of each class, (K, D) float32, or None without embeddings.

    Args:
        arrays: The arrays of a file of features.
        names: The file's names of arrays by ours.
        width: D.
        classes: K, where it is known.
    """
    if EMBEDDINGS not in names:
        return None
    where = f"{arrays.path}: {names[EMBEDDINGS]}"
    given = arrays.read(names[EMBEDDINGS])
    if given.dtype.kind != "f" or given.shape[1:] != (width,) or classes not in (None, len(given)):
        told = f"expected a row per class, ({classes or 'K'}, {width}) floats"
        raise InputError(f"{where}: {told}, got {given.dtype} {given.shape}")
    given = given.astype(np.float64)
    weights = _scale(arrays, names) * given / _lengths(given, where)
    return weights.astype(np.float32)


def _lengths(rows: np.ndarray, where: str) -> np.ndarray:
    """Return the length of each row, (N, 1); one that is 0 or not finite is refused."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    wrong = ~(np.isfinite(lengths) & (lengths > 0))
    if wrong.any():
        row = int(wrong.argmax())
        told = f"length {lengths[row, 0]:g} in row {row}"
        raise InputError(f"{where}: {told}; cosines need finite rows that are not 0")
    return lengths


def _scale(arrays: NamedArrays, names: Mapping[str, str]) -> float:
    if SCALE not in names:
        note(arrays.path, f"no array `logit_scale`: cosines are multiplied by {CLIP_SCALE:g}")
        return CLIP_SCALE
    given = arrays.read(names[SCALE])
    if given.size != 1 or given.dtype.kind not in "fiu" or not 0 < given.item() < np.inf:
        told = f"got {given.dtype} {given.tolist() if given.size == 1 else given.shape}"
        raise InputError(f"{arrays.path}: logit_scale: expected one number above 0, {told}")
    if given.item() < SUSPICIOUS_SCALE:
        told = f"logit_scale is {given.item():.4g}; CLIP stores its logarithm, save the exponential"
        note(arrays.path, f"{told} if this is one")
    return float(given.item())


class ZeroShotArrays:
    """Logits of features and class embeddings, as an archive of logits.

    Features ``test`` are the part to test on, all others the part to fit on.

    Args:
        arrays: The file's arrays, the embeddings among them.
        names: The file's names of arrays by ours.
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
        """Return names such as ``logits_fit``, of the parts that there are."""
        parts = [f"_{part}" if part else "" for part in self._parts]
        classes = ["classes"] if "classes" in self._own else []
        return [*(f"{kind}{part}" for part in parts for kind in ("logits", "labels")), *classes]

    def read(self, name: str) -> np.ndarray:
        """Return logits (N, K), labels (N,) or names of classes (K,)."""
        kind, _, part = name.partition("_")
        if kind == "classes":
            return self._arrays.read(self._own["classes"])
        if kind == "labels":
            return np.concatenate([self._read(f"labels_{theirs}") for theirs in self._parts[part]])
        return np.concatenate([self._logits(f"features_{theirs}") for theirs in self._parts[part]])

    def _read(self, name: str) -> np.ndarray:
        if name not in self._own:
            told = "a zero-shot task needs features and labels"
            raise InputError(f"{self.path}: no array {name.removesuffix('_train')!r}; {told}")
        return self._arrays.read(self._own[name])

    def _logits(self, name: str) -> np.ndarray:
        features, where = self._read(name), f"{self.path}: {self._own[name]}"
        if features.dtype.kind != "f" or features.ndim != 2:
            given = f"{features.dtype} {features.shape}"
            raise InputError(f"{where}: expected numbers (N, D), got {given}")
        weights = class_weights(self._arrays, self._own, features.shape[1])
        assert weights is not None
        features = features.astype(np.float32)
        return features @ weights.T / _lengths(features, where)


def pack(weights: np.ndarray | None) -> str:
    """Return weights (K, D), float32, as a text that a manifest holds; empty for None."""
    return "" if weights is None else base64.b64encode(weights.astype("<f4").tobytes()).decode()


def unpack(text: str, width: int) -> np.ndarray:
    """Undo ``pack``: return weights (K, ``width``), which may not be written to."""
    return np.frombuffer(base64.b64decode(text), "<f4").reshape(-1, width)

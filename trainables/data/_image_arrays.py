"""Archives of images as people keep them, shown in one form: uint8, channels last, x and y."""

from pathlib import Path

import numpy as np

from trainables.common.archives import ArrayArchive, ArrayHeader
from trainables.common.errors import InputError
from trainables.data._images import MAX_CHANNELS
from trainables.data._labels import note

WORDS = {
    **dict.fromkeys(("x", "images", "image", "data"), "x"),
    **dict.fromkeys(("y", "labels", "label", "targets", "target"), "y"),
}
BRIGHTEST = 255


class ImageArrays:
    """The arrays of an archive by the names ``x_train``, ``y_train``, ``x_test`` and ``y_test``.

    They may be called ``X_train``, ``train_images`` or the like; ``X`` and ``y`` alone are training
    rows. Images of floats in [0, 1], of whole numbers from 0 to 255 in another type, and with
    channels first are brought to uint8 (N, H, W, C), with a ``DataNote``.

    Raises:
        InputError: See ``ArrayArchive``; also if two arrays mean the same.
    """

    def __init__(self, path: Path) -> None:
        self._archive = ArrayArchive(path)
        self.path = path
        self._given: dict[str, str] = {}
        # Arrays with the expected names count, whatever else there is.
        for name in sorted(self._archive.names, key=lambda name: _plain(name) != name):
            known = self._given.setdefault(_plain(name), name)
            if known not in (_plain(name), name):
                both = f"{known!r} and {name!r}"
                raise InputError(f"{path}: {both} mean the same; keep one of them")

    @property
    def names(self) -> list[str]:
        """Return the arrays' plain names."""
        return list(self._given)

    def header(self, name: str) -> ArrayHeader:
        """Return an array's type and shape, of images as they will be read."""
        header = self._archive.header(self._given.get(name, name))
        if not name.startswith("x_"):
            return header
        shape = header.shape
        if self._channels_first(header):
            shape = (shape[0], *shape[2:], shape[1])
        return ArrayHeader(
            np.dtype(np.uint8) if header.dtype.kind in "fiu" else header.dtype, shape
        )

    def read(self, name: str) -> np.ndarray:
        """Return an array, images as uint8."""
        values = self._archive.read(self._given.get(name, name))
        if not name.startswith("x_"):
            return values
        if self._channels_first(ArrayHeader(values.dtype, values.shape)):
            note(self.path, f"{name} has shape {values.shape}: axis 1 is taken as channels")
            values = np.moveaxis(values, 1, -1)
        return values if values.dtype == np.uint8 else self._as_bytes(name, values)

    @staticmethod
    def _channels_first(header: ArrayHeader) -> bool:
        return header.ndim == 4 and header.shape[1] <= MAX_CHANNELS < header.shape[3]

    def _as_bytes(self, name: str, values: np.ndarray) -> np.ndarray:
        low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
        if values.dtype.kind == "f" and low >= 0 and high <= 1:
            note(self.path, f"{name} is {values.dtype} in [0, 1]: stored as uint8, round(255 x)")
            return np.rint(values * BRIGHTEST).astype(np.uint8)
        if low >= 0 and high <= BRIGHTEST and (np.mod(values, 1) == 0).all():
            note(self.path, f"{name} is {values.dtype} of whole numbers: stored as uint8")
            return values.astype(np.uint8)
        raise InputError(
            f"{self.path}: {name} is {values.dtype} from {low:g} to {high:g}, allowed is uint8 "
            "(0..255), or floats in [0, 1]; convert it: ((x - x.min()) / (x.max() - x.min()) * 255)"
            ".round().astype('uint8')"
        )


def _plain(name: str) -> str:
    """Return ``x_train`` for ``train_images``, ``X_train`` and ``X``; other names as they are."""
    words = name.lower().split("_")
    kinds = [WORDS[word] for word in words if word in WORDS]
    parts = [word for word in words if word in ("train", "test")]
    if len(kinds) != 1 or len(kinds) + len(parts) != len(words) or len(parts) > 1:
        return name
    return f"{kinds[0]}_{parts[0] if parts else 'train'}"

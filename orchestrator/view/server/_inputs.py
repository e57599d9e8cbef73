"""The inputs of test rows on pages: pictures, words or values."""

import base64
import io
from threading import Lock
from typing import NamedTuple

import numpy as np
from cachetools import LRUCache
from PIL import Image

from orchestrator.storage.storage import Storage
from trainables.common.errors import InputError
from trainables.common.files import open_inside
from trainables.data import (
    MASK_OUTSIDE,
    DatasetInfo,
    GivenLogits,
    Images,
    Inputs,
    MaskedImages,
    PreparedData,
    RowArrays,
    Texts,
)

SMALL, LARGE = (64, 320)  # Longer side in pixels: in a list, and enlarged on a row's page.
WORDS, VALUES = 40, 8  # Maximum number of words or values of one row in a list.
OPEN = 8  # Data sets whose files are kept open.


class Shown(NamedTuple):
    """One row's input: a picture as a data URI with its width and height, or a text."""

    picture: str = ""
    size: tuple[int, int] = (0, 0)
    text: str = ""


class StoredInputs(NamedTuple):
    """The test rows of one prepared data set."""

    info: DatasetInfo
    rows: RowArrays

    def holds(self, place: int, label: int) -> bool:
        """Return whether the row at a position has this label; True for given logits."""
        found = self.rows.labels[place : place + 1].tolist()
        return found == [label] or not self.info.inputs.trains

    def show(self, place: int, large: bool = False) -> Shown:
        """Return the input at a position, whole if ``large``, else shortened."""
        if isinstance(self.info.inputs, GivenLogits):
            return Shown()  # Given logits have no inputs.
        (values,) = self.info.inputs.decoded(self.rows.values[place : place + 1])
        return show_input(self.info.inputs, values, large)


class InputBook:
    """The prepared data of a storage, by their hashes.

    No file outside the storage is read. Missing data of a storage in a bucket are fetched.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage, self._lock = storage, Lock()
        self._open: LRUCache[str, StoredInputs] = LRUCache(OPEN)

    def find(self, key: str) -> StoredInputs | None:
        """Return the test rows of the data with a key; None if they are damaged or missing."""
        with self._lock:
            if key not in self._open:
                try:
                    self._open[key] = self._read(key)
                except (OSError, InputError):
                    return None
            return self._open[key]

    def _read(self, key: str) -> StoredInputs:
        folder = self._storage.folder
        self._storage.store().fetch_folder(self._storage.data / key)
        open_inside(self._storage.data / key / "split.json", folder).close()
        prepared = PreparedData.open(self._storage.data / key)
        if prepared.key != key:
            raise InputError(f"{prepared.directory}: expected key {key}, got {prepared.key}")
        for path in (prepared.directory / "test").glob("*.npy"):
            open_inside(path, folder).close()
        return StoredInputs(prepared.info, prepared.test())


def show_input(inputs: Inputs, values: np.ndarray, large: bool = False) -> Shown:
    """Return one row's values as a picture, words or numbers; shortened unless ``large``."""
    if isinstance(inputs, Images | MaskedImages):
        return _picture(values, isinstance(inputs, MaskedImages), large)
    words = [f"{value:.4g}" for value in values.flat] if not isinstance(inputs, Texts) else []
    if isinstance(inputs, Texts):
        words = [inputs.words[number - 1] for number in values.tolist() if number]
    most = len(words) if large else WORDS if isinstance(inputs, Texts) else VALUES
    return Shown(text=" ".join(words[:most]) + (" ..." if len(words) > most else ""))


def _picture(values: np.ndarray, masked: bool, large: bool) -> Shown:
    if masked:
        inside = values[..., 3] != MASK_OUTSIDE
        values = values[: inside.any(1).sum(), : inside.any(0).sum(), :3]
    if values.shape[2] != 3:  # Show channels other than RGB next to each other.
        values = np.hstack(list(np.moveaxis(values, 2, 0)))
    image = Image.fromarray(np.ascontiguousarray(values))
    if not large:
        image = image.reduce(-(-max(image.size) // SMALL))
    scale = max(1, (LARGE if large else SMALL) // max(image.size))
    stream = io.BytesIO()
    image.save(stream, "PNG", compress_level=1)  # Fast: a page has up to 50 images.
    address = f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"
    return Shown(address, (scale * image.width, scale * image.height))

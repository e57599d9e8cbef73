"""Ranges of rows on the command line, and results that are written atomically."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from trainables.common.errors import InputError, UnwrittenError
from trainables.common.files import drafted
from trainables.common.later import Tensor
from trainables.common.paths import local_path

ROW_RANGE = re.compile(r"(\d{0,18}):(\d{0,18})")


def parse_rows(text: str, count: int) -> slice:
    """Turn ``0:5000`` into a slice of ``count`` rows; either end may be left out."""
    match = ROW_RANGE.fullmatch(text.strip())
    if match is None:
        raise InputError(f"rows {text!r}: expected START:STOP, such as 0:5000")
    start, stop = int(match[1] or 0), int(match[2] or count)
    if not 0 <= start < stop <= count:
        raise InputError(f"rows {text!r}: expected 0 <= START < STOP <= {count}")
    return slice(start, stop)


def make_folder(folder: str | Path) -> Path:
    """Return a folder for results; create it if it does not exist."""
    place = local_path(folder, "--out") if str(folder).startswith("~") else Path(folder)
    local_path(place, "--out")
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{place}: cannot create the folder ({error.strerror})") from error
    return place


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file completely, or leave the old one."""
    try:
        with drafted(path) as draft, draft.open("wb") as stream:
            write(stream)
    except OSError as error:
        raise UnwrittenError(f"{path}: cannot be written ({error.strerror})") from error


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays by name as a compressed ``.npz`` archive; see ``write_whole`` for errors."""
    save: Any = np.savez_compressed  # Its type hints do not allow arrays as keywords.
    write_whole(path, lambda stream: save(stream, **arrays))


def save_log_probs(path: Path, log_probs: Tensor, labels: Tensor) -> None:
    """Write log-probabilities as ``logits`` with ``labels``, for ``read_logits``."""
    logits, truth = log_probs.numpy(), labels.numpy()
    write_whole(path, lambda stream: np.savez(stream, logits=logits, labels=truth))

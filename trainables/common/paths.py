"""Folders and files that users name."""

import os
import re
from pathlib import Path

from trainables.common.errors import InputError

DEFAULT_STORAGE = "calsweep-storage"
"""The storage folder of whoever names none."""
ELSEWHERE = "(another storage: --storage DIR)"
"""Stands in messages after the place where something was looked for."""

URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
LONGEST_NAME, LONGEST_PATH = 255, 4095  # Bytes, on Linux and macOS.


def local_path(path: str | Path, what: str, instead: str = "") -> Path:
    """Return the absolute path that a user means; ``~`` is a home folder.

    Args:
        path: A path on this machine.
        what: Names it in messages, such as ``storage``.
        instead: What to do who gave a URL, for a message.

    Raises:
        InputError: If it is a URL, or cannot be a path: it is empty, too long, holds the character
            0, or names a user who is not there.
    """
    text = str(path)
    if not text:
        raise InputError(f"{what}: is empty; it is a path on this machine")
    if URL.match(text):
        hint = f"; {instead}" if instead else ""
        raise InputError(f"{what}: {text!r} is a URL; it is a path on this machine{hint}")
    try:
        found = Path(text).expanduser().absolute()
        names = [os.fsencode(name) for name in found.parts]
        length = len(os.fsencode(found))
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(f"{what}: {text!r} cannot be a path: {error}") from error
    if "\0" in text:
        raise InputError(f"{what}: {text!r} cannot be a path: it holds the character 0")
    if max(map(len, names)) > LONGEST_NAME or length > LONGEST_PATH:
        raise InputError(
            f"{what}: {text!r} cannot be a path: it is too long; allowed are {LONGEST_NAME} bytes "
            f"a name and {LONGEST_PATH} in all"
        )
    return found


def storage_folder(storage: str | Path = DEFAULT_STORAGE) -> Path:
    """Return a storage folder, absolute; see ``local_path``.

    Raises:
        InputError: If it is a URL, or cannot be a path.
    """
    return local_path(storage, "storage", "`mirror` takes a URL of object storage")

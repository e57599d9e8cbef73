"""Folders that several users share: who may write there, and whose what stands in the way is."""

import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trainables.common.errors import InputError, StorageError

# Of lock files, which hold nothing: by default filelock keeps a folder's group out.
LOCK_MODE = 0o664
SHARED = stat.S_ISGID | stat.S_IWGRP


def follow_folder(folder: Path) -> None:
    """Open all that this process makes from now on to those who share a folder.

    Shared is one whose group may write it and is passed on (``chmod 2775``): its mode then takes
    the place of the umask, by which each user would keep out the others. Others are left alone.
    """
    with suppress(OSError):
        mode = folder.stat().st_mode
        if mode & SHARED == SHARED:
            os.umask(~mode & 0o007)


def inherit(path: Path) -> None:
    """Give a file or folder, made for its writer alone, to those who have the folder it lies in."""
    mode = path.parent.stat().st_mode
    path.chmod(mode & (0o2775 if path.is_dir() else 0o664))


def user_of(path: Path) -> str:
    """Return the name of whom a file or folder belongs to."""
    number = path.stat().st_uid
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def why(error: OSError) -> str:
    """Return what an error says in one line: of missing rights, to what, whose it is, a remedy."""
    if not isinstance(error, PermissionError) or error.filename is None:
        # Of shutil's own, which have a file but no number, Python 3.13 shows two times None.
        return error.strerror or "".join(map(str, error.args[:1]))
    path = Path(os.fsdecode(error.filename)).absolute()
    for place in (path, *path.parents):
        with suppress(OSError):
            mode = place.stat().st_mode
            if not os.access(place, os.R_OK | os.W_OK):
                return (
                    f"{error.strerror}: {place} belongs to {user_of(place)}, "
                    f"{stat.filemode(mode)}; its owner can share it (docs/cluster.md, Teams), or "
                    "use a storage of your own"
                )
    return f"{error.strerror}: {path}"


@contextmanager
def permitted() -> Iterator[None]:
    """Raise what rights to the storage are missing as a ``StorageError``."""
    try:
        yield
    except PermissionError as error:
        raise StorageError(f"storage cannot be used: {why(error)}") from error


@contextmanager
def writing(what: object, kind: type[InputError] = InputError) -> Iterator[None]:
    """Raise what keeps a file or folder from being written as an error that names it."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what} cannot be written: {why(error)}") from error

"""Atomic and durable writes, manifests of files and of the code, and shared folders.

Functions that write raise ``OSError`` if the disk fails.
"""

import errno
import hashlib
import json
import os
import pwd
import stat
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

from trainables.common.errors import AlteredCodeError, InputError, StorageError

# Mode of lock files; filelock's default excludes a folder's group.
LOCK_MODE = 0o664
SHARED = stat.S_ISGID | stat.S_IWGRP


def follow_folder(folder: Path) -> None:
    """Give the group of a shared folder access to all new files of this process.

    A folder is shared if its group may write and new files inherit the group (``chmod 2775``). Its
    mode then replaces this process's umask, which may exclude the group.
    """
    with suppress(OSError):
        mode = folder.stat().st_mode
        if mode & SHARED == SHARED:
            os.umask(~mode & 0o007)


def inherit(path: Path) -> None:
    """Give a private file or folder the access rights of its parent folder."""
    mode = path.parent.stat().st_mode
    path.chmod(mode & (0o2775 if path.is_dir() else 0o664))


def user_of(path: Path) -> str:
    """Return the name of a file's or folder's owner, or ``user NUMBER`` if it is unknown."""
    number = path.stat().st_uid
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def why(error: OSError) -> str:
    """Return the reason of an error as one line.

    A permission error names the first folder or file, from the path upwards, that this user may not
    read and write, with its owner and a remedy.
    """
    if not isinstance(error, PermissionError) or error.filename is None:
        # Errors of shutil have no number, so that Python 3.13 would print "None" twice.
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
    """Turn a ``PermissionError`` in the block into a ``StorageError``."""
    try:
        yield
    except PermissionError as error:
        raise StorageError(f"storage cannot be used: {why(error)}") from error


@contextmanager
def writing(what: object, kind: type[InputError] = InputError) -> Iterator[None]:
    """Turn an ``OSError`` in the block into a ``kind`` that names ``what``, a file or folder."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what} cannot be written: {why(error)}") from error


@contextmanager
def drafted(path: Path, durable: bool = False) -> Iterator[Path]:
    """Yield a draft's path in the file's folder; the draft replaces the file at the end.

    Until then readers see the old content; if the block raises, the draft is removed. The folder
    must exist. If ``durable``, content and name are synced to the disk.
    """
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        yield draft
        if durable:
            sync(draft)
        os.replace(draft, path)
        if durable:
            sync(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Sync the content of a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems always write folders through and refuse to sync them.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def sync_names(path: Path, levels: int) -> None:
    """Sync the ``levels`` nearest parent folders of a path, so that its name is on the disk."""
    for folder in list(path.absolute().parents)[:levels]:
        sync(folder)


def sync_folder(folder: Path) -> None:
    """Sync all files and folders in a folder, but not its own name."""
    for path in folder.rglob("*"):
        sync(path)
    sync(folder)


def make_folders(path: Path) -> None:
    """Make a folder and its missing parents, and sync their names."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync(folder.parent)


def place_folder(draft: Path, path: Path) -> None:
    """Sync a folder, then rename it to ``path``, which must not exist."""
    sync_folder(draft)
    os.rename(draft, path)
    sync(path.parent)


@contextmanager
def scratch_folder(prefix: str, parent: Path) -> Iterator[Path]:
    """Yield a new folder in ``parent``; remove it at the end unless it was renamed."""
    with TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as name:
        yield Path(name)


def write_whole(path: Path, text: str, durable: bool = False) -> None:
    """Write a text file as UTF-8; see ``drafted`` for ``durable``."""
    with drafted(path, durable) as draft:
        draft.write_text(text, encoding="utf-8")


MANIFEST = "manifest.json"
Files = Mapping[str, Mapping[str, Any]]
"""Size and SHA-256 of each file in a folder, by the path relative to the folder."""


def is_inside(path: Path, folder: Path) -> bool:
    """Return True if a path, after following links, is inside a folder."""
    return path.resolve().is_relative_to(folder.resolve())


def open_inside(path: Path, folder: Path) -> BinaryIO:
    """Open a regular file in a folder for reading.

    Raises:
        OSError: If the file is missing or is not a regular file, or links lead out of the folder.
    """
    real = path.resolve(strict=True)
    if not is_inside(real, folder):
        raise PermissionError(errno.EPERM, f"leads to a place outside {folder}", str(path))
    # Do not wait for the writer of a pipe, and do not follow a link that was made meanwhile.
    descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "is not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def seal(directory: Path) -> None:
    """Write the manifest of all files in a folder."""
    (directory / MANIFEST).write_text(json.dumps(describe_files(directory), sort_keys=True))


def read_document(path: Path, what: str, form: int) -> dict[str, Any]:
    """Return the JSON mapping in a file; raise ``InputError`` unless its ``format`` is ``form``.

    ``what`` names the expected content in messages.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, RecursionError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as {what} ({error})") from error
    if not isinstance(document, dict) or document.get("format") != form:
        raise InputError(f"{path}: is not {what} of format {form}")
    return document


def damage(directory: Path, needed: Iterable[str], alone: bool = True) -> str:
    """Return the first difference between a folder and its manifest, or "".

    The manifest must list all ``needed`` files. If ``alone``, the folder must not have files that
    the manifest does not list.

    Raises:
        PermissionError: If the folder or a file in it may not be read.
    """
    try:
        files = json.loads((directory / MANIFEST).read_text())
        present = {path.name for path in directory.iterdir()} - {MANIFEST}
        if gone := sorted({*files, *needed} - present):
            listed = "" if gone[0] in {*needed} else f", listed in its {MANIFEST},"
            return f"{gone[0]}{listed} is missing"
        if odd := sorted((present if alone else {*needed}) - {*files}):
            return f"{odd[0]} is not in its {MANIFEST}"
        for name, facts in files.items():
            if fault := file_fault(directory / name, facts):
                return f"{name} {fault}"
    except PermissionError:
        raise  # The files may be intact.
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"its {MANIFEST} cannot be used: {type(error).__name__}: {error}"
    return ""


def describe_files(folder: Path, pattern: str = "*") -> Files:
    """Return size and SHA-256 of the files below a folder that match a pattern; see ``Files``."""
    found = (path for path in sorted(folder.rglob(pattern)) if path.is_file())
    return {path.relative_to(folder).as_posix(): file_facts(path) for path in found}


def check_files(folder: Path, files: Files, hashed: bool = True) -> None:
    """Raise ``InputError`` if a listed file is missing or differs; read content if ``hashed``."""
    for name, facts in files.items():
        if fault := file_fault(folder / name, facts, hashed):
            raise InputError(f"{folder / name} {fault}")


def file_fault(path: Path, facts: Mapping[str, Any], hashed: bool = True) -> str:
    """Return the difference between a file and its entry in a manifest, or ""."""
    if not path.is_file():
        return "is missing"
    if (size := path.stat().st_size) != facts["bytes"]:
        return f"has {size} bytes, not {facts['bytes']}"
    if hashed and file_hash(path) != facts["sha256"]:
        return "does not match its checksum"
    return ""


def file_facts(path: Path) -> dict[str, Any]:
    """Return a file's entry in a manifest: its size in ``bytes`` and its ``sha256`` (hex)."""
    return {"bytes": path.stat().st_size, "sha256": file_hash(path)}


def file_hash(path: Path) -> str:
    """Return the SHA-256 (hex) of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


ROOMS, ENDINGS = ("trainables", "search_spaces"), (".py", ".yaml")


@cache
def code_files() -> dict[str, str]:
    """Return the SHA-256 (hex) of each Python and YAML file of ``ROOMS``, by its relative path."""
    root = Path(__file__).parents[2]
    files = (path for room in ROOMS for path in (root / room).rglob("*"))
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(files)
        if path.suffix in ENDINGS
    }


@cache
def code_hash() -> str:
    """Return the SHA-256 (hex) of all of ``code_files``."""
    return hashlib.sha256(repr(code_files()).encode()).hexdigest()


def altered_file(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """Return the name of the first file that differs between two ``code_files``, or ""."""
    return min((name for name, _ in here.items() ^ there.items()), default="")


def require_code(files: Mapping[str, str]) -> None:
    """Raise ``AlteredCodeError`` if this process's code differs from ``files``."""
    if name := altered_file(files, code_files()):
        raise AlteredCodeError(f"{name} has changed since the sweep began")

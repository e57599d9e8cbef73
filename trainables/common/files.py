"""Files that appear whole or not at all, manifests of them and of the code, and shared folders.

All that write raise ``OSError`` where the disk does not take it.
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


@contextmanager
def drafted(path: Path, durable: bool = False) -> Iterator[Path]:
    """Yield a path next to a file to write to; its content takes the file's place at the end.

    Other readers see the former content until then, and nothing is left of a draft whose writer
    raises. Its folder must exist. If ``durable``, the disk has content and name at the end.
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
    """Return when the disk has the content of a file, or the names in a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems write folders through, and refuse to sync them.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def sync_names(path: Path, levels: int) -> None:
    """Return when the disk has the name of a file or folder, and of those up to so many levels."""
    for folder in list(path.absolute().parents)[:levels]:
        sync(folder)


def sync_folder(folder: Path) -> None:
    """Return when the disk has all that a folder holds; its own name is not part of that."""
    for found in folder.rglob("*"):
        sync(found)
    sync(folder)


def make_folders(path: Path) -> None:
    """Make a folder and those above it; the disk has their names when this returns."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync(folder.parent)


def place_folder(draft: Path, path: Path) -> None:
    """Rename a folder to its place, where nothing may lie, once the disk has all of it."""
    sync_folder(draft)
    os.rename(draft, path)
    sync(path.parent)


@contextmanager
def scratch_folder(prefix: str, parent: Path) -> Iterator[Path]:
    """Yield a new folder in ``parent``, to be renamed when whole; an unfinished one is removed."""
    with TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as name:
        yield Path(name)


def write_whole(path: Path, text: str, durable: bool = False) -> None:
    """Write a text file; see ``drafted``."""
    with drafted(path, durable) as draft:
        draft.write_text(text, encoding="utf-8")


MANIFEST = "manifest.json"
Files = Mapping[str, Mapping[str, Any]]
"""Size and SHA-256 of every file of a folder, by its path below it."""


def is_inside(path: Path, folder: Path) -> bool:
    """Return True if a path leads to a place inside a folder once links are followed."""
    return path.resolve().is_relative_to(folder.resolve())


def open_inside(path: Path, folder: Path) -> BinaryIO:
    """Open a regular file inside a folder, links followed; raise ``OSError`` for all others."""
    real = path.resolve(strict=True)
    if not is_inside(real, folder):
        raise PermissionError(errno.EPERM, f"leads to a place outside {folder}", str(path))
    # Opening a pipe would wait for its writer; a link that is placed meanwhile is not followed.
    descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "is not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def seal(directory: Path) -> None:
    """Write the manifest of all files in a folder."""
    (directory / MANIFEST).write_text(json.dumps(describe_files(directory), sort_keys=True))


def read_document(path: Path, what: str, form: int) -> dict[str, Any]:
    """Return the JSON mapping in a file, ``what`` of a format; else raise ``InputError``."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, RecursionError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as {what} ({error})") from error
    if not isinstance(document, dict) or document.get("format") != form:
        raise InputError(f"{path}: not {what} of format {form}")
    return document


def damage(directory: Path, needed: Iterable[str], alone: bool = True) -> str:
    """Return the fault of the files in a folder whose manifest has to list all ``needed``, or "".

    If they are to be ``alone``, one that it does not list is damage too.

    Raises:
        PermissionError: If it may not be read.
    """
    try:
        files = json.loads((directory / MANIFEST).read_text())
        present = {path.name for path in directory.iterdir()} - {MANIFEST}
        found = present if alone else present.intersection(files)
        if found != set(files) or not found.issuperset(needed):
            return f"it holds {sorted(found)}, not what its manifest lists"
        for name, facts in files.items():
            if fault := file_fault(directory / name, facts):
                return f"{name} {fault}"
    except PermissionError:
        raise  # It may be intact.
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"by its {MANIFEST}, {type(error).__name__}: {error}"
    return ""


def describe_files(folder: Path, pattern: str = "*") -> Files:
    """Return the manifest of the files below a folder that match a pattern."""
    found = (path for path in sorted(folder.rglob(pattern)) if path.is_file())
    return {path.relative_to(folder).as_posix(): file_facts(path) for path in found}


def check_files(folder: Path, files: Files, hashed: bool = True) -> None:
    """Raise ``InputError`` if a file of a manifest is absent or differs from it."""
    for name, facts in files.items():
        if fault := file_fault(folder / name, facts, hashed):
            raise InputError(f"{folder / name} {fault}")


def file_fault(path: Path, facts: Mapping[str, Any], hashed: bool = True) -> str:
    """Return the difference of a file from its manifest, or ""; its content only if hashed."""
    if not path.is_file():
        return "is absent"
    if (size := path.stat().st_size) != facts["bytes"]:
        return f"has {size} bytes, not {facts['bytes']}"
    if hashed and file_hash(path) != facts["sha256"]:
        return "does not match its checksum"
    return ""


def file_facts(path: Path) -> dict[str, Any]:
    """Return what a manifest says of a file: ``bytes`` and ``sha256``."""
    return {"bytes": path.stat().st_size, "sha256": file_hash(path)}


def file_hash(path: Path) -> str:
    """Return the SHA-256 (hex) of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


ROOMS, ENDINGS = ("trainables", "search_spaces"), (".py", ".yaml")


@cache
def code_files() -> dict[str, str]:
    """Return the SHA-256 (hex) of each file, code or settings, by its path."""
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
    """Return the first file whose code differs between two processes; empty if none."""
    return min((name for name, _ in here.items() ^ there.items()), default="")


def require_code(files: Mapping[str, str]) -> None:
    """Raise ``AlteredCodeError``, which names a file, unless this process runs given code."""
    if name := altered_file(files, code_files()):
        raise AlteredCodeError(f"{name} is not as it was when the sweep began")

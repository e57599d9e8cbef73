"""One run at a time: a lock that passes on when its owner ends, however that was."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from trainables.common.errors import InputError
from trainables.common.files import make_folders
from trainables.common.sharing import LOCK_MODE

LOCK_SECONDS = 1.0  # Whoever is about to end keeps a start waiting, not away.


class BusyError(InputError):
    """Another run of the same benchmark is going on."""


@contextmanager
def held_lock(folder: Path) -> Iterator[str]:
    """Own a folder for the length of the block, or refuse.

    As in a sweep's folder, ``run.lock`` is locked, by the file system and for all machines that
    share it, and ``owner`` names the process for people.

    Yields:
        Whom it was taken over from, for a person to read; empty if that one ended in order.

    Raises:
        BusyError: If another process holds it.
        InputError: If the folder cannot be written.
    """
    path, owner = folder / "run.lock", folder / "owner"
    with ExitStack() as stack:
        try:
            make_folders(folder)
            stack.enter_context(FileLock(path, timeout=LOCK_SECONDS, mode=LOCK_MODE))
            gone = _read(owner)
            owner.write_text(f"process {os.getpid()} on {os.uname().nodename}", encoding="utf-8")
        except Timeout as error:
            holder = _read(owner) or "another process"
            raise BusyError(f"another run is going on: {holder} holds {path}") from error
        except OSError as error:
            raise InputError(f"lock {path} cannot be written: {error.strerror or error}") from error
        stack.callback(owner.unlink, missing_ok=True)
        yield gone


def _read(owner: Path) -> str:
    try:
        return owner.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""

"""One run at a time: a lock whose owner may have died, on this machine or another."""

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock

from trainables.common.errors import InputError
from trainables.common.files import make_folders
from trainables.common.sharing import LOCK_MODE

# Not filelock's lease: it takes a killed owner for alive until its parent has asked after it, and
# finds one on another machine gone only by watching for as long as it may be silent.
BEAT_SECONDS = 30.0
SILENT_SECONDS = 600.0
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class BusyError(InputError):
    """Another run of the same benchmark is going on."""


@contextmanager
def held_lock(path: Path, beat_seconds: float = BEAT_SECONDS) -> Iterator[str]:
    """Own ``path`` for the length of the block, or refuse.

    The file names its owner. An owner on this machine is gone when its process is (or when the
    machine has been started anew); one on another machine is gone when the file has not been
    touched for ten minutes by the file system's own clock. What an owner who is gone left is taken
    over.

    Args:
        path: The lock file, on a file system that every machine shares which may run.
        beat_seconds: How often the owner touches it.

    Yields:
        Whom it was taken over from, for a person to read; empty if nobody held it.

    Raises:
        BusyError: If another process holds it.
        InputError: If the file cannot be written.
    """
    mine = {**_here(), "pid": os.getpid(), "began": _began(os.getpid())}
    try:
        make_folders(path.parent)
        with FileLock(path.with_suffix(".moment"), mode=LOCK_MODE):
            gone = _taken_over(path)
            path.write_text(json.dumps(mine), encoding="utf-8")
    except OSError as error:
        raise InputError(f"lock {path} cannot be written: {error.strerror or error}") from error
    over = threading.Event()
    heart = threading.Thread(target=_beat, args=(path, over, beat_seconds), daemon=True)
    heart.start()
    try:
        yield gone
    finally:
        over.set()
        heart.join()
        if _read(path) == mine:
            path.unlink(missing_ok=True)


def _taken_over(path: Path) -> str:
    """Return the owner that held the lock and is gone, or an empty string; refuse a live one."""
    owner = _read(path)
    if owner is None:
        return ""
    named = f"process {owner.get('pid')} on {owner.get('host')}"
    if _alive(path, owner):
        raise BusyError(f"another run is going on: {named} holds {path}")
    return named


def _alive(path: Path, owner: dict[str, Any]) -> bool:
    here = _here()
    if owner.get("host") != here["host"]:
        return _silence(path) < SILENT_SECONDS
    if owner.get("boot") != here["boot"]:
        return False
    return owner.get("began") is not None and _began(int(owner["pid"])) == owner["began"]


def _silence(path: Path) -> float:
    """Return the seconds since the file was touched, by the clock of the file system."""
    probe = path.with_suffix(f".{os.getpid()}.probe")
    probe.touch()
    try:
        return probe.stat().st_mtime - path.stat().st_mtime
    finally:
        probe.unlink()


def _here() -> dict[str, str]:
    boot = BOOT_ID.read_text(encoding="ascii").strip() if BOOT_ID.exists() else ""
    return {"host": os.uname().nodename, "boot": boot}


def _began(pid: int) -> float | None:
    """Return when a process began, which tells it from a later one of the same number."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.NoSuchProcess:
        return None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        owner = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        # Half a file is that of a process which died while it wrote, under the moment's lock.
        return None
    return owner if isinstance(owner, dict) else None


def _beat(path: Path, over: threading.Event, seconds: float) -> None:
    last = time.monotonic()
    while not over.wait(min(1.0, seconds)):
        if time.monotonic() - last >= seconds:
            last = time.monotonic()
            with suppress(OSError):  # A shared file system that is away for a while.
                os.utime(path)

"""The local copy of a bucket: it fetches missing files and sends new ones in the background."""

import hashlib
import json
import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from trainables.common.errors import AwayError, InputError, StorageError
from trainables.common.files import (
    MANIFEST,
    damage,
    describe_files,
    file_hash,
    make_folders,
    place_folder,
    write_whole,
)
from trainables.store.bucket import Bucket

T = TypeVar("T")
LANES = 8  # Number of objects sent or fetched at once.
WAITING = "undelivered"
LIMIT = "CALSWEEP_CACHE_GB"  # Environment variable: size limit of the artifacts in a local copy.
GIGABYTES = 100.0
RECENT_SECONDS = 900.0  # Files used within this time stay in the local copy, whatever its size.
LONGEST_PAUSE = 30.0  # Longest time between two attempts to reach the bucket.


class Cache:
    """A local folder and the objects with the same names in a bucket.

    A thread of this process sends each file and retries until the bucket has it, so that no outage
    ends a sweep. If this process ends too early, ``deliver`` of another process sends the files for
    which ``promise`` left a note. A folder's manifest is sent last and never overwritten; a folder
    without one does not count as stored. The other objects of a folder have hashes in their names,
    so that files of two writers cannot mix.

    ``notice`` receives a message when the bucket stops answering or a folder is damaged. ``fetch``
    and ``replace`` raise the errors of ``Bucket``; ``has``, ``pull`` and ``remove`` do not raise
    ``AwayError``.
    """

    def __init__(self, folder: Path, address: str, notice: Callable[[str], None]) -> None:
        self.folder, self.bucket, self._notice = folder, Bucket(address), notice
        self._lanes, self._pool = ThreadPoolExecutor(LANES), ThreadPoolExecutor(LANES)
        self._queue: dict[str, None] = {}
        self._sending: dict[str, bool] = {}  # True if the version being sent is the latest.
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._away, self._refusal = False, ""
        self._measured, self._silent_until = 0.0, 0.0

    def name(self, path: Path) -> str:
        """Return the name of the object for a path in the folder."""
        return path.relative_to(self.folder).as_posix()

    def promise(self, path: Path) -> None:
        """Note on the disk that a file or folder, which is about to be written, must be sent."""
        note = self._note(self.name(path))
        make_folders(note.parent)
        write_whole(note, self.name(path), durable=True)

    def waits(self, path: Path) -> bool:
        """Return True if a path was promised and the bucket does not have it yet."""
        return self._note(self.name(path)).exists()

    def keep(self, path: Path) -> None:
        """Send a file's latest content, or a folder that the bucket lacks, in the background."""
        with self._changed:
            self._queue[self.name(path)] = None
            if self.name(path) in self._sending:
                self._sending[self.name(path)] = False
            if self._thread is None:
                self._thread = threading.Thread(target=self._send_all, daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def settle(self, seconds: float = float("inf")) -> bool:
        """Wait until this process has sent all its files; return True if it has.

        Waiting ends early if the bucket does not answer, and after ``seconds``.

        Raises:
            StorageError: If the bucket refused a file, for example for lack of rights.
        """
        with self._changed:
            limit = None if seconds == float("inf") else seconds
            self._changed.wait_for(lambda: not self._queue or self._away or self._refusal, limit)
            if self._refusal:
                raise StorageError(self._refusal)
            return not self._queue

    def deliver(self, seconds: float = LONGEST_PAUSE) -> int:
        """Send unsent files and folders, also those of other processes, for at most ``seconds``.

        Returns how many are still unsent. Raises ``StorageError`` if the bucket refuses one.
        """
        for name in self._noted():
            self.keep(self.folder / name)
        end = time.monotonic() + seconds
        while not self.settle(end - time.monotonic()) and time.monotonic() < end:
            time.sleep(min(1.0, seconds))
        with self._changed:
            return len({*self._queue, *self._noted()})

    def _noted(self) -> list[str]:
        found = []
        for note in sorted((self.folder / WAITING).glob("*")):
            with suppress(FileNotFoundError):  # It was sent meanwhile.
                name = note.read_text(encoding="utf-8")
                if (self.folder / name).exists():
                    found.append(name)
                elif time.time() - note.stat().st_mtime > RECENT_SECONDS:
                    note.unlink(missing_ok=True)  # It was never written, or was removed later.
        return found

    def _note(self, name: str) -> Path:
        return self.folder / WAITING / hashlib.sha256(name.encode()).hexdigest()[:32]

    def _send_all(self) -> None:
        pause = 1.0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._queue))
                # A name that is queued again in the meantime is sent again.
                names = dict.fromkeys(list(self._queue)[:LANES], True)
                self._sending = names
            try:
                sending = {name: self._lanes.submit(self._sent, name) for name in names}
            except RuntimeError:
                return  # The interpreter ends; another process sends the rest.
            faults = {name: sent.result() for name, sent in sending.items()}
            away = [fault for fault in faults.values() if isinstance(fault, AwayError)]
            with self._changed:
                for name, fault in faults.items():
                    if names[name] and not isinstance(fault, AwayError):
                        self._queue.pop(name, None)
                        self._refusal = self._refusal or str(fault or "")
                if away and not self._away:
                    self._notice(f"{away[0]}; waiting files are sent later")
                self._sending, self._away = {}, bool(away)
                self._silent_until = self._silent_until if away else 0.0
                self._changed.notify_all()
            if away:
                time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE) if away else 1.0

    def _sent(self, name: str) -> OSError | InputError | None:
        """Send a file or folder if it still exists; return the error, if any."""
        path = self.folder / name
        try:
            if path.is_dir():
                self._push(path)
            elif path.is_file():
                self.bucket.put(name, path)
            self._note(name).unlink(missing_ok=True)
            self._trim()
        except FileNotFoundError:
            return None  # It was removed meanwhile.
        except (OSError, StorageError) as error:
            return error
        return None

    def _push(self, folder: Path) -> None:
        name = self.name(folder)
        place = folder / MANIFEST
        if self.bucket.tag(f"{name}/{MANIFEST}") is not None:
            return
        if place.is_file():
            if fault := damage(folder, ()):
                self._notice(f"{folder} was not sent: it is damaged ({fault})")
                return
            listing = place.read_bytes()
        else:
            listing = json.dumps(describe_files(folder), sort_keys=True).encode()
        files = _listed(listing)
        self.each(lambda own: self.bucket.put(_object(name, own, files[own]), folder / own), files)
        self.bucket.create(f"{name}/{MANIFEST}", listing)

    def has(self, folder: Path) -> bool:
        """Return True if the bucket has a complete folder; False if it does not answer."""
        name = f"{self.name(folder)}/{MANIFEST}"
        return self._asked(lambda: self.bucket.tag(name) is not None)

    def _asked(self, ask: Callable[[], bool | None]) -> bool:
        """Return the answer to a request, or False if the bucket does not answer.

        After a missing answer, False is returned without a request for ``LONGEST_PAUSE`` seconds.
        """
        if time.monotonic() >= self._silent_until:
            try:
                return bool(ask())
            except AwayError as error:
                self._silent_until = time.monotonic() + LONGEST_PAUSE
                self._notice(f"{error}; trying again later")
        return False

    def pull(self, folder: Path) -> bool:
        """Fetch a folder; return True if it is now on the disk.

        Returns False if the bucket does not answer, or does not have the folder intact.

        Raises:
            StorageError: If the folder cannot be written here, or the bucket refuses the request.
        """
        return self._asked(lambda: self._pull(folder))

    def _pull(self, folder: Path) -> bool:
        name = self.name(folder)
        draft = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}.tmp")
        try:
            found = self.bucket.get(f"{name}/{MANIFEST}")
            if found is None:
                return False
            files = _listed(found.content)
            draft.mkdir(parents=True)

            def fetch(own: str) -> None:
                place = draft / own
                place.parent.mkdir(parents=True, exist_ok=True)
                there = self.bucket.fetch(_object(name, own, files[own]), place)
                if not there or file_hash(place) != files[own]["sha256"]:
                    raise _TornError(own)

            self.each(fetch, files)
            (draft / MANIFEST).write_bytes(found.content)
            place_folder(draft, folder)
        except (AwayError, StorageError):
            raise
        except (_TornError, ValueError, KeyError, TypeError) as error:
            self._notice(f"{self.bucket.address}/{name} is damaged ({error}): it counts as missing")
            # Remove the manifest, so that another process can send the folder again.
            if found is not None and self.bucket.tag(f"{name}/{MANIFEST}") == found.tag:
                self.bucket.remove(f"{name}/{MANIFEST}")
            return False
        except OSError as error:
            if not folder.exists():  # Otherwise another process fetched it first.
                raise StorageError(f"{folder} cannot be written: {error}") from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        self._trim()
        return True

    def fetch(self, path: Path) -> bool:
        """Fetch a file if the bucket has a newer one; return whether a local file now exists."""
        found, here = self.bucket.get(self.name(path)), path.exists()
        if found is None or (here and path.stat().st_mtime >= found.written.timestamp() - 1):
            return here
        return self.replace(path)

    def replace(self, path: Path) -> bool:
        """Fetch a file and replace the local one; return False if the bucket has none."""
        path.parent.mkdir(parents=True, exist_ok=True)
        return self.bucket.fetch(self.name(path), path)

    def forget(self, path: Path) -> None:
        """Remove a local file and cancel its sending."""
        path.unlink(missing_ok=True)
        self._note(self.name(path)).unlink(missing_ok=True)
        with self._changed:
            self._queue.pop(self.name(path), None)

    def remove(self, path: Path) -> None:
        """Remove a local file and, if the bucket answers, its object."""
        self.forget(path)
        self._asked(lambda: self.bucket.remove(self.name(path)))

    def each(self, action: Callable[[T], object], names: Iterable[T]) -> None:
        """Run an action for each name, several at once; raise the first error."""
        for _ in self._pool.map(action, names):
            pass

    def _trim(self) -> None:
        """Remove artifacts that the bucket has, longest unused first, until the size limit is met.

        Artifacts used within ``RECENT_SECONDS`` stay. The size is measured at most once in a tenth
        of this time.
        """
        if time.monotonic() - self._measured < RECENT_SECONDS / 10:
            return
        self._measured = time.monotonic()
        limit = float(os.environ.get(LIMIT) or GIGABYTES) * 1e9
        manifests = (self.folder / "artifacts").glob(f"*/*/*/{MANIFEST}")
        aged = sorted((path.stat().st_mtime, path.parent) for path in manifests)
        sizes = {path: sum(file.stat().st_size for file in path.iterdir()) for _, path in aged}
        excess = sum(sizes.values()) - limit
        for used, path in aged:
            if excess <= 0 or time.time() - used < RECENT_SECONDS:
                return
            if not self.waits(path):
                shutil.rmtree(path)
                excess -= sizes[path]


class _TornError(Exception):
    """An object is missing or does not match the manifest."""


def _listed(manifest: bytes) -> dict[str, Any]:
    """Return the files of a manifest; raise ``ValueError`` for paths outside its folder."""
    files = dict(json.loads(manifest))
    for name in files:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError(f"it names {name!r}")
    return files


def _object(folder: str, name: str, facts: dict[str, Any]) -> str:
    return f"{folder}/{name}.{facts['sha256'][:16]}"

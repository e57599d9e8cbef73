"""Locks for computing an artifact or running a sweep: on a shared file or in a bucket."""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock, Timeout

from trainables.common.errors import AwayError, InputError
from trainables.common.files import LOCK_MODE, permitted
from trainables.common.pulse import beat
from trainables.store.bucket import Bucket

# A holder that gives no sign of life for this time counts as stopped: a scheduler may have ended
# its trial, while the process keeps the lock until it gets another trial.
PATIENCE_SECONDS = 600.0


class ArtifactLock(AbstractContextManager["ArtifactLock"]):
    """The lock of the process that computes an artifact, on a file that all nodes share.

    As a context manager it waits until the lock is free. If its holder dies, the lock is released.
    ``take`` ignores a holder that was silent for ``PATIENCE_SECONDS`` since the first call:
    computing a stage twice wastes time, but waiting forever is a deadlock. It only compares times
    of this process, because clocks differ between machines and can be set.
    """

    def __init__(self, path: Path) -> None:
        with permitted():
            path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._lock = FileLock(path, mode=LOCK_MODE)
        self._sign, self._since = 0, 0.0

    @permitted()
    def take(self) -> bool:
        """Return True if this process may compute the artifact, False if another process does."""
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            if (sign := os.stat(self.path).st_mtime_ns) != self._sign:
                self._sign, self._since = sign, time.monotonic()
            return time.monotonic() - self._since > PATIENCE_SECONDS
        self.keep()
        return True

    def keep(self) -> None:
        """Send a sign of life if this process holds the lock."""
        if self._lock.is_locked:
            os.utime(self.path)

    def release(self) -> None:
        """Release the lock if this process holds it."""
        self._lock.release()

    @permitted()
    def __enter__(self) -> ArtifactLock:
        while True:
            beat()
            with suppress(Timeout):
                self._lock.acquire(timeout=LOOK_SECONDS)
                return self

    def __exit__(self, *_: object) -> None:
        self.release()


BEAT_SECONDS = 10.0  # Time between two signs of life.
SILENT_SECONDS = 35.0  # A holder that gives no sign of life for this time counts as dead.
LOOK_SECONDS = 1.0  # Time between two checks of a lock that another process holds.


class Lease(AbstractContextManager["Lease"]):
    """The lock of a process that computes an artifact or runs a sweep, for users of one bucket.

    A thread renews the lease while the last call of ``keep`` is at most ``patience`` seconds ago.
    Another process can take the lease if the holder released it, died on the same machine, or did
    not renew it for ``SILENT_SECONDS``; ``take`` never compares the clocks of two machines. Writes
    are conditional, so that only one of two simultaneous calls of ``take`` gets the lease. If the
    bucket does not answer, ``take`` returns True without it (computing twice is better than a
    standstill), but ``claim`` fails.

    Args:
        bucket: The bucket of the lease.
        name: The lease's object.
        who: Describes the holder for other processes.
        patience: Seconds for which the lease is renewed without a call of ``keep``.

    Attributes:
        alive: Whether another holder gave a sign of life since ``take`` was first called.
        lost: Whether another process has taken the lease from this one.
    """

    def __init__(
        self, bucket: Bucket, name: str, who: str = "", patience: float = PATIENCE_SECONDS
    ) -> None:
        self._bucket, self._name, self._who, self._patience = bucket, name, who, patience
        self._tag: str | None = None
        self._seen, self._since, self._looked = "", 0.0, -LOOK_SECONDS
        self._kept, self._beats = 0.0, 0
        self._over = threading.Event()
        self.alive = self.lost = False
        self._guard = threading.Lock()

    def take(self) -> bool:
        """Return True if this process may compute: it has the lease, or the bucket gives no answer.

        Returns False while another process holds the lease, and within ``LOOK_SECONDS`` of the
        last attempt.
        """
        if self._tag is not None:
            return True
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return False
        self._looked = now
        try:
            tag = self._bucket.create(self._name, self._content()) or self._taken_over()
        except AwayError:
            return True  # Computing twice is harmless: the outcome is stored once.
        if tag is None:
            return False
        self._tag, self.lost = tag, False
        self.keep()
        self._over.clear()
        threading.Thread(target=self._beat, daemon=True).start()
        return True

    def claim(self, taken: Callable[[str], InputError]) -> None:
        """Take the lease, after waiting to see if the present holder is alive.

        Raises:
            InputError: ``taken(holder)``, if the present holder is alive.
            AwayError: If the bucket does not answer.
        """
        while not self.take():
            if self.alive:
                raise taken(self.holder())
            time.sleep(LOOK_SECONDS)
        if self._tag is None:
            raise AwayError(f"storage {self._bucket.address} does not answer")

    def _taken_over(self) -> str | None:
        found = self._bucket.get(self._name)
        if found is None:
            return None
        if found.tag != self._seen:
            self.alive = bool(self._seen)
            self._seen, self._since = found.tag, time.monotonic()
        silent = time.monotonic() - self._since > SILENT_SECONDS
        if silent or _is_free(_parsed(found.content)):
            return self._bucket.replace(self._name, self._content(), found.tag)
        return None

    def holder(self) -> str:
        """Return the ``who`` of the present or last holder, or "" if the lease was never taken."""
        found = self._bucket.get(self._name)
        return str(_parsed(found.content).get("who", "")) if found else ""

    def is_held(self) -> bool:
        """Return True if a process, perhaps this one, has the lease and renewed it recently.

        By this machine's clock, the last renewal must be less than ``SILENT_SECONDS`` ago.
        """
        found = self._bucket.get(self._name)
        if found is None or _is_free(_parsed(found.content)):
            return False
        return time.time() - found.written.timestamp() < SILENT_SECONDS

    def keep(self) -> None:
        """Confirm that this process still needs the lease."""
        self._kept = time.monotonic()

    def release(self) -> None:
        """Release the lease if this process holds it."""
        self._over.set()
        with self._guard, suppress(AwayError):  # Without an answer, the lease runs out.
            tag, self._tag = self._tag, None
            if tag is not None:
                self._bucket.replace(self._name, self._content(free=True), tag)

    def _beat(self) -> None:
        while not self._over.wait(BEAT_SECONDS):
            if time.monotonic() - self._kept > self._patience:
                continue
            with self._guard:
                if self._tag is None:
                    return
                try:
                    tag = self._bucket.replace(self._name, self._content(), self._tag)
                except AwayError:
                    continue
                self._tag, self.lost = tag, tag is None

    def _content(self, free: bool = False) -> bytes:
        self._beats += 1
        process = psutil.Process()
        content: dict[str, Any] = {
            "free": free,
            "who": self._who,
            "machine": os.uname().nodename,
            "process": [process.pid, _began(process)],
            "mark": uuid.uuid4().hex,  # So that each version has a different tag.
        }
        return json.dumps(content).encode()

    def __enter__(self) -> Lease:
        while not self.take():
            beat()
            time.sleep(LOOK_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _parsed(content: bytes) -> dict[str, Any]:
    try:
        return dict(json.loads(content))
    except (ValueError, TypeError):
        return {}


def _is_free(lease: dict[str, Any]) -> bool:
    """Return True if a lease is released or unreadable, or its process on this machine has died."""
    if lease.get("free") or "process" not in lease:
        return True
    if lease.get("machine") != os.uname().nodename:
        return False
    pid, born = lease["process"]
    try:
        return bool(_began(psutil.Process(pid)) != born)
    except psutil.NoSuchProcess:
        return True


def _began(process: psutil.Process) -> float:
    """Return a process's start in seconds after boot, which a change of the clock does not move."""
    return round(process.create_time() - psutil.boot_time(), 2)

"""Locks of those who compute an artifact or run a sweep: a file that all nodes see, a lease."""

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

# Silence after which a holder counts as stopped: a scheduler may have ended its trial, and its
# process keeps the lock until it is given another.
PATIENCE_SECONDS = 600.0


class ArtifactLock(AbstractContextManager["ArtifactLock"]):
    """The lock of the process that computes an artifact, on a file that every node sees.

    As a context manager it waits for its turn. A holder that dies releases it; one that only falls
    silent is passed over, since to compute a stage twice is a waste, but to wait for good a
    deadlock.
    """

    def __init__(self, path: Path) -> None:
        with permitted():
            path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._lock = FileLock(path, mode=LOCK_MODE)

    @permitted()
    def take(self) -> bool:
        """Return True if the artifact may be computed here, False while another process does."""
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            return time.time() - os.stat(self.path).st_mtime > PATIENCE_SECONDS
        self.keep()
        return True

    def keep(self) -> None:
        """Give a sign of life, if the lock is held."""
        if self._lock.is_locked:
            os.utime(self.path)

    def release(self) -> None:
        """Pass the lock on; harmless if it is not held."""
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


BEAT_SECONDS = 10.0  # Seconds between two signs of life.
SILENT_SECONDS = 35.0  # Seconds without a sign of life after which a holder counts as dead.
LOOK_SECONDS = 1.0  # Seconds between two looks at a lock that another process holds.


class Lease(AbstractContextManager["Lease"]):
    """The lock of whoever computes an artifact or runs a sweep, for machines that share a bucket.

    A thread renews it while it is held. It passes to another process once its holder has released
    it, died, fallen silent, or not called ``keep`` for so long as ``patience``; clocks of machines
    are never compared. Every step is a conditional write: of two that take it at once, one does. To
    ``take`` it succeeds where the bucket does not answer: to compute twice is a waste, to wait a
    standstill. To ``claim`` it does not.

    Args:
        bucket: Where it lies.
        name: The object.
        who: Says who holds it, for whoever finds it taken.
        patience: For how long it is renewed without a call of ``keep``.

    Attributes:
        alive: Whether another holder gave a sign of life since ``take`` was first called.
        lost: Whether it was held, and another process holds it now.
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
        """Return True if it is held from now on, False while another process holds it."""
        if self._tag is not None:
            return True
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return False
        self._looked = now
        try:
            tag = self._bucket.create(self._name, self._content()) or self._taken_over()
        except AwayError:
            return True  # Better computed twice than not at all: an outcome is stored once.
        if tag is None:
            return False
        self._tag, self.lost = tag, False
        self.keep()
        self._over.clear()
        threading.Thread(target=self._beat, daemon=True).start()
        return True

    def claim(self, taken: Callable[[str], InputError]) -> None:
        """Hold it from now on; whether a holder is alive is waited for.

        Raises:
            AwayError: If the bucket does not answer.
        """
        while not self.take():
            if self.alive:
                raise taken(self.holder())
            time.sleep(LOOK_SECONDS)
        if self._tag is None:
            raise AwayError(f"storage {self._bucket.address} gives no answer")

    def _taken_over(self) -> str | None:
        found = self._bucket.get(self._name)
        if found is None:
            return None
        if found.tag != self._seen:
            self.alive = bool(self._seen)
            self._seen, self._since = found.tag, time.monotonic()
        silent = time.monotonic() - self._since > SILENT_SECONDS
        if silent or _is_free(_told(found.content)):
            return self._bucket.replace(self._name, self._content(), found.tag)
        return None

    def holder(self) -> str:
        """Return who holds it, or held it last."""
        found = self._bucket.get(self._name)
        return str(_told(found.content).get("who", "")) if found else ""

    def is_held(self) -> bool:
        """Return True if a process holds it, by this machine's clock."""
        found = self._bucket.get(self._name)
        if found is None or _is_free(_told(found.content)):
            return False
        return time.time() - found.written.timestamp() < SILENT_SECONDS

    def keep(self) -> None:
        """Give a sign of life of whatever the lock is held for."""
        self._kept = time.monotonic()

    def release(self) -> None:
        """Pass the lock on; harmless if it is not held."""
        self._over.set()
        with self._guard, suppress(AwayError):  # Else it passes on when its time is over.
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
        told: dict[str, Any] = {
            "free": free,
            "who": self._who,
            "machine": os.uname().nodename,
            "process": [process.pid, _began(process)],
            "mark": uuid.uuid4().hex,  # Each version is another one, so that its tag tells it.
        }
        return json.dumps(told).encode()

    def __enter__(self) -> Lease:
        while not self.take():
            beat()
            time.sleep(LOOK_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _told(content: bytes) -> dict[str, Any]:
    try:
        return dict(json.loads(content))
    except (ValueError, TypeError):
        return {}


def _is_free(told: dict[str, Any]) -> bool:
    """Return True if a lease was released, or its holder, on this machine, has died."""
    if told.get("free") or "process" not in told:
        return True
    if told.get("machine") != os.uname().nodename:
        return False
    pid, born = told["process"]
    try:
        return bool(_began(psutil.Process(pid)) != born)
    except psutil.NoSuchProcess:
        return True


def _began(process: psutil.Process) -> float:
    """Return when a process began, in seconds after the machine: clocks that are set move dates."""
    return round(process.create_time() - psutil.boot_time(), 2)

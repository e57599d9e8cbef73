"""Reads and writes objects of a bucket; a write can require that the object has not changed."""

import os
import random
import re
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    NotFoundError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import from_url

from trainables.common.errors import AwayError, InputError, StorageError
from trainables.common.files import drafted
from trainables.common.paths import scrubbed
from trainables.common.pulse import beat

# Seconds to wait before each retry; the actual wait is random, up to twice as long.
PAUSES = (0.1, 0.3, 1.0, 2.0, 4.0)
MAX_TEXT = 160
LOGIN = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or GOOGLE_APPLICATION_CREDENTIALS"
# obstore asks these hosts for the machine's role if the environment has no login.
_ROLES = ("169.254.169.254", "metadata.google.internal")
# A retry would not change these answers.
_ABSENT = (NotFoundError, FileNotFoundError)
_REFUSED = (PermissionDeniedError, UnauthenticatedError, InvalidPathError, NotSupportedError)
_LASTING = (*_ABSENT, *_REFUSED)
NO_BUCKET = "NoSuchBucket"
ANSWER = re.compile(r"<Code>(\w+)</Code>\s*<Message>([^<]*)</Message>")
T = TypeVar("T")


def client_options() -> Any:
    """Return obstore's options: timeouts, and plain HTTP if AWS_ENDPOINT_URL uses it."""
    return {
        "timeout": "600s",
        "read_timeout": "20s",
        "connect_timeout": "5s",
        "allow_http": os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://"),
    }


class Found(NamedTuple):
    """An object: its content, the tag of its present version, and the time of writing."""

    content: bytes
    tag: str
    written: datetime


class Listed(NamedTuple):
    """An object's name, size in bytes, and time of writing."""

    name: str
    bytes: int
    written: datetime


class Bucket:
    """The objects below an address, ``s3://BUCKET/PATH`` or ``gs://BUCKET/PATH``.

    Temporary faults (a busy server, a lost connection) are retried for some seconds. The login,
    region and server are read from the environment, such as ``AWS_ACCESS_KEY_ID``,
    ``AWS_SECRET_ACCESS_KEY``, ``AWS_REGION`` and ``AWS_ENDPOINT_URL``.

    Args:
        address: The address, without a login.
        patient: Whether to retry after temporary faults.

    All methods raise ``AwayError`` if the bucket does not answer, and ``StorageError`` if it
    refuses the request.
    """

    def __init__(self, address: str, patient: bool = True) -> None:
        self.address, self._patient = address, patient
        # Google's storage compares an object's generation instead of its content's hash.
        self._version = "version" if address.startswith("gs:") else "e_tag"
        try:
            self._store: Any = from_url(
                address,
                client_options=client_options(),
                retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=1)},
            )
        except (BaseError, ValueError) as error:
            raise InputError(f"storage {address} cannot be used: {self._reason(error)}") from error

    def get(self, name: str) -> Found | None:
        """Return an object, or None if it does not exist."""

        def get() -> Found | None:
            answer = self._store.get(name)
            meta = answer.meta
            return Found(bytes(answer.bytes()), str(meta[self._version]), meta["last_modified"])

        return self._tried(get, None)

    def tag(self, name: str) -> str | None:
        """Return the tag of an object's version, or None if it does not exist."""
        return self._tried(lambda: str(self._store.head(name)[self._version]), None)

    def fetch(self, name: str, path: Path) -> bool:
        """Write an object to a file, whole or not at all; return False if there is no object."""

        def fetch() -> bool:
            chunks = self._store.get(name).stream(min_chunk_size=8 << 20)
            with drafted(path) as draft, draft.open("wb") as stream:
                for chunk in chunks:
                    stream.write(chunk)
                    beat()
            return True

        return self._tried(fetch, False)

    def put(self, name: str, content: bytes | Path) -> None:
        """Write or overwrite an object."""
        self._tried(lambda: self._store.put(name, content))

    def create(self, name: str, content: bytes) -> str | None:
        """Write a new object and return its tag; None if the name is taken by other content."""
        return self._put_if(name, content, "create")

    def replace(self, name: str, content: bytes, tag: str) -> str | None:
        """Overwrite an object and return its new tag; None if it no longer has the tag ``tag``."""
        return self._put_if(name, content, {self._version: tag})

    def _put_if(self, name: str, content: bytes, mode: Any) -> str | None:
        def put() -> str | None:
            try:
                made = self._store.put(name, content, mode=mode, use_multipart=False)
                return str(made[self._version])
            except (AlreadyExistsError, PreconditionError, *_ABSENT):
                # An earlier attempt may have succeeded although its answer was lost.
                found = self.get(name)
                if found is None and mode == "create":
                    raise
                return found.tag if found and found.content == content else None

        return self._tried(put)

    def names(self, prefix: str) -> list[str]:
        """Return the names of all objects below a prefix, sorted."""
        return [found.name for found in self.listed(prefix)]

    def listed(self, prefix: str) -> list[Listed]:
        """Return all objects below a prefix, sorted by name."""

        def listed() -> list[Listed]:
            entries = (entry for chunk in self._store.list(prefix) for entry in chunk)
            return sorted(Listed(e["path"], e["size"], e["last_modified"]) for e in entries)

        return self._tried(listed)

    def folders(self, prefix: str) -> list[str]:
        """Return the names of the folders directly below a prefix, sorted."""

        def listed() -> list[str]:
            found = self._store.list_with_delimiter(prefix)["common_prefixes"]
            return sorted(name.rstrip("/").rpartition("/")[2] for name in found)

        return self._tried(listed)

    def remove(self, name: str) -> None:
        """Remove an object if it exists."""
        self._tried(lambda: self._store.delete(name), None)

    def _tried(self, action: Callable[[], T], *absent: T) -> T:
        """Return an action's result, after retries; for a missing object, ``absent`` if given."""
        for pause in (*(PAUSES if self._patient else ()), None):
            try:
                return action()
            except (AwayError, StorageError):
                raise  # The action has retried already.
            except (BaseError, OSError) as error:
                if absent and isinstance(error, _ABSENT):
                    return absent[0]
                text = f"storage {self.address}: {self._reason(error)}"
                if any(host in str(error) for host in _ROLES):
                    text = f"storage {self.address}: no login in the environment; {LOGIN}"
                    raise StorageError(text) from error
                if isinstance(error, _LASTING) or NO_BUCKET in str(error):
                    raise StorageError(text) from error
                if pause is None:
                    raise AwayError(text) from error
                time.sleep(pause * (1 + random.random()))
        raise AssertionError("the last attempt returns or raises")

    def _reason(self, error: Exception) -> str:
        line = str(error).partition("\n\nDebug source")[0]
        if answer := ANSWER.search(line):  # The text before the answer may be long.
            line = f"{answer[2]} ({answer[1]})"
        for secret in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            if os.environ.get(secret):
                line = line.replace(os.environ[secret], "***")
        reason = " ".join(scrubbed(line, self.address).split())
        return reason if len(reason) <= MAX_TEXT else f"{reason[:MAX_TEXT]}..."

"""A copy of artifacts on object storage, from which other machines and later ones take them."""

import json
import re
import shutil
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
from obstore.fsspec import register

from trainables.common.addresses import check_server, redacted, scrubbed, shown
from trainables.common.errors import InputError, StorageError
from trainables.common.files import make_folders, place_folder, write_whole
from trainables.store.bucket import client_options

LAST = "manifest.json"  # An artifact is whole on the mirror once this file of it is there.
WAITING = "unmirrored"
PAUSES = (0.5, 1.0, 2.0)
"""Seconds before each further attempt."""

LONGEST = 30.0
"""Seconds after which there is no further attempt."""

SILENCE = 60.0
"""Seconds for which a mirror that failed is left alone, so that no trial waits for it in vain."""

MAX_TEXT = 160
_CACHES = re.compile(r"^(\w+::)+")  # fsspec's chains, such as simplecache::s3://bucket
# Errors that trying again will not mend.
_LASTING = (
    FileNotFoundError,
    FileExistsError,
    PermissionError,
    NotADirectoryError,
    IsADirectoryError,
    NotImplementedError,
    ValueError,
    TypeError,
)


class Mirror:
    """Folders below a URL of any file system that fsspec knows, such as ``s3://bucket/calsweep``.

    What may pass, such as a timeout, a lost connection or a busy server, is tried again for some
    seconds. Not for a file system that every node sees anyway: then the storage folder itself lies
    there. The URL holds no login: it is stored, and drivers read theirs from the environment.

    Raises:
        InputError: If the URL's kind is unknown, its driver is not installed, or it holds a login.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        _check(url)
        options = {}
        if url.endswith("://") and url.startswith(("s3:", "gs:")):
            raise InputError(f"mirror '{url}' cannot be used: it names no bucket")
        if url.startswith(("s3://", "gs://")):
            register(["s3", "gs"])
            options = {"client_options": client_options()}
        try:
            self._files, self._root = fsspec.core.url_to_fs(url, **options)
        except (ImportError, ValueError, OSError, TypeError, AttributeError) as error:
            reason = " ".join(str(error).split())[:MAX_TEXT]
            raise InputError(f"mirror {shown(url)} cannot be used: {reason}") from error

    def pull(self, relative: str, directory: Path) -> bool:
        """Fetch a folder, if there is a whole copy of it; return whether there was.

        Raises:
            StorageError: If the mirror does not answer or ``directory`` cannot be written.
        """
        names = self._tried(lambda: self._manifest(relative))
        if names is None:
            return False
        draft = directory.with_name(f"{directory.name}.{uuid.uuid4().hex}.tmp")

        def fetch() -> None:
            for name in (*names, LAST):
                place = str(draft / Path(name).name)
                self._files.get_file(f"{self._root}/{relative}/{name}", place)

        try:
            draft.mkdir(parents=True)
            self._tried(fetch)
            place_folder(draft, directory)
        except OSError as error:
            if not directory.exists():  # Another process may have been first.
                raise StorageError(f"{directory} cannot be written: {error}") from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return True

    def push(self, directory: Path, relative: str) -> None:
        """Copy a folder there, the manifest last, unless it is there.

        Raises:
            StorageError: If the mirror does not take it.
        """
        target = f"{self._root}/{relative}"
        names = sorted(
            (path.name for path in directory.iterdir()), key=lambda name: (name == LAST, name)
        )

        def send() -> None:
            if self._manifest(relative) is not None:
                return
            self._files.makedirs(target, exist_ok=True)
            for name in names:
                self._files.put_file(str(directory / name), f"{target}/{name}")

        self._tried(send)

    def _manifest(self, relative: str) -> dict[str, Any] | None:
        """Return the manifest of a whole copy: its files by name."""
        try:
            return dict(json.loads(self._files.cat_file(f"{self._root}/{relative}/{LAST}")))
        except (FileNotFoundError, ValueError, TypeError):  # Absent, or cut short.
            return None

    def _tried(self, action: Callable[[], Any]) -> Any:
        start = time.monotonic()
        for pause in (*PAUSES, 0.0):
            try:
                return action()
            except Exception as error:
                last = not pause or time.monotonic() - start > LONGEST
                if last or isinstance(error, _LASTING):
                    text = scrubbed(f"{type(error).__name__}: {error}", self.url)
                    reason = " ".join(text.split())[:MAX_TEXT]
                    raise StorageError(f"mirror {redacted(self.url)}: {reason}") from error
                time.sleep(pause)
        raise AssertionError("the last attempt returns or raises")


def _check(url: str) -> None:
    """Refuse a URL of no host, of no such port, or with what would be stored and may be secret."""
    if not url.strip():
        raise InputError("mirror: is empty; it is a URL of object storage, or null for none")
    scheme, _, rest = _CACHES.sub("", url).partition("://")
    if not rest or rest.startswith("/"):
        return
    check_server("mirror", f"{scheme}://{rest}", "s3://BUCKET/PATH, without a login")
    if redacted(url) != url:
        raise InputError(
            f"mirror {shown(url)} holds a login, a query or a fragment, which would be stored; "
            "give the login as the driver reads it, such as AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY"
        )


class Copies:
    """A store's artifacts on a mirror: those that it did not take wait, as files in the store.

    A mirror that is away ends nothing. What should be there is noted before it is sent, and the
    note goes once it has arrived: so that a process which dies in between leaves no hole either.

    ``notice`` receives a line when the mirror fails, once in ``SILENCE`` seconds.

    Raises:
        InputError: See ``Mirror``.
    """

    def __init__(self, root: Path, url: str, notice: Callable[[str], None]) -> None:
        self._root = root
        self._mirror = Mirror(url)
        self._notice = notice
        self._silent_until = 0.0

    def pull(self, relative: str) -> bool:
        """Fetch an artifact; return whether it was there. One that cannot be asked for is not."""
        return self._told(lambda: self._mirror.pull(relative, self._root / relative))

    def promise(self, relative: str) -> None:
        """Note that an artifact, which is about to appear, has to be sent."""
        note = self._note(relative)
        make_folders(note.parent)
        write_whole(note, relative, durable=True)

    def keep(self, relative: str) -> None:
        """Send an artifact that was promised, unless the mirror has just failed."""
        self._told(lambda: self._send(relative))

    def deliver(self) -> int:
        """Send all that waits, until the mirror fails; return how many artifacts still wait."""
        waiting = self._waiting()
        self._silent_until = 0.0
        for relative in waiting:
            if not self._told(partial(self._send, relative)):
                break
        return len(self._waiting())

    def _waiting(self) -> list[str]:
        notes = sorted((self._root / WAITING).glob("*"))
        found = [note.read_text(encoding="utf-8") for note in notes]
        # Of the others nothing was stored, or they were removed since.
        return [relative for relative in found if (self._root / relative / LAST).is_file()]

    def _send(self, relative: str) -> bool:
        self._mirror.push(self._root / relative, relative)
        self._note(relative).unlink(missing_ok=True)
        return True

    def _note(self, relative: str) -> Path:
        return self._root / WAITING / relative.replace("/", "-")

    def _told(self, action: Callable[[], bool]) -> bool:
        """Return what ``action`` does, or False, after a notice, if the mirror fails."""
        if time.monotonic() < self._silent_until:
            return False
        try:
            return action()
        except StorageError as error:
            self._silent_until = time.monotonic() + SILENCE
            self._notice(f"{error}; it is asked again later")
            return False

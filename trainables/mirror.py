"""A copy of artifacts on object storage, from which other machines and later ones take them."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec

from trainables.errors import InputError, StorageError

__all__ = ["Mirror"]

LAST = "manifest.json"  # An artifact is whole on the mirror once this file of it is there.


class Mirror:
    """Folders below a URL of any file system that fsspec knows, such as ``s3://bucket/calsweep``.

    Not for a file system that every node sees anyway: then the storage folder itself lies there.

    Args:
        url: Where the copies lie.

    Raises:
        InputError: If the URL's kind is unknown, or its driver is not installed.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        try:
            self._files, self._root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise InputError(f"mirror {url!r} cannot be used: {error}") from error

    def contains(self, relative: str) -> bool:
        """Tell whether a whole copy of a folder is there.

        Raises:
            StorageError: If the mirror does not answer.
        """
        return bool(self._tried(lambda: self._files.exists(f"{self._root}/{relative}/{LAST}")))

    def pull(self, relative: str, directory: Path) -> bool:
        """Fetch a folder, if there is a whole copy of it; return whether there was.

        Raises:
            StorageError: If the mirror does not answer or ``directory`` cannot be written.
        """
        if not self.contains(relative):
            return False
        draft = directory.with_name(f"{directory.name}.{uuid.uuid4().hex}.tmp")
        source = f"{self._root}/{relative}"
        try:
            draft.mkdir(parents=True)
            self._tried(lambda: self._fetch(source, draft))
            draft.rename(directory)
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
        if self.contains(relative):
            return
        target = f"{self._root}/{relative}"
        names = sorted(
            (path.name for path in directory.iterdir()), key=lambda name: (name == LAST, name)
        )

        def send() -> None:
            self._files.makedirs(target, exist_ok=True)
            for name in names:
                self._files.put_file(str(directory / name), f"{target}/{name}")

        self._tried(send)

    def _fetch(self, source: str, draft: Path) -> None:
        for path in self._files.ls(source, detail=False):
            self._files.get_file(path, str(draft / path.rstrip("/").rsplit("/", 1)[-1]))

    def _tried(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise StorageError(f"mirror {self.url}: {reason}") from error

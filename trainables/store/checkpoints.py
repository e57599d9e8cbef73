import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from trainables.common.errors import AwayError, StorageError
from trainables.common.files import drafted
from trainables.common.sharing import why
from trainables.store.cache import Cache


class Checkpoint:
    """The file of one stage's state; it outlives trial and driver.

    In the local copy of a bucket, ``cache``, the latest state there counts.
    """

    def __init__(self, path: Path, cache: Cache | None = None) -> None:
        self.path, self._cache = path, cache

    def __str__(self) -> str:
        """Return where it lies."""
        return str(self.path)

    def exists(self) -> bool:
        """Return True if a state was written."""
        if self._cache is not None:
            with suppress(AwayError):
                return self._cache.fetch(self.path)
        return self.path.exists()

    def write(self, content: dict[str, Any]) -> None:
        """Write a state, tensors and plain values; raise ``StorageError`` if that cannot be."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with drafted(self.path) as draft, draft.open("wb") as stream:
                torch.save(content, stream)
        except (OSError, RuntimeError) as error:
            # Of a full disk torch says only at which byte it stopped.
            cause = error.__context__ if isinstance(error.__context__, OSError) else error
            reason = why(cause) if isinstance(cause, PermissionError) else cause
            raise StorageError(f"cannot write checkpoint {self}: {reason}") from error
        if self._cache is not None:
            self._cache.keep(self.path)

    def read(self) -> dict[str, Any]:
        """Return a state whose every checksum holds: torch writes them, but does not look at them.

        Raises:
            ValueError: If one does not hold. Other damage raises whatever it happens to raise.
        """
        with zipfile.ZipFile(self.path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise ValueError(f"{damaged} does not match its checksum")
        return dict(torch.load(self.path, map_location="cpu", weights_only=True))

    def remove(self) -> None:
        """Remove it; harmless if it is not there."""
        if self._cache is None:
            self.path.unlink(missing_ok=True)
        else:
            self._cache.remove(self.path)

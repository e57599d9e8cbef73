"""The state of an unfinished stage: written whole or not at all, read only if intact."""

import zipfile
from pathlib import Path
from typing import Any

import torch

from trainables.common.errors import StorageError
from trainables.common.files import drafted


class Checkpoint:
    """The file of one stage's state; it outlives trial and driver."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        """Return where it lies."""
        return str(self.path)

    def exists(self) -> bool:
        """Return True if a state was written."""
        return self.path.exists()

    def write(self, content: dict[str, Any]) -> None:
        """Write a state, tensors and plain values.

        Raises:
            StorageError: If the storage cannot be written.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with drafted(self.path) as draft, draft.open("wb") as stream:
                torch.save(content, stream)
        except (OSError, RuntimeError) as error:
            # Of a full disk torch says only at which byte it stopped.
            reason = error.__context__ if isinstance(error.__context__, OSError) else error
            raise StorageError(f"cannot write checkpoint {self}: {reason}") from error

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
        self.path.unlink(missing_ok=True)

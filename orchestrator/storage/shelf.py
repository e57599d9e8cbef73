"""What lies in a storage folder, for whoever removes it: artifacts and unfinished work."""

import json
import shutil
from pathlib import Path
from typing import Any

from trainables.common.errors import InputError
from trainables.common.files import MANIFEST, why
from trainables.store.artifacts import RECORD


class Shelf:
    """The artifacts of a storage, by their places in the folder ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def kinds(self) -> list[str]:
        """Return the stages of artifacts, and ``checkpoints``."""
        return sorted(path.name for path in self.root.glob("*") if path.is_dir())

    def artifacts(self, kind: str) -> list[Path]:
        """Return the artifacts of a stage."""
        # By their place: what else somebody put or linked there is not ours to remove.
        found = (path for path in (self.root / kind).glob("*/*") if path.is_dir())
        own = (path for path in found if path.name[:2] == path.parent.name)
        return sorted(path for path in own if path.suffix != ".tmp")

    def checkpoints(self) -> list[Path]:
        """Return the states of unfinished stages."""
        return sorted((self.root / "checkpoints").rglob("*.pt"))

    def drafts(self) -> list[Path]:
        """Return files being written, also when their process died."""
        return sorted(self.root.rglob("*.tmp"))

    def record(self, artifact: Path) -> dict[str, Any]:
        """Return an artifact's record; empty where there is none that can be read."""
        try:
            return dict(json.loads(self._record(artifact)))
        except PermissionError:
            raise  # What it builds on would go.
        except (OSError, ValueError, TypeError):
            return {}

    def _record(self, artifact: Path) -> str | bytes:
        return (artifact / RECORD).read_text()

    def used(self, path: Path) -> float:
        """Return when a draft, or an artifact, was written or asked for, seconds since 1970."""
        manifest = path / MANIFEST
        return (manifest if manifest.exists() else path).stat().st_mtime

    def size(self, path: Path) -> int:
        """Return the bytes of a file, or of all files in a folder."""
        if path.is_file():
            return path.stat().st_size
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())

    def remove(self, path: Path) -> None:
        """Remove a file, or a folder and its lock.

        Raises:
            InputError: If it cannot be removed.
        """
        try:
            if path.is_file():
                path.unlink(missing_ok=True)
                return
            shutil.rmtree(path)
            path.with_suffix(".lock").unlink(missing_ok=True)
        except OSError as error:
            numbered = error.errno and not isinstance(error, PermissionError)
            reason = error if numbered else why(error)
            raise InputError(f"{path} cannot be removed: {reason}") from error

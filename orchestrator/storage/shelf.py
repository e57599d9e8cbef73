"""List and remove the artifacts and unfinished files of a storage."""

import json
import shutil
from pathlib import Path
from typing import Any

from trainables.common.errors import InputError
from trainables.common.files import MANIFEST, why
from trainables.store.artifacts import RECORD
from trainables.store.bucket import Bucket, Listed


class Shelf:
    """The artifacts of a storage, by their paths in the folder ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def kinds(self) -> list[str]:
        """Return the names of the folders: the stages of artifacts, and ``checkpoints``."""
        return sorted(path.name for path in self.root.glob("*") if path.is_dir())

    def artifacts(self, kind: str) -> list[Path]:
        """Return the artifacts of a stage."""
        # Only paths that the store uses: never remove other files that users put there.
        folders = (path for path in (self.root / kind).glob("*/*") if path.is_dir())
        own = (path for path in folders if path.name[:2] == path.parent.name)
        return sorted(path for path in own if path.suffix != ".tmp")

    def checkpoints(self) -> list[Path]:
        """Return the checkpoints of unfinished stages."""
        return sorted((self.root / "checkpoints").rglob("*.pt"))

    def drafts(self) -> list[Path]:
        """Return files and folders that are being written, or whose writer has died."""
        return sorted(self.root.rglob("*.tmp"))

    def record(self, artifact: Path) -> dict[str, Any]:
        """Return an artifact's record, empty if it is missing or damaged."""
        try:
            return dict(json.loads(self._record(artifact)))
        except PermissionError:
            raise  # An empty record would allow the removal of its upstream artifact.
        except (OSError, ValueError, TypeError):
            return {}

    def _record(self, artifact: Path) -> str | bytes:
        return (artifact / RECORD).read_text()

    def used(self, path: Path) -> float:
        """Return when a draft or an artifact was last written or used, seconds since 1970."""
        manifest = path / MANIFEST
        return (manifest if manifest.exists() else path).stat().st_mtime

    def size(self, path: Path) -> int:
        """Return the size of a file or folder in bytes."""
        if path.is_file():
            return path.stat().st_size
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())

    def remove(self, path: Path) -> None:
        """Remove a file, or a folder with its lock."""
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


class BucketShelf(Shelf):
    """The objects of a bucket, by the local paths of their artifacts, checkpoints and sweeps."""

    def __init__(self, root: Path, address: str) -> None:
        super().__init__(root)
        self._bucket = Bucket(address)
        self._objects: dict[Path, list[Listed]] = {}
        for kind in ("artifacts", "leases", "sweeps"):
            for found in self._bucket.listed(kind):
                self._objects.setdefault(self._place(Path(found.name).parts), []).append(found)

    def _place(self, parts: tuple[str, ...]) -> Path:
        """Return the local file or folder to which an object belongs."""
        if parts[0] == "sweeps":
            return self.root.parent.joinpath(*parts[:2])
        if parts[0] == "leases":
            stage, key = parts[1], parts[-1]
            return self.root / stage / key[:2] / key
        return self.root.joinpath(*parts[1:4])

    def kinds(self) -> list[str]:
        inside = (path for path in self._objects if path.is_relative_to(self.root))
        return sorted({path.relative_to(self.root).parts[0] for path in inside})

    def artifacts(self, kind: str) -> list[Path]:
        """Return the complete artifacts of a stage."""
        return sorted(path for path in self._of(kind) if self._object(path, MANIFEST))

    def _of(self, kind: str) -> list[Path]:
        return [path for path in self._objects if path.is_relative_to(self.root / kind)]

    def _object(self, path: Path, name: str) -> str:
        """Return the name of the object of an artifact's file; empty if there is none."""
        names = (found.name for found in self._objects.get(path, ()))
        return next((own for own in names if Path(own).name.startswith(name)), "")

    def checkpoints(self) -> list[Path]:
        return sorted(self._of("checkpoints"))

    def drafts(self) -> list[Path]:
        """Return artifacts without a manifest: a process uploads them, or it has died."""
        kinds = [kind for kind in self.kinds() if kind != "checkpoints"]
        found = (path for kind in kinds for path in self._of(kind))
        return sorted(path for path in found if not self._object(path, MANIFEST))

    def _record(self, artifact: Path) -> str | bytes:
        found = self._bucket.get(self._object(artifact, RECORD) or RECORD)
        return found.content if found else ""

    def used(self, path: Path) -> float:
        """Return when the last object of a path was written, seconds since 1970."""
        return max(found.written.timestamp() for found in self._objects[path])

    def size(self, path: Path) -> int:
        return sum(found.bytes for found in self._objects.get(path, ()))

    def remove(self, path: Path) -> None:
        """Remove the objects of a path, the manifest first, and the local copy."""
        names = [found.name for found in self._objects.get(path, ())]
        for name in sorted(names, key=lambda own: Path(own).name != MANIFEST):
            self._bucket.remove(name)
        if path.exists():
            super().remove(path)

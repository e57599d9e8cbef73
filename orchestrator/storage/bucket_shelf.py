"""What lies in a storage in a bucket, for whoever removes it."""

from pathlib import Path

from orchestrator.storage.shelf import Shelf
from trainables.common.files import MANIFEST
from trainables.store.artifacts import RECORD
from trainables.store.bucket import Bucket, Listed


class BucketShelf(Shelf):
    """The objects of a bucket, by the places of their folders in the local copy.

    Args:
        root: Of the artifacts in the local copy.
        address: Of the bucket.

    All methods raise as those of ``Bucket`` do.
    """

    def __init__(self, root: Path, address: str) -> None:
        super().__init__(root)
        self._bucket = Bucket(address)
        self._objects: dict[Path, list[Listed]] = {}
        for kind in ("artifacts", "leases", "sweeps"):
            for found in self._bucket.listed(kind):
                self._objects.setdefault(self._place(Path(found.name).parts), []).append(found)

    def _place(self, parts: tuple[str, ...]) -> Path:
        """Return the file or folder that an object is part of."""
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
        """Return the artifacts of a stage that are whole."""
        return sorted(path for path in self._of(kind) if self._object(path, MANIFEST))

    def _of(self, kind: str) -> list[Path]:
        return [path for path in self._objects if path.is_relative_to(self.root / kind)]

    def _object(self, path: Path, name: str) -> str:
        """Return the name of the object of a file of an artifact; empty if there is none."""
        names = (found.name for found in self._objects.get(path, ()))
        return next((own for own in names if Path(own).name.startswith(name)), "")

    def checkpoints(self) -> list[Path]:
        return sorted(self._of("checkpoints"))

    def drafts(self) -> list[Path]:
        """Return artifacts without a manifest: being sent, or left so by a process that died."""
        kinds = [kind for kind in self.kinds() if kind != "checkpoints"]
        found = (path for kind in kinds for path in self._of(kind))
        return sorted(path for path in found if not self._object(path, MANIFEST))

    def _record(self, artifact: Path) -> str | bytes:
        found = self._bucket.get(self._object(artifact, RECORD) or RECORD)
        return found.content if found else ""

    def used(self, path: Path) -> float:
        """Return when the last object of it was written, seconds since 1970."""
        return max(found.written.timestamp() for found in self._objects[path])

    def size(self, path: Path) -> int:
        return sum(found.bytes for found in self._objects.get(path, ()))

    def remove(self, path: Path) -> None:
        """Remove its objects, the manifest first, and its local copy."""
        names = [found.name for found in self._objects.get(path, ())]
        for name in sorted(names, key=lambda own: Path(own).name != MANIFEST):
            self._bucket.remove(name)
        if path.exists():
            super().remove(path)

"""Outcomes of stages, each stored once under a key of everything that determines it."""

import hashlib
import json
import logging
import os
import shutil
import uuid
import zipfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from filelock import FileLock
from safetensors import SafetensorError

from trainables.common.errors import AwayError, StorageError
from trainables.common.files import (
    LOCK_MODE,
    MANIFEST,
    damage,
    drafted,
    file_facts,
    inherit,
    permitted,
    place_folder,
    seal,
    sync_names,
    why,
)
from trainables.common.later import Tensor, safetensors, torch
from trainables.common.paths import PLUGINS, bucket_address
from trainables.common.stages import ArtifactRef
from trainables.store.cache import Cache
from trainables.store.locks import ArtifactLock, Lease


class Checkpoint:
    """The file with the state of an unfinished stage; it outlives the trial and the driver.

    With a ``cache``, the file is also an object in a bucket.
    """

    def __init__(self, path: Path, cache: Cache | None = None) -> None:
        self.path, self._cache = path, cache

    def __str__(self) -> str:
        return str(self.path)

    def exists(self) -> bool:
        """Return True if a state is stored; a newer one in the bucket is fetched first."""
        if self._cache is not None:
            with suppress(AwayError):
                return self._cache.fetch(self.path)
        return self.path.exists()

    def write(self, content: dict[str, Any]) -> None:
        """Write a state of tensors and plain values; raise ``StorageError`` if this fails."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with drafted(self.path) as draft, draft.open("wb") as stream:
                torch.save(content, stream)
        except (OSError, RuntimeError) as error:
            # When the disk is full, torch reports only the byte position.
            cause = error.__context__ if isinstance(error.__context__, OSError) else error
            reason = why(cause) if isinstance(cause, PermissionError) else cause
            raise StorageError(f"cannot write checkpoint {self}: {reason}") from error
        if self._cache is not None:
            self._cache.keep(self.path)

    def read(self) -> dict[str, Any]:
        """Return the state after comparing its checksums, which torch writes but does not check.

        Raises:
            ValueError: If a checksum is wrong. Other damage may raise any exception.
        """
        with zipfile.ZipFile(self.path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise ValueError(f"{damaged} does not match its checksum")
        return dict(torch.load(self.path, map_location="cpu", weights_only=True))

    def remove(self) -> None:
        """Remove the file, and its object in the bucket, if they exist."""
        if self._cache is None:
            self.path.unlink(missing_ok=True)
        else:
            self._cache.remove(self.path)


SCHEMA_VERSION = 2  # Increase it when a stage computes a different result from the same inputs.
RECORD = "record.json"
DROPPED = "dropped"  # This file marks an artifact whose weights were removed.
WEIGHTS = ("weights.safetensors", "head.safetensors")
LEVELS = 4  # Number of folders above an artifact: prefix, stage, root and storage.

log = logging.getLogger(__name__)


def stage_key(stage: str, **determinants: Any) -> str:
    """Return the key of a stage's outcome: a SHA-256 of everything that determines it.

    Args:
        stage: The stage's name, such as ``train``, ``features`` or ``evaluate``.
        **determinants: Plain JSON values: hyper-parameters, task, seed, upstream key. The order of
            names has no effect, and 6 is the same number as 6.0.

    Raises:
        TypeError: If a determinant is not a plain JSON value.
        ValueError: If a number is not finite.
    """
    content = [SCHEMA_VERSION, stage, _one_spelling(determinants)]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _one_spelling(value: Any) -> Any:
    """Write whole numbers as int, so that 6 in a sweep file has the key of the default 6.0."""
    if isinstance(value, Mapping):
        return {name: _one_spelling(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_one_spelling(entry) for entry in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@dataclass(frozen=True)
class Artifact:
    """The stored outcome of one stage.

    Attributes:
        ref: Its stage and key.
        directory: The folder of its files.
        record: Metrics, configuration and provenance.
    """

    ref: ArtifactRef
    directory: Path
    record: Mapping[str, Any]

    @property
    def stage(self) -> str:
        """Return the stage's name."""
        return self.ref.stage

    @property
    def key(self) -> str:
        """Return the key."""
        return self.ref.key

    @property
    def upstream(self) -> ArtifactRef | None:
        """Return the stage and key of the outcome that this one was computed from, or None."""
        request = self.record["request"]
        key = request["upstream"]
        return None if key is None else ArtifactRef(request["upstream_stage"], key)

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Return the tensors of the file ``NAME.safetensors``, on the CPU."""
        return safetensors.load_file(self.directory / f"{name}.safetensors")


class ArtifactStore:
    """A folder of artifacts, safe for many processes at once.

    An artifact is never half written: its draft is renamed at the end, and it is on the disk when
    ``write`` returns. ``find`` removes an artifact whose files do not match their manifest, so that
    it is fetched or computed again.

    For a bucket, the store is the folder ``artifacts`` of its local copy (see ``storage_folder``):
    missing artifacts are fetched from the bucket, new ones are sent in the background, and locks
    are leases in the bucket.

    Args:
        root: The folder, local or on a file system that every node shares.
        notice: Receives messages for the user, such as a line per damaged artifact.
    """

    def __init__(self, root: Path, notice: Callable[[str], None] = log.warning) -> None:
        self.root = Path(root)
        self.notice = notice
        bucket = bucket_address(self.root.parent)
        self._cache = None if bucket is None else Cache(self.root.parent, bucket, notice)
        self._leases: dict[str, Lease] = {}
        self._damaged: dict[ArtifactRef, str] = {}
        self._only_reads = False

    def reader(self) -> Self:
        """Return this store with a ``find`` that keeps damaged artifacts and times of last use.

        Its ``find`` gives no notice of damage; ``fault`` describes it.
        """
        found = copy(self)
        found._only_reads = True
        return found

    def path(self, ref: ArtifactRef) -> Path:
        """Return the folder of an artifact, whether it exists or not."""
        return self.root / ref.stage / ref.key[:2] / ref.key

    @permitted()
    def find(self, ref: ArtifactRef, whole: bool = True) -> Artifact | None:
        """Return an intact artifact; None if it is missing or damaged, or ``ref`` has no key.

        An artifact that is missing or damaged in the local folder is fetched from the bucket, if
        there is one. With ``whole``, None is also returned for one whose weights were removed.
        """
        if not ref.key:  # Its path would be the folder of all artifacts of the stage.
            return None
        directory = self.path(ref)
        if not self.holds(ref) and not self._pulled(ref):
            return None
        if found := _damage(directory):
            self._damaged[ref] = f"{directory} is damaged ({found})"
            if self._only_reads:
                return None
            self.notice(f"artifact {self._damaged[ref]}: it counts as missing")
            with self._changing():
                _remove_damaged(directory)
            if not self._pulled(ref) or _damage(directory):
                return None
        if whole and self.is_dropped(ref):
            return None
        if not self._only_reads:
            with suppress(OSError):  # It may belong to another user or be on a read-only disk.
                os.utime(directory / MANIFEST)  # The time of the last use.
        return Artifact(ref, directory, json.loads((directory / RECORD).read_text()))

    def fault(self, ref: ArtifactRef) -> str:
        """Return why ``find`` did not return an artifact: it is missing, or how it is damaged."""
        return self._damaged.get(ref, f"{self.path(ref)} is missing")

    def holds(self, ref: ArtifactRef) -> bool:
        """Return True if an artifact is in the local folder, intact or not."""
        path = self.path(ref)
        if path.exists():
            return True
        # The client of a network file system may remember for a minute that the artifact was
        # missing. It asks the server again when a process opens a folder.
        for folder in reversed(path.parents[:LEVELS]):
            with suppress(OSError):
                os.close(os.open(folder, os.O_RDONLY))
        return path.exists()

    def contains(self, ref: ArtifactRef) -> bool:
        """Return True if the folder or bucket has an artifact with its weights, damaged or not."""
        if not ref.key:
            return False
        path = self.path(ref)
        if self.holds(ref) and (path / MANIFEST).is_file():
            return not self.is_dropped(ref)
        return self._cache is not None and self._cache.has(path)

    def is_dropped(self, ref: ArtifactRef) -> bool:
        """Return True if an artifact is in the local folder without its weights."""
        return (self.path(ref) / DROPPED).exists()

    def drop_weights(self, ref: ArtifactRef) -> None:
        """Remove an artifact's weights if it is in the local folder; keep everything else."""
        directory = self.path(ref)
        if not directory.exists() or self.is_dropped(ref):
            return
        draft, old = (directory.with_name(f"{ref.key}.{uuid.uuid4().hex}.tmp") for _ in range(2))
        try:
            shutil.copytree(directory, draft, ignore=shutil.ignore_patterns(*WEIGHTS))
            (draft / DROPPED).touch()
            # Keep the old hashes, so that existing damage is still detected.
            files = json.loads((directory / MANIFEST).read_text())
            kept = {name: facts for name, facts in files.items() if name not in WEIGHTS}
            listed = {**kept, DROPPED: file_facts(draft / DROPPED)}
            (draft / MANIFEST).write_text(json.dumps(listed, sort_keys=True))
            with self._changing():
                directory.rename(old)
                place_folder(draft, directory)
        except ValueError as error:
            self.notice(f"artifact {directory} keeps its weights: {MANIFEST} is damaged ({error})")
        except OSError as error:
            raise StorageError(f"cannot write artifact {directory}: {why(error)}") from error
        finally:
            for path in (draft, old):
                shutil.rmtree(path, ignore_errors=True)

    def _pulled(self, ref: ArtifactRef) -> bool:
        """Fetch an artifact from the bucket; return True if this succeeded."""
        return self._cache is not None and self._cache.pull(self.path(ref))

    def metrics(self, ref: ArtifactRef) -> dict[str, float]:
        """Return the metrics in an existing artifact's record; damage is not checked."""
        path = self.path(ref)
        self.fetch_folder(path)
        return dict(json.loads((path / RECORD).read_text(encoding="utf-8"))["metrics"])

    def write(
        self,
        ref: ArtifactRef,
        tensors: Mapping[str, Mapping[str, Tensor]],
        record: Mapping[str, Any],
    ) -> Artifact:
        """Store an outcome: tensors (by file name without ending) and a record of JSON values.

        Raises ``StorageError``, which names the folder, if it cannot be written.
        """
        directory = self.path(ref)
        draft = directory.with_name(f"{ref.key}.{uuid.uuid4().hex}.tmp")
        try:
            draft.mkdir(parents=True)
            for name, named in tensors.items():
                plain = {label: value.detach().cpu().contiguous() for label, value in named.items()}
                safetensors.save_file(plain, draft / f"{name}.safetensors")
                inherit(draft / f"{name}.safetensors")
            (draft / RECORD).write_text(json.dumps(record, sort_keys=True, allow_nan=False))
            seal(draft)
            if self._cache is not None:
                self._cache.promise(directory)
            with self._changing():
                _remove_damaged(directory)
                if not directory.exists():  # Another process may have stored the same.
                    place_folder(draft, directory)
            # Another process may have just created a parent folder or stored the same artifact.
            sync_names(directory, LEVELS)
            if self._cache is not None:
                self._cache.keep(directory)
        except (OSError, SafetensorError) as error:
            reason = why(error) if isinstance(error, PermissionError) else error
            raise StorageError(f"cannot write artifact {directory}: {reason}") from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return Artifact(ref, directory, record)

    def deliver(self) -> int:
        """Send unsent files and folders to the bucket; return how many are still unsent."""
        return 0 if self._cache is None else self._cache.deliver()

    def settle(self) -> None:
        """Wait until the bucket has all files of this process; see ``Cache.settle``."""
        if self._cache is not None:
            self._cache.settle()

    def share(self, path: Path) -> None:
        """Send a file of the storage that is not an artifact to the bucket, if there is one."""
        if self._cache is not None:
            self._cache.keep(path)

    def fetch_folder(self, path: Path) -> None:
        """Fetch a missing folder of the storage, such as prepared data, from the bucket."""
        if self._cache is not None and not path.exists():
            self._cache.pull(path)

    def fetch_plugins(self, codes: Iterable[str]) -> None:
        """Fetch missing copies of plugins from the bucket; ``codes`` are hashes of their code."""
        for code in codes:
            self.fetch_folder(self.root.parent / PLUGINS / code)

    def _changing(self) -> FileLock:
        """Return the lock for adding or removing artifacts; it is held only for moments."""
        return FileLock(self.root / ".changing.lock", mode=LOCK_MODE)

    def checkpoint(self, ref: ArtifactRef) -> Checkpoint:
        """Return the checkpoint of a stage, whether it exists or not."""
        return Checkpoint(self.root / "checkpoints" / ref.stage / f"{ref.key}.pt", self._cache)

    def lock(self, ref: ArtifactRef) -> ArtifactLock | Lease:
        """Return the lock of the process that computes this artifact."""
        if self._cache is not None:
            # Use the same lease again: it measures how long its holder has been silent.
            new = Lease(self._cache.bucket, f"leases/{ref.stage}/{ref.key}")
            return self._leases.setdefault(ref.key, new)
        return ArtifactLock(self.path(ref).with_suffix(".lock"))


def _damage(directory: Path) -> str:
    return damage(directory, (RECORD,))


def _remove_damaged(path: Path) -> None:
    """Remove the file or folder at a path, unless it is an intact artifact with its weights."""
    if path.is_file():
        path.unlink()
    elif path.exists() and (_damage(path) or (path / DROPPED).exists()):
        shutil.rmtree(path)

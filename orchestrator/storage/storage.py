"""The layout of a storage folder, and the locks on its sweeps."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

import psutil
import yaml
from filelock import FileLock, Timeout

from orchestrator.sweep.names import is_sweep_name
from trainables.common.errors import AwayError, InputError
from trainables.common.files import (
    LOCK_MODE,
    follow_folder,
    make_folders,
    open_inside,
    user_of,
    why,
    write_whole,
    writing,
)
from trainables.common.paths import (
    DEFAULT_STORAGE,
    ELSEWHERE,
    PLUGINS,
    bucket_address,
    storage_folder,
)
from trainables.common.yaml_text import write_mapping

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from orchestrator.storage.bucket_sweep import BucketSweep
    from orchestrator.storage.journal import Journal
    from orchestrator.sweep.spec import SweepSpec
    from trainables.store.artifacts import ArtifactStore
    from trainables.store.bucket import Bucket
    from trainables.store.locks import Lease

SPEC, NOTES = "sweep.yaml", "notes.json"
MACHINES = "machines"  # Has a file for each machine or GPU that is excluded.
GPU = ":gpu"  # Separates the name of a machine from its GPU.
PAUSE, CANCEL = "pause", "cancel"
LOCK_SECONDS = 1.0  # ``is_owned`` holds the lock for a moment.


class SweepFolder:
    """The folder of one sweep, ``STORAGE/sweeps/NAME``, which need not exist.

    Attributes:
        journal: The journal, from which the state of the sweep and its tables are computed.
        chosen: Folder of the chosen configurations and their reliability diagrams.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, path.name
        self.journal, self.spec_file = path / "journal.jsonl", path / SPEC
        self.chosen, self.tune = path / "chosen", path / "tune"
        self.report, self.logs = path / "report.html", path / "logs"
        self._owner, self._run_lock = path / "owner", path / "run.lock"
        self._control = path / "control"
        self._lease: Lease | None = None

    @classmethod
    def of(cls, spec: SweepSpec) -> SweepFolder:
        """Return the folder of a sweep."""
        return Storage.of(spec).sweep(spec.name)

    @property
    def storage(self) -> Storage:
        """Return the storage of the sweep."""
        return Storage(self.path.parents[1])

    @cached_property
    def bucket(self) -> BucketSweep | None:
        """Return the part of the sweep that is in a bucket; None if the storage is a folder."""
        address = bucket_address(self.path.parents[1])
        if address is None:
            return None
        from orchestrator.storage.bucket_sweep import BucketSweep  # Most storages are folders.

        return BucketSweep(self.path, address)

    def fetch(self, files: bool = False) -> None:
        """Update the local copy from the bucket, if any; ``files`` includes logs and diagrams."""
        if self.bucket is not None:
            with answering():
                self.bucket.fetch(files)

    @property
    def exists(self) -> bool:
        """Return True if the folder has a specification, a journal, results or ``shipped.json``."""
        shipped = self.path / "shipped.json"
        paths = (self.spec_file, self.journal, self.chosen, self.tune, shipped)
        return any(path.exists() for path in paths)

    @property
    def state_files(self) -> tuple[Path, ...]:
        """Return the files with the owner, the lock, and the request to pause or stop."""
        return self._owner, self._run_lock, self._control

    def table(self, suffix: str) -> Path:
        """Return the path of the comparison table in a format."""
        return self.path / f"table.{suffix}"

    def write_spec(self, spec: SweepSpec) -> None:
        """Write the specification atomically: without it the sweep cannot be resumed."""
        content = spec.model_dump(mode="json")
        for plugin in content["plugins"]:  # Relative paths, so that the storage can be moved.
            plugin["path"] = os.path.relpath(plugin["path"], self.path)
        text = write_mapping(content)
        with writing(self.spec_file):
            make_folders(self.path)
            write_whole(self.spec_file, text, durable=True)
        if self.bucket is not None:
            with answering():
                self.bucket.put(self.spec_file)

    def open_journal(self) -> Journal:
        """Return the journal for writing, by the process that owns the sweep."""
        from orchestrator.storage.journal import Journal

        if self.bucket is None or self._lease is None:
            return Journal(self.journal)
        from orchestrator.storage.bucket_sweep import BucketJournal

        return BucketJournal(self.journal, self.bucket, self._lease)

    @contextmanager
    def owned(self, take: bool = False) -> Iterator[None]:
        """Lock the sweep for this process within the block; update it from its bucket, if any.

        ``take``: see ``require_own``.
        """
        lock = FileLock(self._run_lock, timeout=LOCK_SECONDS, mode=LOCK_MODE)
        with ExitStack() as stack:
            try:
                make_folders(self.path)
                stack.enter_context(lock)
                self.require_own(take)
                if self.bucket is not None:
                    self._lease = stack.enter_context(self.bucket.held(describe_process()))
                self._owner.write_text(describe_process(), encoding="utf-8")
                if self.control() == CANCEL:
                    self.set_control("")  # The request was for an earlier run.
            except Timeout as error:
                owner = self.owner()
                elsewhere = " on " in owner and f" on {os.uname().nodename}," not in owner
                remedy = f"; if that machine no longer exists, remove {self._run_lock}"
                raise InputError(
                    f"sweep {self.name!r} is being run by {owner}{remedy * elsewhere}"
                ) from error
            except AwayError as error:
                raise InputError(str(error)) from error
            except OSError as error:
                raise InputError(f"storage {self.path} cannot be written: {why(error)}") from error
            try:
                yield
            except InputError:
                self._leave_no_trace()
                raise

    def _leave_no_trace(self) -> None:
        """Remove the folder of a sweep that was refused before its first run, and empty parents."""
        if self.exists:
            return
        for path in self.state_files:
            path.unlink(missing_ok=True)
        data = self.path.parents[1] / "data"
        with suppress(OSError):  # Someone else may have put a file there.
            self.path.rmdir()
            self.path.parent.rmdir()
            for lock in data.glob(".*.lock"):  # Of the data for which the sweep was refused.
                lock.unlink()
            data.rmdir()

    def is_owned(self) -> bool:
        """Return True if a process runs this sweep now; needs only read access."""
        if self.bucket is not None:
            with answering():
                return self.bucket.lease().is_held()
        try:
            # If the file is a pipe, opening it without O_NONBLOCK would wait.
            handle = os.open(self._run_lock, os.O_RDONLY | os.O_NONBLOCK)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise InputError(f"{self._run_lock} cannot be read: {why(error)}") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False

    def require_own(self, take: bool = False) -> None:
        """Raise ``InputError`` if another user owns the folder; not with ``take`` or a bucket."""
        if take or self.bucket is not None:
            return
        try:
            # Some file systems map users, so ask under which user id they store our files.
            with TemporaryFile(dir=self.path) as probe:
                own = os.fstat(probe.fileno()).st_uid
            owner = user_of(self.path)
            if self.path.stat().st_uid != own:
                raise InputError(
                    f"sweep {self.name!r} in {self.path.parent} belongs to {owner}: give yours "
                    f"another name, or, if {owner} agrees, add --take to run, cancel, pause or gc"
                )
        except OSError as error:
            raise InputError(f"sweep {self.name!r} cannot be changed: {why(error)}") from error

    def owner(self) -> str:
        """Return user, machine, process and start of the last run, or ``another process``."""
        if self.bucket is not None:
            with answering():
                return self.bucket.lease().holder() or "another process"
        try:
            return self.text(self._owner) or "another process"
        except PermissionError as error:
            return f"another process ({why(error)})"

    def control(self) -> str:
        """Return ``pause``, ``cancel`` or ""; raise ``OSError`` or ``AwayError`` if unreadable."""
        if self.bucket is not None:
            return self.bucket.control()
        return self.text(self._control)

    def text(self, path: Path) -> str:
        """Return the text of a file in this folder, "" if missing; links must not lead outside."""
        try:
            with open_inside(path, self.path) as stream:
                return stream.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def set_control(self, wanted: str) -> None:
        """Ask the run of the sweep to ``pause``, to ``cancel``, or ("") to continue."""
        if self.bucket is not None:
            with answering():
                self.bucket.set_control(wanted)
            return
        with writing(self._control):
            if wanted:
                write_whole(self._control, wanted)
            else:
                self._control.unlink(missing_ok=True)


class Storage:
    """The folder of artifacts, prepared data, sweeps and the default tracking database.

    For a storage in a bucket this is the local copy; ``sweeps``, ``started`` and ``load_spec``
    update the copies of sweeps. New files get their permissions from the folder, see
    ``follow_folder``.

    Attributes:
        plugins: Folder of the copies of plugins, by the hash of their code.
        tracked_files: Folder of the files of runs that are tracked without a server.
        lacks: Message about data that this kind of storage never has; empty for a full storage.
    """

    lacks = ""

    def __init__(self, folder: str | Path = DEFAULT_STORAGE) -> None:
        self.folder = storage_folder(folder)
        self.address = bucket_address(self.folder)
        self.artifacts, self.data = self.folder / "artifacts", self.folder / "data"
        self.plugins = self.folder / PLUGINS
        self.tracked_files = self.folder / "mlflow-artifacts"
        self._named = str(folder)
        follow_folder(self.folder)

    @classmethod
    def of(cls, spec: SweepSpec) -> Storage:
        """Return the storage that a sweep names."""
        return cls(spec.storage)

    def store(self) -> ArtifactStore:
        """Return the artifact store."""
        from trainables.store.artifacts import ArtifactStore  # Importing PyTorch takes seconds.

        return ArtifactStore(self.artifacts)

    def packed_rows(self, key: str) -> dict[str, NDArray[Any]] | None:
        """Return the rows of an evaluation if a file of rows replaces the artifacts, else None."""
        return None

    def packed_row(self, key: str, number: int) -> dict[str, NDArray[Any]] | None:
        """Return one of ``packed_rows``; None if there is no row with that number."""
        return None

    def sweep(self, name: str) -> SweepFolder:
        """Return the folder of a sweep, which need not exist."""
        return SweepFolder(self.folder / "sweeps" / name)

    def sweeps(self) -> list[SweepFolder]:
        """Return the folders of all sweeps, by name."""
        folder = self.folder / "sweeps"
        for name in self._names():
            self.sweep(name).fetch()
        if not folder.is_dir():
            raise InputError(f"no sweeps in {folder} {ELSEWHERE}: it is not a folder")
        folders = map(SweepFolder, sorted(folder.iterdir()))
        return [sweep for sweep in folders if sweep.exists]

    def started(self, name: str) -> SweepFolder:
        """Return the folder of a sweep that was started in this storage; else ``InputError``."""
        folder, file = self.folder / "sweeps", self.sweep(name).spec_file
        if is_sweep_name(name):
            self.sweep(name).fetch()
        if not is_sweep_name(name) or not file.is_file():
            local = {entry.parent.name for entry in folder.glob(f"*/{SPEC}")}
            listing = ", ".join(sorted({*local, *self._names()})) or "none"
            place = f"{self.address}/sweeps" if self.address else folder
            raise InputError(f"no sweep {name!r} in {place} {ELSEWHERE}; there are: {listing}")
        return self.sweep(name)

    def load_spec(self, name: str) -> SweepSpec:
        """Return the specification of a sweep that was started in this storage."""
        from orchestrator.sweep.spec import parse_sweep  # It imports PyTorch.

        file = self.started(name).spec_file
        text = file.read_text(encoding="utf-8")
        if self.address is not None:
            self.store().fetch_plugins(each["code"] for each in yaml.safe_load(text)["plugins"])
        spec = parse_sweep(text, str(file), file.parent)
        return spec.model_copy(update={"storage": self._named})

    def _bucket(self, patient: bool = True) -> Bucket | None:
        """Return the bucket of the storage; None if it is a folder."""
        if self.address is None:
            return None
        from trainables.store.bucket import Bucket  # Most storages are folders.

        return Bucket(self.address, patient)

    def _names(self) -> list[str]:
        with answering():
            bucket = self._bucket()
            return [] if bucket is None else bucket.folders("sweeps")

    def machines_left_out(self, patient: bool = True) -> list[str]:
        """Return the names of excluded machines, and of excluded GPUs (``MACHINE:gpuN``)."""
        with answering():
            if (bucket := self._bucket(patient)) is not None:
                return [name.partition("/")[2] for name in bucket.names(MACHINES)]
        return sorted(entry.name for entry in (self.folder / MACHINES).glob("*"))

    def leave_machine_out(self, host: str, reason: str) -> None:
        """Exclude a machine or GPU (``MACHINE:gpuN``), also from later runs in this storage."""
        with writing(f"storage {self.folder}"):
            if (bucket := self._bucket()) is not None:
                bucket.put(f"{MACHINES}/{host}", reason.encode())
                return
            make_folders(self.folder / MACHINES)
            write_whole(self.folder / MACHINES / host, reason)

    def take_machine_back(self, host: str) -> bool:
        """Include a machine and its GPUs again; return whether any of them was excluded."""
        names = [name for name in self.machines_left_out() if name.partition(GPU)[0] == host]
        with writing(f"storage {self.folder}"):
            bucket = self._bucket()
            for name in names:
                if bucket is not None:
                    bucket.remove(f"{MACHINES}/{name}")
                else:
                    (self.folder / MACHINES / name).unlink(missing_ok=True)
        return bool(names)

    def nightly(self, name: str) -> Path:
        """Return the folder of a nightly benchmark."""
        return self.folder / "nightly" / name


@contextmanager
def answering() -> Iterator[None]:
    """Turn the error of a bucket that does not answer into an ``InputError``."""
    try:
        yield
    except AwayError as error:
        raise InputError(str(error)) from error


def describe_process() -> str:
    """Describe this process to other processes that find the sweep locked."""
    since = datetime.now().astimezone().isoformat(" ", "seconds")
    user = psutil.Process().username()
    return f"{user} on {os.uname().nodename}, process {os.getpid()}, since {since}"

"""What keeps files whole through a crash, each as it is and as it would be without."""

from __future__ import annotations

import inspect
import textwrap
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from orchestrator.nightly import book
from orchestrator.storage import journal
from orchestrator.storage.journal import Journal
from orchestrator.storage.storage import SweepFolder
from trainables.calibrators import _storage
from trainables.common import files
from trainables.store.artifacts import ArtifactStore, Checkpoint


class Safeguard(NamedTuple):
    """A line of a function, what stands there without it, and the workload that shows it."""

    owner: Any
    line: str
    instead: str
    workload: str = "sweep"


REMOVED = {
    "a draft takes a file's place before its content": Safeguard(
        files.drafted, "sync(draft)", "pass"
    ),
    "a file's new name is not synced": Safeguard(files.drafted, "sync(path.parent)", "pass"),
    "files are written in their place": Safeguard(
        files.drafted, "yield draft", "yield path; draft.write_bytes(path.read_bytes())"
    ),
    "nothing is ever synced": Safeguard(files.sync, "os.fsync(handle)", "pass"),
    "files of a folder are not synced": Safeguard(files.sync_folder, "sync(path)", "pass"),
    "names in a folder are not synced": Safeguard(files.sync_folder, "    sync(folder)\n", ""),
    "a folder's new name is not synced": Safeguard(
        files.place_folder, "sync(path.parent)", "pass", "calibration"
    ),
    "names of new folders are not synced": Safeguard(
        files.make_folders, "sync(folder.parent)", "pass"
    ),
    "an artifact's path is not synced": Safeguard(ArtifactStore.write, "sync_names", "bool or "),
    "sizes and checksums are not looked at": Safeguard(
        files.damage, "in files.items()", "in ()", "calibration"
    ),
    "a damaged artifact is used": Safeguard(
        ArtifactStore.find, ":= _damage(directory)", ":= ''", "outcome"
    ),
    "events do not wait for the disk": Safeguard(Journal.append, "os.fsync(self._handle)", "pass"),
    "an unfinished line stays": Safeguard(
        Journal.__init__, "os.ftruncate(self._handle, self._end)", "pass"
    ),
    "the journal's name is not synced": Safeguard(
        Journal.__init__, "sync(self.path.parent)", "pass"
    ),
    "lost writes end a sweep": Safeguard(journal._never_synced, "return True", "return False"),
    "the sweep file need not be whole": Safeguard(SweepFolder.write_spec, ", durable=True", ""),
    "a checkpoint's checksums are not looked at": Safeguard(
        Checkpoint.read, "is not None", "== 0", "outcome"
    ),
    "a calibrator's files are not synced": Safeguard(
        _storage._publish, "sync(draft / name)", "pass", "calibration"
    ),
    "a night's files are not synced": Safeguard(book.write_text, ", durable=True", "", "night"),
    "the name of a night's folder is not synced": Safeguard(
        book.Book.held,
        "make_folders(self.folder)",
        "self.folder.mkdir(parents=True, exist_ok=True)",
        "night",
    ),
}


def without(name: str) -> tuple[FunctionType, CodeType]:
    """Return the function that a safeguard stands in, and its code without it."""
    owner, old, new, _ = REMOVED[name]
    real = inspect.unwrap(owner)
    source = textwrap.dedent(inspect.getsource(real))
    assert source.count(old) == 1, f"{real.__name__} does not hold {old!r} once"
    found: dict[str, Any] = {}
    exec(compile(source.replace(old, new), name, "exec"), real.__globals__, found)
    return real, inspect.unwrap(found[real.__name__]).__code__

"""A sweep on a disk that is too small, and folders for sweeps."""

import subprocess
from pathlib import Path
from typing import Any

from sweeps import Done, Sweep, statuses

from tests.orchestrator.disks import mounted

WRONG_INPUT = 2


class Lab:
    """Gives out folders and sweeps, the same but for the changes asked for."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.folder, self.changes = folder, changes
        self._count = 0

    def place(self) -> Path:
        self._count += 1
        path = self.folder / str(self._count)
        path.mkdir(parents=True)
        return path

    def sweep(self, storage: Path | None = None, **changes: Any) -> Sweep:
        return Sweep(self.place(), storage, **{**self.changes, **changes})


def one_line(done: Done) -> bool:
    complaints = [line for line in done.errors.splitlines() if line.startswith("calsweep: ")]
    return len(complaints) == 1 and "Traceback" not in done.errors + done.output


def check_full_disk(lab: Lab, calm: Sweep, part: float) -> None:
    """Give a sweep a part of the room that it needs, then more."""
    used = sum(path.stat().st_size for path in calm.storage.rglob("*") if path.is_file())
    disk = lab.place()
    with mounted(disk, int(part * used)):
        sweep = lab.sweep(disk / "storage")
        done = sweep.start().wait()
        assert done.code == WRONG_INPUT
        assert one_line(done)
        assert str(disk) in done.errors
        assert "No space left" in done.errors
        subprocess.run(["mount", "-o", f"remount,size={4 * used}", str(disk)], check=True)
        finished = sweep.finished()
        again = sweep.resume().wait() if sweep.directory.exists() else sweep.start().wait()
        assert again.code == 0, again.errors
        assert sweep.finished()[: len(finished)] == finished
        assert sweep.faults(calm) == []
        assert set(statuses(sweep.database)) == {"FINISHED"}

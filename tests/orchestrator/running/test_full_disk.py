"""A disk that becomes full at ten moments of a sweep."""

import resource
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from orchestrator.cli import main
from tests.orchestrator.disks import limited, mounted, require_mounts
from tests.orchestrator.one_process import one_process

SWEEP = """
name: full
tasks: [{{logits: {logits}, split: {{validation: 60}}}}]
recipes: [given, vs, ts]
search: {{trials: 2}}
executor: local
keep: logits
storage: {disk}/storage
tracking: {{uri: "sqlite:///{folder}/runs.db"}}
"""
MOMENTS, PAGE = 10, 4096


def used(disk: Path) -> int:
    """Return the room that the files of the sweep need, without tables and report."""
    files = (path for path in disk.rglob("*") if path.is_file())
    needed = (path for path in files if path.stem not in ("table", "report"))
    return sum(-(-path.stat().st_size // PAGE) * PAGE for path in needed)


def run(file: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Run a sweep; return the exit code and the message."""
    with one_process():
        code = main(["run", str(file), "--quiet"])
    said = capsys.readouterr()
    return code, said.out if code == 1 else said.err


def table(disk: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the figures of the sweep."""
    shown = ["--format", "csv", "--show", "comparable", "--storage", f"{disk}/storage"]
    assert main(["table", "full", *shown]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "moments",
    [
        pytest.param([2, 6], marks=pytest.mark.full),
        pytest.param(range(MOMENTS), marks=pytest.mark.long),
    ],
)
def test_a_disk_that_is_full_at_any_moment_ends_the_sweep_and_more_room_resumes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], moments: Sequence[int]
) -> None:
    require_mounts(tmp_path)
    rng = np.random.default_rng(0)
    parts = {"fit": 120, "test": 60}
    arrays = {f"logits_{part}": rng.normal(size=(rows, 3)) for part, rows in parts.items()}
    arrays |= {f"labels_{part}": np.arange(rows) % 3 for part, rows in parts.items()}
    np.savez(tmp_path / "given.npz", **arrays)  # type: ignore[arg-type]
    file, calm = tmp_path / "full.yaml", tmp_path / "calm"

    def write(disk: Path) -> None:
        text = SWEEP.format(logits=tmp_path / "given.npz", disk=disk, folder=tmp_path)
        file.write_text(text)

    calm.mkdir()
    write(calm)
    open_files = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    with limited(resource.RLIMIT_NOFILE, open_files + 64):
        assert run(file, capsys) == (0, "")
    figures, size = table(calm, capsys), used(calm)
    for moment in moments:
        disk = tmp_path / f"disk{moment}"
        disk.mkdir()
        write(disk)
        with mounted(disk, size * (moment + 1) // (MOMENTS + 1)):
            code, said = run(file, capsys)
            assert code == 2 or (code == 1 and moment > 2), said  # 1: Only the tables are missing.
            assert code == 1 or said.count("\n") == 1, said
            assert "No space left" in said
            subprocess.run(["mount", "-o", f"remount,size={2**24}", str(disk)], check=True)
            assert run(file, capsys) == (0, "")
            assert table(disk, capsys) == figures

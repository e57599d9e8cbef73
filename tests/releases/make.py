"""Makes the miniature of a release in the current folder, which is empty.

A small sweep of logits is run there and its journal cut in the middle, as if its machine had gone
down. What a later release needs of it becomes ``tests/releases/VERSION.tar.xz``, its whole table
``VERSION.csv``.
"""

import tarfile
from importlib.metadata import version
from pathlib import Path

import numpy as np

from orchestrator.cli import main
from orchestrator.storage.journal import read_events

SWEEP = """\
name: mini
tasks: [{logits: logits.npz, name: d}]
recipes: [given, ts, ets]
search: {trials: 2}
seeds: [0, 1]
executor: local
resources: {concurrent: 1}
storage: storage
"""
KEPT = ("logits.npz", "storage/artifacts", "storage/data", "storage/sweeps/mini/journal.jsonl")


def write_sweep() -> None:
    Path("sweep.yaml").write_text(SWEEP)


def table(out: Path) -> None:
    words = ["--show", "comparable", "--format", "csv", "--out", str(out)]
    assert main(["table", "mini", *words, "--storage", "storage"]) == 0


def make() -> None:
    """Run the sweep and pack it."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 120)
    logits = (3 * np.eye(3)[labels] + 2 * rng.normal(size=(120, 3))).round(2)
    np.savez_compressed("logits.npz", logits=logits.astype(np.float32), labels=labels)
    write_sweep()
    assert main(["run", "sweep.yaml", "--quiet"]) == 0
    place = Path(__file__).with_name(f"{version('calsweep')}.tar.xz")
    table(place.with_name(f"{version('calsweep')}.csv"))
    journal = Path("storage/sweeps/mini/journal.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    kinds = [event.event for event in read_events(journal)[0]]
    begun = [place for place, kind in enumerate(kinds) if kind == "trial_started"]
    journal.write_bytes(b"".join(lines[: begun[len(begun) // 2] + 1]))
    with tarfile.open(place, "w:xz") as archive:
        for name in KEPT:
            archive.add(name, filter=_plain)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return None if member.name.endswith(".lock") else member


if __name__ == "__main__":
    make()

"""Every crash point of a workload, and whether it recovers there."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from tests.crash.disk import File, Folder, Tree, after_power_cut, now, synced
from tests.crash.recording import Replay
from tests.crash.workloads import WORKLOADS, lost


def states(lines: Sequence[str], top: Path, draws: int) -> Iterator[tuple[str, Tree, bytes]]:
    """Yield each distinct state that a crash can leave, with its name and the synced journal.

    After every call: what a killed process leaves, the least that a power cut leaves, and
    ``draws`` states that chance decides.
    """
    replay, seen = Replay(top), set[bytes]()
    for number, call in enumerate(replay.run(lines)):
        journal = _journal(replay.root)
        found = [("killed", now(replay.root)), ("cut", synced(replay.root))]
        for draw in range(draws):
            random = Random(f"{number} {draw}")
            found.append((f"draw {draw}", after_power_cut(replay.root, random)))
        for kind, tree in found:
            mark = _digest(tree)
            if mark not in seen:
                seen.add(mark)
                yield f"call {number} ({call}), {kind}", tree, journal


def whole(lines: Sequence[str], top: Path) -> Tree:
    """Return all files as the recorded calls leave them."""
    replay = Replay(top)
    list(replay.run(lines))
    return now(replay.root)


def read(top: Path) -> Tree:
    """Return all files of a folder."""
    return {
        str(path.relative_to(top)): None if path.is_dir() else path.read_bytes()
        for path in top.rglob("*")
    }


def restore(tree: Tree, top: Path) -> None:
    """Make a folder hold just these files."""
    shutil.rmtree(top, ignore_errors=True)
    top.mkdir()
    for name, content in sorted(tree.items()):
        if content is None:
            (top / name).mkdir()
        else:
            (top / name).write_bytes(content)


def fault(workload: str, tree: Tree, journal: bytes, top: Path, expected: Any) -> str:
    """Return what is wrong with the recovery from a state, or an empty string."""
    restore(tree, top)
    try:
        if not (tree.get(JOURNAL) or b"").startswith(journal):
            return "events that were synced are lost"
        if gone := lost(top):
            return f"stored outcomes are lost: {gone}"
        found = WORKLOADS[workload](top)
    except Exception as error:  # noqa: BLE001 - whatever is raised is the finding
        return f"{type(error).__name__}: {error}"
    return "" if found == expected else "the table differs"


JOURNAL = "storage/sweeps/crash/journal.jsonl"


def _journal(root: Folder) -> bytes:
    node: File | Folder | None = root
    for name in JOURNAL.split("/"):
        node = node.names.get(name) if isinstance(node, Folder) else None
    return node.durable if isinstance(node, File) else b""


def _digest(tree: Tree) -> bytes:
    found = hashlib.sha256()
    for name, content in sorted(tree.items()):
        found.update(f"{name}\0{'' if content is None else len(content)}\0".encode())
        found.update(content or b"")
    return found.digest()

"""Every crash point of a workload, and whether it recovers there."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

from tests.crash.disk import File, Folder, Tree, after_power_cut, now, synced
from tests.crash.recording import Replay
from tests.crash.workloads import WORKLOADS, lost


@dataclass(frozen=True)
class Recording:
    """The calls of a workload that began with an empty folder."""

    calls: Sequence[str]
    top: Path


State: TypeAlias = "tuple[str, Tree, Mapping[str, bytes]]"


def states(recording: Recording, draws: int) -> Iterator[State]:
    """Yield each distinct state that a crash can leave, with its name and the synced journals.

    After every call: what a killed process leaves, the least that a power cut leaves, and
    ``draws`` states that chance decides.
    """
    replay, seen = Replay(recording.top, {}), set[bytes]()
    for number, call in enumerate(replay.run(recording.calls)):
        journals = dict(_journals(replay.root))
        found = [("killed", now(replay.root)), ("cut", synced(replay.root))]
        for draw in range(draws):
            random = Random(f"{number} {draw}")
            found.append((f"draw {draw}", after_power_cut(replay.root, random)))
        for kind, tree in found:
            mark = _digest(tree)
            if mark not in seen:
                seen.add(mark)
                yield f"call {number} ({call}), {kind}", tree, journals


def whole(recording: Recording) -> Tree:
    replay = Replay(recording.top, {})
    list(replay.run(recording.calls))
    return now(replay.root)


def read(top: Path) -> Tree:
    return {str(path.relative_to(top)): _content(path) for path in top.rglob("*")}


def _content(path: Path) -> bytes | str | None:
    if path.is_symlink():
        return os.readlink(path)
    return None if path.is_dir() else path.read_bytes()


def restore(tree: Tree, top: Path) -> None:
    """Make a folder hold just these files."""
    shutil.rmtree(top, ignore_errors=True)
    top.mkdir()
    for name, content in sorted(tree.items()):
        if content is None:
            (top / name).mkdir()
        elif isinstance(content, str):
            (top / name).symlink_to(content)
        else:
            (top / name).write_bytes(content)


def fault(workload: str, state: State, top: Path, expected: Any) -> str:
    """Return what is wrong with the recovery from a state, or an empty string."""
    _, tree, journals = state
    restore(tree, top)
    try:
        for name, journal in journals.items():
            content = tree.get(name)
            if not (content if isinstance(content, bytes) else b"").startswith(journal):
                return "events that were synced are lost"
        if gone := lost(top):
            return f"stored outcomes are lost: {gone}"
        found = WORKLOADS[workload](top)
    except Exception as error:  # noqa: BLE001 - whatever is raised is the finding
        return f"{type(error).__name__}: {error}"
    return "" if found == expected else "the table differs"


def _journals(folder: Folder, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    for name, node in folder.names.items():
        if isinstance(node, Folder):
            yield from _journals(node, f"{prefix}{name}/")
        elif isinstance(node, File) and name == "journal.jsonl":
            yield prefix + name, node.durable


def _digest(tree: Tree) -> bytes:
    found = hashlib.sha256()
    for name, content in sorted(tree.items()):
        found.update(f"{name}\0{'' if content is None else len(content)}\0".encode())
        found.update(content.encode() if isinstance(content, str) else content or b"")
    return found.digest()

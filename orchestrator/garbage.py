"""Removes stored outcomes that no kept sweep needs."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from orchestrator.journal import read_events
from orchestrator.run import JOURNAL, LOCK, load_existing
from trainables.artifacts import RECORD
from trainables.errors import InputError
from trainables.stages import STAGES

__all__ = ["Removal", "collect_garbage"]

DRAFT_SECONDS = 3600.0  # A draft so old was left by a process that died.

Name = tuple[str, str]


@dataclass(frozen=True)
class Removal:
    """What was removed, or would be, of one kind.

    Attributes:
        kind: Stage of the artifacts, ``checkpoints``, ``drafts`` or ``sweeps``.
        removed: How many.
        kept: How many are left.
        bytes_removed: Their size.
        bytes_kept: Size of those that are left.
    """

    kind: str
    removed: int = 0
    kept: int = 0
    bytes_removed: int = 0
    bytes_kept: int = 0


def collect_garbage(
    storage: Path, drop: Iterable[str] = (), dry_run: bool = False
) -> list[Removal]:
    """Remove artifacts that no kept sweep needs, and tell how many and how large.

    Needed are the outcomes that closed studies chose, for every seed, what these build on, and
    their test predictions; of a study that is not closed yet everything, so that it can go on. A
    sweep that was cut short can be resumed afterwards, a finished one needs nothing computed again.

    Args:
        storage: A storage folder.
        drop: Sweeps to give up: their folders go, and what only they need.
        dry_run: Change nothing.

    Raises:
        InputError: If there is no such storage or sweep, or a sweep in it is running now.
    """
    folder = storage / "sweeps"
    if not folder.is_dir():
        raise InputError(f"no sweeps in {storage}: {folder} is no folder")
    dropped = {load_existing(name, str(storage)).directory for name in drop}
    sweeps = sorted(path.parent for path in folder.glob(f"*/{JOURNAL}"))
    _check_idle(sweeps)
    needs = [_Needs(read_events(sweep / JOURNAL)[0]) for sweep in sweeps if sweep not in dropped]
    found = [
        _Kind(kind, entries, dry_run)
        for kind, entries in _entries(storage / "artifacts", needs).items()
    ]
    found.append(_Kind("sweeps", [(sweep, sweep not in dropped) for sweep in sweeps], dry_run))
    return [kind.clear() for kind in found if kind.entries]


class _Needs:
    """What one sweep needs, as its journal tells."""

    def __init__(self, events: Iterable[Mapping[str, Any]]) -> None:
        trials: dict[str, Mapping[str, Any]] = {}
        artifacts: dict[str, str] = {}
        chosen: dict[str, str | None] = {}
        for event in events:
            if event["event"] == "trial_started":
                trials[event["key"]] = event
            elif event["event"] == "trial_finished" and event.get("artifact"):
                artifacts[event["key"]] = event["artifact"]
            elif event["event"] == "study_closed":
                chosen[event["study"]] = event["chosen"]
        self.open = bool({trial["study"] for trial in trials.values()} - set(chosen))
        self.artifacts = {
            (trials[key]["stage"], artifact)
            for key, artifact in artifacts.items()
            if _is_needed(trials[key], chosen)
        }


def _is_needed(trial: Mapping[str, Any], chosen: Mapping[str, str | None]) -> bool:
    study = trial["study"]
    return study not in chosen or trial["role"] != "search" or chosen[study] == trial["key"]


@dataclass
class _Kind:
    """Everything of one kind, with whether it is kept."""

    kind: str
    entries: list[tuple[Path, bool]]
    dry_run: bool

    def clear(self) -> Removal:
        sizes = [(path, kept, _size(path)) for path, kept in self.entries]
        for path, kept, _ in sizes:
            if not kept and not self.dry_run:
                _remove(path)
        return Removal(
            self.kind,
            sum(not kept for _, kept, _ in sizes),
            sum(kept for _, kept, _ in sizes),
            sum(size for _, kept, size in sizes if not kept),
            sum(size for _, kept, size in sizes if kept),
        )


def _entries(root: Path, needs: list[_Needs]) -> dict[str, list[tuple[Path, bool]]]:
    """Return everything in a store by kind, with whether it is kept."""
    any_open = any(need.open for need in needs)
    kept = _with_upstream(root, {name for need in needs for name in need.artifacts})
    found = {}
    for folder in sorted(path for path in root.glob("*") if path.is_dir()):
        if folder.name == "checkpoints":
            found[folder.name] = [(path, any_open) for path in sorted(folder.rglob("*.pt"))]
        else:
            found[folder.name] = [
                (path, _is_kept(path, folder.name, kept, any_open)) for path in _artifacts(folder)
            ]
    old = time.time() - DRAFT_SECONDS
    found["drafts"] = [(path, path.stat().st_mtime > old) for path in sorted(root.rglob("*.tmp"))]
    return found


def _is_kept(directory: Path, stage: str, kept: set[Name], any_open: bool) -> bool:
    if stage in STAGES:
        return (stage, directory.name) in kept
    if stage == "features" and not any_open:
        return False  # They serve further refinements only.
    upstream = _upstream(directory)[1]
    return any(key == upstream for _, key in kept)


def _with_upstream(root: Path, names: set[Name]) -> set[Name]:
    """Add what artifacts build on, as their records tell."""
    found: set[Name] = set()
    pending = set(names)
    while pending:
        stage, key = pending.pop()
        found.add((stage, key))
        before = _upstream(root / stage / key[:2] / key)
        if before[1] and before not in found:
            pending.add(before)
    return found


def _upstream(directory: Path) -> Name:
    """Return stage and key of what an artifact builds on; empty for none or a damaged record."""
    try:
        record = json.loads((directory / RECORD).read_text())
    except (OSError, ValueError):
        return "", ""
    request = record.get("request") or {}
    return request.get("upstream_stage") or "", request.get("upstream") or record.get(
        "upstream", ""
    )


def _artifacts(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*/*") if path.is_dir() and path.suffix != ".tmp")


def _check_idle(sweeps: Iterable[Path]) -> None:
    for sweep in sweeps:
        try:
            with FileLock(sweep / LOCK, timeout=0):
                pass
        except Timeout as error:
            raise InputError(
                f"sweep {sweep.name!r} is running: what it needs is not known before it ends"
            ) from error


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def _remove(path: Path) -> None:
    if path.is_file():
        path.unlink(missing_ok=True)
        return
    shutil.rmtree(path, ignore_errors=False)
    path.with_suffix(".lock").unlink(missing_ok=True)

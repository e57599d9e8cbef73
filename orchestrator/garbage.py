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

from orchestrator._study import MACHINE
from orchestrator.journal import read_events
from orchestrator.run import JOURNAL, LOCK, SPEC
from trainables.artifacts import RECORD
from trainables.errors import InputError
from trainables.stages import STAGES

__all__ = ["Removal", "collect_garbage"]

DRAFT_SECONDS = 3600.0  # A draft so old was left by a process that died.

MARKS = (SPEC, JOURNAL, "chosen", "tune", "shipped.json")  # Any of them shows a sweep.

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
    sweep that was cut short can be resumed afterwards, a finished one needs nothing computed again
    but what the machine failed.

    While a kept sweep is open (it was interrupted, its journal was cut short, or the machine failed
    trials of it), what no journal names is kept too: it may be what that sweep computed last.

    Args:
        storage: A storage folder.
        drop: Sweeps to give up: their folders go, and what only they need.
        dry_run: Change nothing.

    Raises:
        InputError: If there is no such storage or sweep, a sweep in it is running now, or what a
            kept sweep needs is not known because its journal is missing, empty or damaged; nothing
            is removed then.
    """
    folder = storage / "sweeps"
    if not folder.is_dir():
        raise InputError(f"no sweeps in {storage}: {folder} is no folder")
    sweeps = [path for path in sorted(folder.iterdir()) if _is_sweep(path)]
    dropped = [_named(name, sweeps, folder) for name in drop]
    _check_idle(sweeps)
    kept = [_Needs(_known_events(sweep)) for sweep in sweeps if sweep not in dropped]
    given_up = [_Needs(_events_left(sweep)) for sweep in dropped]
    found = [
        _Kind(kind, entries, dry_run)
        for kind, entries in _entries(storage / "artifacts", kept, given_up).items()
    ]
    found.append(_Kind("sweeps", [(sweep, sweep not in dropped) for sweep in sweeps], dry_run))
    return [kind.clear() for kind in found if kind.entries]


def _is_sweep(path: Path) -> bool:
    return any((path / name).exists() for name in MARKS)


def _named(name: str, sweeps: Iterable[Path], folder: Path) -> Path:
    """Return the folder of a sweep, whatever is left in it."""
    known = {sweep.name: sweep for sweep in sweeps}
    if name not in known:
        raise InputError(f"no sweep {name!r} in {folder}; there are: {', '.join(known) or 'none'}")
    return known[name]


def _known_events(sweep: Path) -> list[dict[str, Any]]:
    """Return what a journal tells, if it tells something and all of it is intact."""
    path, name = sweep / JOURNAL, sweep.name
    remedies = (
        f"put its journal back, go on with `calsweep run --resume {name}`, or give the sweep up "
        f"with --drop {name}"
    )
    if not path.exists():
        raise InputError(
            f"sweep {name!r} has no {JOURNAL}, so what it needs is unknown: {remedies}"
        )
    try:
        events = read_events(path)[0]
    except InputError as error:
        what, _, _ = str(error).partition("; ")
        raise InputError(f"sweep {name!r}: {what}: {remedies}") from error
    if not events:
        raise InputError(f"sweep {name!r}: its {JOURNAL} is empty: {remedies}")
    return events


def _events_left(sweep: Path) -> list[dict[str, Any]]:
    """Return what the journal of a sweep that is given up still tells."""
    try:
        return read_events(sweep / JOURNAL)[0]
    except InputError:
        return []  # What no other journal names goes once no kept sweep is open.


class _Needs:
    """What one sweep needs, as its journal tells.

    Attributes:
        open: Whether the sweep has not come to its end.
        named: The artifacts that the journal speaks of.
        artifacts: Those of them that are needed.
    """

    def __init__(self, events: Iterable[Mapping[str, Any]]) -> None:
        trials: dict[str, Mapping[str, Any]] = {}
        ended: dict[str, Mapping[str, Any]] = {}
        chosen: dict[str, str | None] = {}
        self.open = True
        for event in events:
            match event["event"]:
                case "trial_started":
                    trials[event["key"]] = event
                case "trial_finished":
                    ended[event["key"]] = event
                case "study_closed":
                    chosen[event["study"]] = event["chosen"]
                case "sweep_started" | "sweep_ended" as kind:
                    self.open = kind == "sweep_started" or event["status"] == "interrupted"
        if any(end.get("fault") == MACHINE for end in ended.values()):
            # When these trials run again, another one may be chosen.
            self.open, chosen = True, {}
        names = {
            key: (trials[key]["stage"], end["artifact"])
            for key, end in ended.items()
            if key in trials and end.get("artifact")
        }
        self.named = set(names.values())
        self.artifacts = {name for key, name in names.items() if _is_needed(trials[key], chosen)}


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


def _entries(
    root: Path, needs: list[_Needs], given_up: list[_Needs]
) -> dict[str, list[tuple[Path, bool]]]:
    """Return everything in a store by kind, with whether it is kept."""
    any_open = any(need.open for need in needs)
    needed = {name for need in needs for name in need.artifacts}
    if any_open:
        needed |= _stored(root).difference(*(sweep.named for sweep in [*needs, *given_up]))
    kept = _with_upstream(root, needed)
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


def _stored(root: Path) -> set[Name]:
    """Return all outcomes of trials."""
    return {(stage, path.name) for stage in STAGES for path in _artifacts(root / stage)}


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

"""Remove artifacts that no sweep needs."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from orchestrator.storage.ledger import Ledger, Study, Trial, read_ledger
from orchestrator.storage.shelf import BucketShelf, Shelf
from orchestrator.storage.storage import Storage, SweepFolder
from trainables.common.errors import InputError
from trainables.common.paths import sweep_command
from trainables.common.stages import EVERY_STAGE, ArtifactRef
from trainables.store.artifacts import ArtifactStore

RECENT_SECONDS = 3600.0  # An older draft was left by a process that died.

Entry = tuple[Path, bool]  # A path in the storage, and whether it is kept.


@dataclass(frozen=True)
class Removal:
    """Numbers of removed and kept entries of a ``kind``, and their total sizes in bytes.

    The kind is a folder of artifacts, such as ``train``, or ``checkpoints``, ``drafts`` or
    ``sweeps``.
    """

    kind: str
    removed: int
    kept: int
    bytes_removed: int
    bytes_kept: int


def collect_garbage(
    storage: Storage, drop: Iterable[str] = (), dry_run: bool = False, take: bool = False
) -> list[Removal]:
    """Remove dropped sweeps, and artifacts that no kept sweep needs; return counts and sizes.

    A study with a choice needs the artifacts of this choice for every seed, those that were
    compared with it row by row (so that the sweep can be published), their upstream artifacts, and
    the test predictions of the choice and of the published default. If the sweep is
    open, the study also needs its published default that is not measured yet. A study that has no
    choice or was opened again, and any study of a sweep in which a machine failed trials, needs all
    its artifacts, so that it can be resumed.

    A sweep is open while it runs, or if it was interrupted, its journal was cut, or a machine
    failed some of its trials. While any kept sweep is open, artifacts that are in no journal are
    kept too, because it may have just computed them. While any sweep runs, everything that was
    stored or read within the last hour is kept; in a bucket, no sweep may run.

    Args:
        storage: The storage to clean.
        drop: Sweeps to remove, with all artifacts that only they need.
        dry_run: Change nothing.
        take: Allow to drop sweeps of other users.
    """
    sweeps = storage.sweeps()
    dropped = [_named(name, sweeps, storage) for name in drop]
    running = [sweep for sweep in sweeps if sweep.is_owned()]
    for sweep in running:
        if sweep in dropped or storage.address is not None:
            raise InputError(
                f"sweep {sweep.name!r} is running: `{sweep_command('cancel', sweep.path)}` stops it"
            )
    for sweep in () if dry_run else dropped:
        sweep.require_own(take)
    kept = [_Needs(_intact_ledger(sweep)) for sweep in sweeps if sweep not in dropped]
    given_up = [_Needs(_readable_ledger(sweep)) for sweep in dropped]
    shelf = Shelf(storage.artifacts)
    if storage.address is not None:
        shelf = BucketShelf(storage.artifacts, storage.address)
    by_kind = _entries(shelf, kept, given_up, bool(running))
    by_kind["sweeps"] = [(sweep.path, sweep not in dropped) for sweep in sweeps]
    return [_clear(shelf, kind, entries, dry_run) for kind, entries in by_kind.items() if entries]


def _named(name: str, sweeps: Iterable[SweepFolder], storage: Storage) -> SweepFolder:
    """Return the folder of a sweep, even if files are missing in it."""
    known = {sweep.name: sweep for sweep in sweeps}
    if name not in known:
        listing = ", ".join(known) or "none"
        raise InputError(f"no sweep {name!r} in {storage.folder / 'sweeps'}; there are: {listing}")
    return known[name]


def _intact_ledger(sweep: SweepFolder) -> Ledger:
    """Return a sweep's ledger; raise ``InputError`` if its journal is missing, empty or damaged."""
    path, name = sweep.journal, sweep.name
    remedies = (
        f"put its journal back, resume it with `{sweep_command('run --resume', sweep.path)}`, "
        f"or give the sweep up with --drop {name}"
    )
    if not path.exists():
        raise InputError(
            f"sweep {name!r} has no {path.name}, so its artifacts are unknown: {remedies}"
        )
    try:
        ledger = read_ledger(path)
    except InputError as error:
        if isinstance(error.__cause__, PermissionError):
            raise
        problem, _, _ = str(error).partition("; ")
        raise InputError(f"sweep {name!r}: {problem}: {remedies}") from error
    if not ledger.sweep_id:
        raise InputError(f"sweep {name!r}: its {path.name} is empty: {remedies}")
    return ledger


def _readable_ledger(sweep: SweepFolder) -> Ledger:
    """Return the ledger of a dropped sweep, empty if its journal cannot be read."""
    try:
        return read_ledger(sweep.journal)
    except InputError:
        return Ledger()  # Its artifacts are removed once no kept sweep is open.


class Dropper:
    """Removes the weights of trials that were not chosen, unless another sweep needs them."""

    def __init__(self, sweep: SweepFolder, store: ArtifactStore) -> None:
        self._sweep, self._store = sweep, store
        self._others: dict[Path, tuple[float, set[ArtifactRef]]] = {}

    def drop(self, names: Iterable[ArtifactRef]) -> None:
        """Remove the weights that no other sweep needs; none if a journal cannot be read."""
        try:
            needed = self._needed()
        except (InputError, PermissionError) as error:
            self._store.notice(f"weights of trials that were not chosen are kept: {error}")
            return
        for name in names:
            if name not in needed:
                self._store.drop_weights(name)

    def _needed(self) -> set[ArtifactRef]:
        for other in self._sweep.storage.sweeps():
            if other.name != self._sweep.name and other.journal.exists():
                written = other.journal.stat().st_mtime
                if self._others.get(other.path, (None,))[0] != written:
                    ledger = read_ledger(other.journal)
                    self._others[other.path] = written, _Needs(ledger).artifacts
        return set().union(*(names for _, names in self._others.values()))


class _Needs:
    """The ``artifacts`` that one sweep needs; ``named`` are all that are in its journal."""

    def __init__(self, ledger: Ledger) -> None:
        self.open = ledger.status in ("running", "interrupted")
        # A study that was opened again may choose another trial.
        closed = [study for study in ledger.studies.values() if study.status == "finished"]
        chosen = {study.name: study.chosen for study in closed}
        if any(trial.fault for trial in ledger.trials.values()):
            # When these trials run again, another one may be chosen.
            self.open, chosen = True, {}
        stored = [trial for trial in ledger.trials.values() if trial.artifact]
        self.named = {trial.ref for trial in stored}
        self.artifacts = {
            trial.ref
            for trial in stored
            if trial.role != "search" or chosen.get(trial.study, trial.key) == trial.key
        }
        self.artifacts |= {trial.ref for study in closed for trial in _compared(study)}
        if self.open:
            self.artifacts |= {trial.ref for trial in map(_unmeasured_default, closed) if trial}
        self.predictions = {trial.default_predictions for trial in ledger.trials.values()}


def _compared(study: Study) -> Iterator[Trial]:
    """Yield the trials whose validation rows the choice of a closed study has compared."""
    stored = [trial for trial in study.scored if trial.artifact]
    if study.rule.get("stop"):  # Before each trial, the best two so far.
        yield from stored
    yield from (trial for trial in stored if trial.accuracy_error is not None)
    if stored and study.closed is not None and study.closed.margin is not None:
        yield stored[0]  # The published default.
        yield min(stored, key=attrgetter("objective"))


def _unmeasured_default(study: Study) -> Trial | None:
    """Return the published default of a closed study, if a resumed sweep still measures it."""
    chosen = study.chosen_trial
    if chosen is None or chosen.default_predictions:
        return None
    first = next(iter(study.begun.values()))
    return first if first.artifact else None


def _clear(shelf: Shelf, kind: str, entries: list[Entry], dry_run: bool) -> Removal:
    gone, left = ([path for path, kept in entries if kept is which] for which in (False, True))
    sizes = sum(map(shelf.size, gone)), sum(map(shelf.size, left))
    if not dry_run:
        for path in gone:
            shelf.remove(path)
    return Removal(kind, len(gone), len(left), *sizes)


def _entries(
    shelf: Shelf, needs: list[_Needs], given_up: list[_Needs], running: bool
) -> dict[str, list[Entry]]:
    """Return all paths in a store by kind, and whether each is kept."""
    any_open = any(need.open for need in needs)
    needed = {name for need in needs for name in need.artifacts}
    if any_open:
        stored = {
            ArtifactRef(stage, path.name)
            for stage in EVERY_STAGE
            for path in shelf.artifacts(stage)
        }
        needed |= stored.difference(*(sweep.named for sweep in [*needs, *given_up]))
    kept = _with_upstream(shelf, needed)
    predictions = {key for need in needs for key in need.predictions}
    entries: dict[str, list[Entry]] = {}
    old = time.time() - RECENT_SECONDS
    for kind in shelf.kinds():
        if kind == "checkpoints":
            entries[kind] = [(path, any_open) for path in shelf.checkpoints()]
        else:
            entries[kind] = [
                (
                    path,
                    path.name in predictions
                    or _is_kept(shelf, path, kind, kept, any_open)
                    or (running and shelf.used(path) > old),
                )
                for path in shelf.artifacts(kind)
            ]
    entries["drafts"] = [(path, shelf.used(path) > old) for path in shelf.drafts()]
    return entries


def _is_kept(
    shelf: Shelf, directory: Path, stage: str, kept: set[ArtifactRef], any_open: bool
) -> bool:
    if stage in EVERY_STAGE:
        return ArtifactRef(stage, directory.name) in kept
    if stage == "features" and not any_open:
        return False  # Only further refinements would use features.
    upstream = _upstream(shelf, directory).key
    return any(ref.key == upstream for ref in kept)


def _with_upstream(shelf: Shelf, names: set[ArtifactRef]) -> set[ArtifactRef]:
    """Add the direct and indirect upstream artifacts, according to the records."""
    complete: set[ArtifactRef] = set()
    pending = set(names)
    while pending:
        ref = pending.pop()
        complete.add(ref)
        upstream = _upstream(shelf, shelf.root / ref.stage / ref.key[:2] / ref.key)
        if upstream.key and upstream not in complete:
            pending.add(upstream)
    return complete


def _upstream(shelf: Shelf, directory: Path) -> ArtifactRef:
    """Return an artifact's upstream artifact; empty for none or a damaged record."""
    record = shelf.record(directory)
    request = record.get("request") or {}
    if not isinstance(request, dict):
        return ArtifactRef("", "")
    key = request.get("upstream") or record.get("upstream", "")
    return ArtifactRef(request.get("upstream_stage") or "", key)

"""``calsweep storage sync`` and ``gc``: deliver runs, and remove artifacts."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli._console import echo, output, print_plain
from orchestrator.cli._options import Take, TrackingUri
from trainables.common.errors import InputError
from trainables.common.paths import DEFAULT_STORAGE, local_path, redacted
from trainables.common.words import many

if TYPE_CHECKING:
    from orchestrator.storage.storage import Storage, SweepFolder


def sync(
    journal: Annotated[
        str, typer.Argument(help="A sweep's journal.jsonl, or its folder: STORAGE/sweeps/NAME.")
    ],
    tracking_uri: TrackingUri = None,
) -> None:
    """Deliver the missing runs and files of a sweep to a tracking server or a bucket."""
    from orchestrator.cli._outcome import track
    from orchestrator.storage.storage import Storage

    storage, _, name = journal.rstrip("/").rpartition("/sweeps/")
    place = Storage(storage) if journal.startswith(("s3:", "gs:")) and name else None
    folder = _folder(local_path(journal, "journal")) if place is None else place.sweep(name)
    spec = (place or folder.storage).load_spec(folder.name)
    uri = tracking_uri or spec.tracking_uri
    _renew_database(folder, uri)
    _ship(folder, uri)
    echo(f"everything in {folder.journal} has reached {redacted(uri)}")
    if place is not None:
        _deliver(place, folder)
    track(spec, folder, uri)


def _ship(folder: SweepFolder, uri: str) -> None:
    """Deliver a journal, after the process of a sweep that has ended, if it still does so."""
    from orchestrator.tracking import BusyError
    from orchestrator.tracking import sync as deliver

    said = False
    while True:
        try:
            deliver(folder.journal, uri, folder.storage.tracked_files)
        except BusyError:
            if folder.is_owned():
                raise
            if not said:
                echo(f"another process still delivers {folder.journal}; waiting for its end")
            said = True
        else:
            return


def _renew_database(folder: SweepFolder, uri: str) -> None:
    """Rename the storage's database if it is damaged; a new one is filled from the journals."""
    from orchestrator.sweep.tracking_uri import database_uri, sqlite_file
    from orchestrator.tracking.mlflow.sqlite import damage_of, set_aside

    file = sqlite_file(uri)
    if file is None or uri != database_uri(folder.storage.folder):
        return
    if fault := damage_of(file):
        others = [each.path for each in folder.storage.sweeps() if each.name != folder.name]
        more = "; then deliver the other sweeps: " if others else ""
        commands = " && ".join(f"calsweep storage sync {shlex.quote(str(path))}" for path in others)
        echo(f"{file} is damaged ({fault}): renamed to {set_aside(file).name}{more}{commands}")


def _folder(place: Path) -> SweepFolder:
    from orchestrator.storage.storage import SweepFolder

    path = SweepFolder(place).journal if place.is_dir() else place
    folder = SweepFolder(path.parent)
    if not path.is_file() or not folder.spec_file.is_file() or len(path.parents) < 3:
        raise InputError(
            f"{path} is not a sweep's journal; use STORAGE/sweeps/NAME/{folder.journal.name}"
        )
    return folder


def _deliver(place: Storage, folder: SweepFolder) -> None:
    with folder.owned(), folder.open_journal() as journal:
        sealed = journal.delivered()
    waiting = place.store().deliver() + (folder.bucket.share() if folder.bucket else 0)
    if waiting or not sealed:
        raise InputError(
            f"{place.address} does not answer: {many(waiting, 'file')} still to upload; try again"
        )
    echo(f"everything of {folder.name} on this machine has reached {place.address}")


def gc(
    storage: Annotated[str, typer.Option(help="Storage folder.")] = DEFAULT_STORAGE,
    drop: Annotated[
        list[str] | None,
        typer.Option(help="Remove this sweep and all that only it needs; may be repeated."),
    ] = None,
    take: Take = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be removed.")
    ] = False,
) -> None:
    """Remove artifacts that no sweep needs, and show how much was removed."""
    from orchestrator.storage.garbage import collect_garbage
    from orchestrator.storage.storage import Storage

    found = collect_garbage(Storage(storage), drop or (), dry_run, take)
    rows = []
    for kind in found:
        figures = (kind.removed, kind.bytes_removed / 1e6, kind.kept, kind.bytes_kept / 1e6)
        rows.append([kind.kind, *(f"{n:.1f}" if isinstance(n, float) else str(n) for n in figures)])
    print_plain(("kind", "removed", "MB", "kept", "MB"), rows, ("kind",))
    freed = sum(kind.bytes_removed for kind in found) / 1e6
    output().print(f"{freed:.1f} MB {'would be' if dry_run else 'were'} freed")

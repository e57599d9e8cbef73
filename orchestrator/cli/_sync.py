"""``calsweep sync``."""

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli._console import echo
from orchestrator.cli._options import TrackingUri
from trainables.common.addresses import redacted
from trainables.common.errors import InputError
from trainables.common.paths import local_path


def sync(
    journal: Annotated[Path, typer.Argument(help="A sweep's journal.jsonl, or its folder.")],
    tracking_uri: TrackingUri = None,
) -> None:
    """Deliver what a sweep recorded while the tracking server was away; twice changes nothing."""
    from orchestrator.storage.storage import SweepFolder
    from orchestrator.tracking import sync as deliver

    place = local_path(journal, "journal")
    path = SweepFolder(place).journal if place.is_dir() else place
    folder = SweepFolder(path.parent)
    if not path.is_file() or not folder.spec_file.is_file() or len(path.parents) < 3:
        raise InputError(
            f"{path} is no sweep's journal: that is STORAGE/sweeps/NAME/{folder.journal.name}"
        )
    uri = tracking_uri or folder.storage.load_spec(folder.name).tracking_uri
    deliver(path, uri, folder.storage.tracked_files)
    echo(f"everything in {path} has reached {redacted(uri)}")

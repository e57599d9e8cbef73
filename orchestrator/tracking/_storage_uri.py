"""The tracking address of a storage, in a folder or a bucket."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from orchestrator.storage.storage import Storage
from orchestrator.sweep.documents import read_document
from orchestrator.sweep.names import is_sweep_name
from orchestrator.sweep.tracking_uri import DATABASE, database_uri, default_tracking_uri
from orchestrator.tracking._process import delivered
from orchestrator.tracking._shipper import BusyError, sync
from trainables.common.yaml_text import read_mapping


def storage_uri(storage: str, sweeps: Iterable[str] | None = None) -> str:
    """Return the address of the tracker with the runs of a storage.

    ``MLFLOW_TRACKING_URI`` has precedence. Next is the address in the sweep files of ``sweeps``, if
    they all have the same one; if ``sweeps`` is None and a storage in a folder has no database, the
    files of all sweeps are read. The default is the storage's database. For a storage in a bucket,
    this database is local, and missing events are delivered to it first.
    """
    uri, place = default_tracking_uri(storage), Storage(storage)
    if uri != database_uri(place.folder):
        return uri
    named = [place.sweep(name) for name in sweeps or () if is_sweep_name(name)]
    database, has_sweeps = place.folder / DATABASE, (place.folder / "sweeps").is_dir()
    if sweeps is None and place.address is None and has_sweeps and not database.exists():
        named = place.sweeps()
    for folder in named:
        folder.fetch()
    own = {_named_uri(folder.spec_file) for folder in named}
    if len(own) == 1 and (one := own.pop()) is not None:
        return one
    if place.address is None:
        return uri
    for folder in place.sweeps() if sweeps is None else named:
        done, total = delivered(folder.journal)
        if done != total:
            with suppress(BusyError):  # The sweep runs on this machine and delivers by itself.
                sync(folder.journal, uri, place.tracked_files)
    return uri


def _named_uri(spec: Path) -> str | None:
    """Return the tracker's address in a stored sweep file; None if there is none."""
    if not spec.is_file():
        return None
    document = read_mapping(read_document(spec, str(spec)), str(spec), "a sweep", "tracking")
    tracking = document.get("tracking")
    uri = tracking.get("uri") if isinstance(tracking, dict) else None
    return uri if isinstance(uri, str) else None

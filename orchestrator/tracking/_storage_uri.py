"""Where the runs of a storage are tracked, whatever it lies in."""

from collections.abc import Iterable
from contextlib import suppress

from orchestrator.sweep.tracking_uri import database_uri, default_tracking_uri
from orchestrator.tracking._process import delivered
from orchestrator.tracking._shipper import BusyError, sync


def storage_uri(storage: str, sweeps: Iterable[str] | None = None) -> str:
    """Return the address of ``default_tracking_uri``, ready to be asked.

    The database of a storage in a bucket is each machine's own: what journals say of sweeps, all if
    none are named, is delivered to it first.

    Raises:
        InputError: If the bucket does not answer, or a journal is damaged.
    """
    from orchestrator.storage.storage import Storage  # It imports PyTorch; shippers need none.
    from orchestrator.sweep.spec import is_sweep_name

    uri, place = default_tracking_uri(storage), Storage(storage)
    if place.address is None or uri != database_uri(place.folder):
        return uri
    if sweeps is None:
        folders = place.sweeps()
    else:
        folders = [place.sweep(name) for name in sweeps if is_sweep_name(name)]
        for folder in folders:
            folder.fetch()
    for folder in folders:
        done, total = delivered(folder.journal)
        if done != total:
            with suppress(BusyError):  # The sweep runs on this machine.
                sync(folder.journal, uri, place.tracked_files)
    return uri

"""The copies of plugins that a storage keeps, so that a sweep is computed by one code for good."""

from collections.abc import Iterable
from pathlib import Path

from orchestrator.storage.storage import Storage
from orchestrator.sweep.plugins import PluginModel
from orchestrator.sweep.spec import SweepSpec
from trainables.common.errors import StorageError
from trainables.common.files import make_folders, place_folder, scratch_folder
from trainables.common.paths import bucket_address, on_this_machine
from trainables.metrics import METRICS
from trainables.plugins import Pinned, Plugin, load_plugins


def pin_plugins(spec: SweepSpec) -> SweepSpec:
    """Return a sweep with all plugins that it uses, at the places of their copies in its storage.

    Their parts, and those of no other sweep's plugins, are known afterwards.
    """
    copies = Storage.of(spec).plugins
    pinned = [
        PluginModel(path=str(copies / plugin.code / plugin.source.path), code=plugin.code)
        for plugin in _plugins(spec)
    ]
    return spec.model_copy(update={"plugins": tuple(pinned)})


def keep_plugins(spec: SweepSpec) -> None:
    """Write the copies, unless they are there; a bucket has them too afterwards, or soon.

    Raises:
        StorageError: If they cannot be written.
    """
    storage = Storage.of(spec)
    found = _plugins(spec)
    for plugin in found:
        _write(plugin, storage.plugins / plugin.code)
    if found:
        store = storage.store()
        for plugin in found:
            store.share(storage.plugins / plugin.code)
        store.settle()


def load_metric_plugins(storage: Storage, sweeps: Iterable[str], metrics: Iterable[str]) -> None:
    """Import the copies that sweeps keep of plugins, if a metric needs their code.

    Raises:
        InputError: If a copy is gone or was changed, or two sweeps keep different versions of one.
    """
    if all(METRICS[name].source != "plugin" for name in metrics if name in METRICS):
        return
    found = [pinned for sweep in sweeps for pinned in storage.load_spec(sweep).pinned]
    load_plugins(dict.fromkeys(found), installed=True)


def fetch_plugins(pinned: Iterable[Pinned]) -> None:
    """Take the copies that lie in a bucket from there, unless they are here.

    Raises:
        StorageError: If they cannot be written here.
    """
    for plugin in pinned:
        for folder in on_this_machine(Path(plugin.path)).parents:
            if bucket_address(folder) is not None:
                Storage(folder).store().fetch_plugins([plugin.code])


def _write(plugin: Plugin, place: Path) -> None:
    if place.exists():
        return
    try:
        make_folders(place.parent)
        with scratch_folder(".draft-", place.parent) as draft:
            for name, content in plugin.source.copied.items():
                file = draft / "copy" / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
            place_folder(draft / "copy", place)
    except OSError as error:
        if not place.exists():  # Another sweep may have been faster.
            raise StorageError(f"{place} cannot be written: {error.strerror}") from error


def _plugins(spec: SweepSpec) -> tuple[Plugin, ...]:
    load_plugins([Pinned(plugin.path, plugin.code) for plugin in spec.plugins], installed=True)
    return load_plugins(spec.pinned, installed=True)

"""The copies of plugins that a storage keeps, so that a sweep is computed by one code for good."""

from __future__ import annotations

from orchestrator.storage.storage import Storage
from orchestrator.sweep.plugins import PluginModel
from orchestrator.sweep.spec import SweepSpec
from trainables.common.errors import StorageError
from trainables.common.files import make_folders, place_folder, scratch_folder
from trainables.plugins import Pinned, Plugin, load_plugins


def pin_plugins(spec: SweepSpec) -> SweepSpec:
    """Return a sweep with all plugins that it uses, at the places of their copies in its storage.

    Their parts, and those of no other sweep's plugins, are known afterwards.

    Raises:
        InputError: If it has any and the storage lies in a bucket.
    """
    storage = Storage.of(spec)
    pinned = [
        PluginModel(path=str(storage.plugins / plugin.code / plugin.source.path), code=plugin.code)
        for plugin in _plugins(spec)
    ]
    if pinned:
        storage.require_folder("a plugin")
    return spec.model_copy(update={"plugins": tuple(pinned)})


def keep_plugins(spec: SweepSpec) -> None:
    """Write the copies, unless they are there.

    Raises:
        StorageError: If they cannot be written.
    """
    folder = Storage.of(spec).plugins
    for plugin in _plugins(spec):
        place = folder / plugin.code
        if place.exists():
            continue
        try:
            make_folders(folder)
            with scratch_folder(".draft-", folder) as draft:
                for name, content in plugin.source.files.items():
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

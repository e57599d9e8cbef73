"""The plugins of a sweep file, as named by a user or pinned in a stored specification."""

import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationInfo

from orchestrator.sweep.documents import naming
from trainables.common.errors import InputError
from trainables.plugins import Pinned, Plugin, load_plugins

FOLDER = "folder"
"""Key of the validation context for the folder of the sweep file."""


class PluginModel(BaseModel):
    """One version of a plugin: its path and the hash of its ``code``."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    path: str
    code: str

    @classmethod
    def of(cls, plugin: Plugin) -> "PluginModel":
        """Return the path and version of an imported plugin."""
        return cls(path=str(plugin.source.root.parent / plugin.source.path), code=plugin.code)

    @property
    def name(self) -> str:
        """Return the plugin's name in tables."""
        return Path(self.path).stem


def read_plugins(value: Any, info: ValidationInfo) -> tuple[PluginModel, ...]:
    """Import the plugins in the key ``plugins``; return their pinned or current versions."""
    if not isinstance(value, list | tuple):
        raise ValueError("must be a list of packages and files, such as [mypackage, ./my_loss.py]")
    folder = Path((info.context or {}).get(FOLDER, "."))
    named = [_named(number, each) for number, each in enumerate(value)]
    with naming("plugins"):
        found = load_plugins(named, folder, installed=True, exact=False)
    return tuple(
        PluginModel(path=os.path.normpath(folder / each.path), code=each.code)
        if isinstance(each, Pinned)
        else PluginModel.of(plugin)
        for each, plugin in zip(named, found, strict=True)
    )


def _named(number: int, value: Any) -> str | Pinned:
    if isinstance(value, PluginModel):
        return Pinned(value.path, value.code)
    if isinstance(value, str) and value:
        return value
    if isinstance(value, dict) and sorted(value) == ["code", "path"]:
        path, code = value["path"], value["code"]
        if isinstance(path, str) and isinstance(code, str):
            return Pinned(path, code)
    raise InputError(
        f"plugins[{number}]: expected a package, ./FILE.py or {{path, code}}, got {value!r}"
    )

"""Record the provenance of results: code, libraries, hardware, and copies of plugins."""

import os
import platform
import subprocess
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from orchestrator.storage.storage import Storage
from orchestrator.sweep.plugins import PluginModel
from orchestrator.sweep.spec import SweepSpec
from trainables.common.errors import StorageError
from trainables.common.files import make_folders, place_folder, scratch_folder
from trainables.common.later import torch
from trainables.common.paths import bucket_address, on_this_machine
from trainables.metrics import METRICS
from trainables.plugins import Pinned, Plugin, load_plugins

LIBRARIES = (
    "calsweep",
    "torch",
    "torchvision",
    "timm",
    "ray",
    "optuna",
    "mlflow",
    "numpy",
    "scipy",
    "scikit-learn",
)


def provenance() -> dict[str, Any]:
    """Return commit, versions and hardware as plain values."""
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "git_commit": git_commit(),
        "versions": {"python": platform.python_version(), **library_versions()},
        "hardware": {
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
            "gpus": gpus,
        },
    }


def library_versions() -> dict[str, str]:
    """Return the installed versions of ``LIBRARIES``, which can change results."""
    return {name: library_version(name) for name in LIBRARIES}


def library_version(name: str) -> str:
    """Return the installed version of a library, or ``not installed``."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def git_commit() -> str:
    """Return the commit of this code, with ``-dirty`` for local changes; empty if installed."""
    file = Path(__file__).resolve()
    folder = file.parent
    if not _git(folder, "ls-files", "--", file.name):
        return ""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit and _git(folder, "status", "--porcelain", "--untracked-files=no"):
        return f"{commit}-dirty"
    return commit


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def pin_plugins(spec: SweepSpec) -> SweepSpec:
    """Load a sweep's plugins; return the sweep with the paths of their copies in its storage."""
    copies = Storage.of(spec).plugins
    pinned = [
        PluginModel(path=str(copies / plugin.code / plugin.source.path), code=plugin.code)
        for plugin in _plugins(spec)
    ]
    return spec.model_copy(update={"plugins": tuple(pinned)})


def keep_plugins(spec: SweepSpec) -> None:
    """Copy a sweep's plugins to its storage (and upload them to its bucket), if missing there."""
    storage = Storage.of(spec)
    plugins = _plugins(spec)
    for plugin in plugins:
        _write(plugin, storage.plugins / plugin.code)
    if plugins:
        store = storage.store()
        for plugin in plugins:
            store.share(storage.plugins / plugin.code)
        store.settle()


def load_metric_plugins(storage: Storage, sweeps: Iterable[str], metrics: Iterable[str]) -> None:
    """Load the plugins of sweeps from their copies, if a metric needs their code."""
    if all(METRICS[name].source != "plugin" for name in metrics if name in METRICS):
        return
    plugins = [pinned for sweep in sweeps for pinned in storage.load_spec(sweep).pinned]
    load_plugins(dict.fromkeys(plugins), installed=True)


def fetch_plugins(pinned: Iterable[Pinned]) -> None:
    """Download the copies of plugins that are in a bucket, unless there are local ones."""
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

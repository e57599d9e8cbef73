"""Small sweeps whose packages are published, verified and merged."""

import zipfile
from pathlib import Path

import torch

from orchestrator.packages.package import Package
from orchestrator.storage.provenance import keep_plugins, pin_plugins
from orchestrator.storage.storage import Storage, SweepFolder
from orchestrator.sweep.spec import parse_sweep
from tests.orchestrator.tiny_sweep import compute_within

BOARD = """
name: {name}
tasks:
  - name: digits/tiny
    dataset: {dataset}
    suites: {suites}
    model: convnet
    protocol: {{base: digits, epochs: 2}}
    split: {{train_limit: {train}, test_limit: {test}}}
recipes: {recipes}
search: {{trials: {trials}, parallel_trials: 2}}
seeds: {seeds}
executor: local
storage: {storage}
"""


def board(
    storage: Path,
    name: str = "board",
    recipes: str = "[ce, ls, ls+ts]",
    seeds: str = "[0, 1]",
    more: str = "",
    dataset: str = "digits",
    suites: str = "[]",
    rows: tuple[int, int] = (150, 120),
    trials: int = 3,
) -> Storage:
    """Run a sweep of some trainings of a tenth of a second."""
    torch.set_num_threads(1)
    train, test = rows
    task = {"dataset": dataset, "suites": suites, "train": train, "test": test, "trials": trials}
    text = BOARD.format(name=name, recipes=recipes, seeds=seeds, storage=storage, **task)
    spec = pin_plugins(parse_sweep(text + more, name))
    keep_plugins(spec)
    SweepFolder.of(spec).write_spec(spec)
    compute_within(spec)
    return Storage(storage)


def unpacked(archive: Path, folder: Path) -> Package:
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(folder)
    return Package(folder)

"""A whole sweep within this process: real stages on a few digits, without Ray."""

from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch

from orchestrator.executors.in_process import InProcess
from orchestrator.running.control import Control
from orchestrator.running.data import prepare_data
from orchestrator.running.drive import drive
from orchestrator.search.state import SweepState
from orchestrator.storage.events import SweepEnded, SweepStarted
from orchestrator.storage.journal import Journal
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.machines import Machines
from orchestrator.storage.storage import Storage, SweepFolder
from orchestrator.sweep.plan import make_plan
from orchestrator.sweep.spec import SweepSpec, parse_sweep
from orchestrator.tracking import sync
from tests.orchestrator.databases import databases_made
from tests.orchestrator.one_process import DIAGRAM, nothing_drawn
from trainables.stages import validation_rows

TASK = "digits/convnet/tiny"
SWEEP = """
name: {name}
tasks:
  - name: {task}
    dataset: digits
    model: convnet
    protocol: {{base: digits, epochs: 2}}
    split: {{train_limit: 200, test_limit: 150}}
recipes: [ce, short+ts, ce+macal+ts]
variants:
  short: {{of: ls, fixed: {{smoothing: 0.05}}}}
tags: {{team: red}}
search: {{trials: 1, fixed: {{macal: {{epochs: 20}}}}}}
seeds: [0, 1]
resources: {{train: {{gpu: {gpus}}}}}
storage: {storage}
"""


def tiny_sweep(
    storage: Path, name: str = "tiny", uri: str | None = None, gpus: float = 0.0
) -> SweepSpec:
    """Run a sweep, tracked in its storage or at the address given."""
    torch.set_num_threads(1)
    text = SWEEP.format(name=name, task=TASK, storage=storage, gpus=gpus)
    text += f'tracking: {{uri: "{uri}"}}\n' if uri else ""
    return run_within(parse_sweep(text, name))


def run_within(spec: SweepSpec) -> SweepSpec:
    """Run any sweep within this process."""
    compute_within(spec)
    with databases_made():
        sync(SweepFolder.of(spec).journal, spec.tracking_uri, Storage.of(spec).tracked_files)
    return spec


def compute_within(spec: SweepSpec) -> None:
    """Run any sweep within this process, tracked nowhere."""
    name, folder = spec.name, SweepFolder.of(spec)
    data, store = prepare_data(spec), Storage.of(spec).store()
    with Journal(folder.journal) as journal:
        journal.append(
            SweepStarted(
                sweep=name,
                sweep_id=f"{name}-id",
                spec=spec.model_dump(mode="json"),
                provenance={"git_commit": "c0ffee", "versions": {}},
            )
        )
        known = partial(validation_rows, store)
        state = SweepState(make_plan(spec), f"{name}-id", data, journal.append, predictions=known)
        with patch(DIAGRAM, nothing_drawn):
            control, executor = Control(folder, print), InProcess(store.root)
            drive(state, Ledger(), store, executor, journal, control, Machines())
        journal.append(SweepEnded(status="finished"))

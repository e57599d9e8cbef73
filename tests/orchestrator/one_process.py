"""Whole sweeps in the test's own process: no Ray, no other process, no shipper, empty diagrams."""

import base64
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from orchestrator.executors.in_process import InProcess
from orchestrator.storage import provenance
from orchestrator.storage.storage import SweepFolder
from orchestrator.sweep.plan import Plan
from orchestrator.tracking import sync
from orchestrator.tracking._process import delivered
from tests.orchestrator import folder_kind  # noqa: F401  # Makes folder:/PATH known.
from tests.orchestrator.databases import databases_made
from trainables.charts.chart import Chart
from trainables.store.artifacts import ArtifactStore


@contextmanager
def one_process() -> Iterator[None]:
    """Compute and deliver here whatever ``run_sweep``, and every command that calls it, runs."""
    threads = torch.get_num_threads()
    with ExitStack() as patched:
        patched.enter_context(databases_made())
        for name, instead in REPLACED.items():
            patched.enter_context(patch(name, instead))
        yield
    torch.set_num_threads(threads)


@contextmanager
def open_here(plan: Plan, store: ArtifactStore, *_: Any) -> Iterator[InProcess]:
    logs = SweepFolder.of(plan.spec).logs
    yield InProcess(store.root, plan.spec.resources.checkpoint_seconds, logs)


@dataclass
class ShipperHere:
    """Delivers a journal when its end is waited for."""

    journal: Path
    uri: str
    artifact_root: Path
    plugins: Sequence[tuple[str, str]] = ()

    def progress(self) -> tuple[int, int]:
        return delivered(self.journal)

    def wait_drained(self, timeout: float) -> bool:
        sync(self.journal, self.uri, self.artifact_root)
        return True


class Undrawn(Chart):
    """Stands in for a diagram: the first image of a process takes a second."""

    def image(self, kind: str) -> bytes:
        return PIXEL


def nothing_drawn(*_: object, **__: object) -> Chart:
    return Undrawn("", "", {})


# The smallest PNG.
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
git_asked_once = cache(provenance._git)  # It is three programs a sweep.
GIT = "orchestrator.storage.provenance._git"
DIAGRAM = "trainables.worker._computations.reliability_diagram"
REPLACED: dict[str, Callable[..., Any]] = {
    DIAGRAM: nothing_drawn,
    "orchestrator.running.run.open_executor": open_here,
    "orchestrator.running.run.start_shipper": ShipperHere,
    GIT: git_asked_once,
}

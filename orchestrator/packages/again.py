"""Repeats the searches of a package, using the outcomes of trials that the package contains."""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.packages.package import VALIDATION, Cell, Package, UnfitError
from orchestrator.packages.predictions import RowPredictions
from orchestrator.replay.simulate import search_again
from orchestrator.running.data import prepare_data
from orchestrator.search.state import SweepState
from orchestrator.storage.events import Event
from orchestrator.storage.ledger import Ledger
from orchestrator.sweep.documents import validate
from orchestrator.sweep.plan import make_plan
from orchestrator.sweep.plugins import FOLDER
from orchestrator.sweep.spec import SweepSpec, TaskSpec, without_places
from trainables.common.errors import InputError
from trainables.common.stages import ArtifactRef
from trainables.data import PreparedData
from trainables.data.suites import Suite, find_suite, suite_directory
from trainables.stages import ValidationRows
from trainables.store.artifacts import ArtifactStore


@dataclass(frozen=True)
class Again:
    """The specs and prepared data with which a package's sweeps are run again.

    Attributes:
        folder: Scratch folder of prepared data and artifacts.
        data: Data prepared on this machine from the source, by sweep id and ``TaskSpec.data_name``.
        specs: Specs with paths on this machine, by sweep id.
    """

    folder: Path
    specs: Mapping[str, SweepSpec]
    data: Mapping[str, Mapping[str, PreparedData]]
    store: ArtifactStore
    _states: dict[str, tuple[SweepState, list[Event]]] = field(default_factory=dict)

    @classmethod
    @contextmanager
    def opened(
        cls, package: Package, data_root: str, progress: Callable[[str], None]
    ) -> "Iterator[Again]":
        """Run the code of the plugins of a package's sweeps; prepare data in a scratch folder.

        Raise ``UnfitError`` if the data cannot be prepared on this machine.
        """
        with tempfile.TemporaryDirectory(prefix="calsweep-again-") as name:
            folder = Path(name)
            specs = {
                ledger.sweep_id: _spec(ledger, package, folder, data_root)
                for ledger in package.ledgers
            }
            package.load_plugins(package.ledgers)
            progress("preparing data")
            try:
                data = {key: prepare_data(spec) for key, spec in specs.items()}
            except InputError as error:  # Such as a file that is elsewhere on this machine.
                raise UnfitError(f"not verified, because of the data here: {error}") from error
            yield cls(folder, specs, data, ArtifactStore(folder / "artifacts"))

    def data_of(self, cell: Cell) -> PreparedData:
        """Return the prepared data of a cell's task and seed."""
        return self.data[cell.study.sweep_id][self._task(cell).data_name(cell.trial.seed)]

    def suites(self, cell: Cell) -> list[tuple[Suite, Path]]:
        """Return the suites of a cell, with their folders on this machine."""
        root, data = self.specs[cell.study.sweep_id].data_root, self.data_of(cell)
        found = (find_suite(name, root) for name in self._task(cell).suites)
        return [(suite, suite_directory(suite, data)) for suite in found]

    def _task(self, cell: Cell) -> TaskSpec:
        spec = self.specs[cell.study.sweep_id]
        return next(task for task in spec.tasks if task.id == cell.study.task)

    def search(self, package: Package, ledger: Ledger) -> tuple[SweepState, list[Event]]:
        """Return the final state and the events of a sweep's search, repeated on the first call."""
        name, events = ledger.sweep_id, list[Event]()
        if name not in self._states:
            rows, plan = partial(_rows, package), make_plan(self.specs[name])
            state = search_again(plan, ledger, self.data[name], rows, events.append)
            self._states[name] = state, events
        return self._states[name]


def _spec(ledger: Ledger, package: Package, folder: Path, data_root: str) -> SweepSpec:
    document: dict[str, Any] = without_places(ledger.spec)
    places = {"storage": str(folder), "data_root": data_root}
    where, below = f"the sweep file of {ledger.sweep!r:.80}", {FOLDER: str(package.folder)}
    return validate(SweepSpec, {**document, **places}, where, below)


def _rows(package: Package, ref: ArtifactRef) -> ValidationRows:
    found = RowPredictions.read(package.folder / VALIDATION / f"{ref.key}.npz")
    return ValidationRows(found.logits, found.labels, None)

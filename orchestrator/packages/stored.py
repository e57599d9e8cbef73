"""Reads predictions with their row numbers from a storage."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from orchestrator.packages.predictions import RowPredictions
from orchestrator.running.data import stored_data
from orchestrator.storage.ledger import Ledger, Study, Trial, read_ledger
from orchestrator.storage.results import cells_of
from orchestrator.storage.storage import Storage, SweepFolder
from orchestrator.sweep.spec import SweepSpec
from trainables.common.errors import InputError
from trainables.common.paths import sweep_command
from trainables.common.stages import ArtifactRef
from trainables.data import PreparedData
from trainables.data.suites import SuiteData, find_suite, suite_directory
from trainables.stages import suite_key, validation_rows
from trainables.store.artifacts import ArtifactStore


@dataclass(frozen=True)
class StoredSweep:
    """The journal, artifacts and data of a sweep in a storage; see ``stored_data``."""

    spec: SweepSpec
    ledger: Ledger
    store: ArtifactStore
    data: Mapping[str, PreparedData]

    @classmethod
    def open(cls, root: Storage, name: str) -> Self:
        """Open a stored sweep; nothing is computed."""
        spec, ledger = root.load_spec(name), read_ledger(root.sweep(name).journal)
        return cls(spec, ledger, root.store(), stored_data(root, ledger, spec))

    @property
    def _resuming(self) -> str:
        return sweep_command("run --resume", SweepFolder.of(self.spec).path)

    def data_of(self, study: Study, seed: int) -> PreparedData:
        """Return the prepared data of a study's task for a seed."""
        task = next(task for task in self.spec.tasks if task.id == study.task)
        found = self.data.get(task.data_name(seed))
        if found is None:
            raise InputError(
                f"the prepared data of {study.task} are damaged or gone from the storage; "
                f"`{self._resuming}` prepares them again"
            )
        return found

    def cells(
        self, task: str | None = None, recipe: str | None = None, seed: int | None = None
    ) -> list[tuple[Study, Trial]]:
        """Return the trials behind the table's figures that pass the filters, at least one.

        Raises:
            InputError: If there are none.
        """
        cells = cells_of(self.ledger)
        for option, wanted, known in (
            ("task", task, [study.task for study, _ in cells]),
            ("recipe", recipe, [study.recipe for study, _ in cells]),
            ("seed", seed, [trial.seed for _, trial in cells]),
        ):
            if wanted is not None and wanted not in known:
                listing = ", ".join(dict.fromkeys(map(str, known))) or "none"
                raise InputError(
                    f"no cell with --{option} {wanted!r} has been measured; there are: {listing}"
                )
        chosen = [
            (study, trial)
            for study, trial in cells
            if task in (None, study.task) and recipe in (None, study.recipe)
            if seed in (None, trial.seed)
        ]
        if not chosen:
            raise InputError(
                f"sweep {self.spec.name!r} has no measured cell with this task, recipe and seed"
            )
        return chosen

    def tested(self, study: Study, trial: Trial) -> RowPredictions:
        """Return a trial's predictions of test rows; ``InputError`` if missing or of pixels."""
        ref = ArtifactRef("evaluate", trial.predictions)
        found = self.store.find(ref)
        if found is None:
            raise InputError(
                f"the predictions of {study.recipe} on {study.task}, seed {trial.seed}, are gone: "
                f"{self.store.fault(ref)}; `{self._resuming}` computes them again"
            )
        tensors = found.tensors("test")
        if "images" in tensors:
            raise _pixels(study)
        rows = torch.from_numpy(self.data_of(study, trial.seed).test_numbers().copy())
        return _named(study, trial, tensors["log_probs"], tensors["labels"], rows)

    def suites(self, study: Study, trial: Trial) -> dict[str, Tensor]:
        """Return the stored results of a trial on its task's suites, by ``SUITE/TENSOR``."""
        task = next(task for task in self.spec.tasks if task.id == study.task)
        found: dict[str, Tensor] = {}
        data = self.data_of(study, trial.seed)
        for suite in (find_suite(name, self.spec.data_root) for name in task.suites):
            kept = SuiteData.open(suite_directory(suite, data))
            outcome = self.store.find(
                ArtifactRef("evaluate", suite_key(trial.artifact, data, kept))
            )
            if outcome is None:
                raise InputError(
                    f"the results of suite {suite.name!r} for {study.recipe} on {study.task}, seed "
                    f"{trial.seed}, are gone; run the sweep again under another name"
                )
            tensors = outcome.tensors("suite")
            found |= {f"{suite.label}/{name}": value for name, value in tensors.items()}
        return found

    def validated(self, study: Study, trial: Trial) -> RowPredictions:
        """Return the stored predictions of a finished trial for the validation data of its seed."""
        found = validation_rows(self.store, trial.ref)
        if found.images is not None:
            raise _pixels(study)
        numbers = self.data_of(study, trial.seed).search_numbers("validation")
        return _named(study, trial, found.logits, found.labels, torch.from_numpy(numbers.copy()))


def _named(
    study: Study, trial: Trial, logits: Tensor, labels: Tensor, rows: Tensor
) -> RowPredictions:
    return RowPredictions(logits, labels, rows, study.task, study.recipe, trial.seed)


def _pixels(study: Study) -> InputError:
    return InputError(
        f"{study.task}: only a sample of its pixels is stored, so its figures cannot be recomputed "
        "from predictions; use a task with one label per row"
    )

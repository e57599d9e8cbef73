"""Reads the stored trials of sweeps: outcomes by configuration, epoch and seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from orchestrator.running.data import stored_data
from orchestrator.storage.events import Epoch
from orchestrator.storage.journal import iterate_events
from orchestrator.storage.ledger import Ledger, Trial, read_ledger
from orchestrator.storage.storage import Storage, SweepFolder
from orchestrator.sweep.plan import Plan, StudyPlan, make_plan
from orchestrator.sweep.spec import SweepSpec
from search_spaces import Parameter
from trainables.common.errors import InputError
from trainables.common.later import Tensor, torch
from trainables.common.paths import sweep_command
from trainables.data import PreparedData
from trainables.stages import ValidationRows, evaluate_on_test, objective_terms, validation_rows
from trainables.store.artifacts import ArtifactStore

ENDED = ("finished", "failed")


@dataclass(frozen=True)
class RecordedTrial:
    """A finished search trial.

    Attributes:
        logits: Logits or log-probabilities of the N rows that a search uses, (N, K): the validation
            rows, or those of ``drawn``.
        outputs: Log-probabilities of the M rows that judge its choice, (M, K): the test rows, or
            those of ``drawn``.
        test: Metrics on test data with the names of ``evaluation_report``; empty if choices are
            judged on other rows.
    """

    trial: Trial
    logits: Tensor
    outputs: Tensor
    test: Mapping[str, float]

    def drawn(self, own: Tensor, others: Tensor) -> RecordedTrial:
        """Return the trial with rows ``own`` for the search and ``others`` to judge the choice.

        Both are positions in the validation rows, followed by the test rows.
        """
        rows = torch.cat([self.logits.log_softmax(1), self.outputs])
        return RecordedTrial(replace(self.trial, metrics={}), rows[own], rows[others], {})


@dataclass(frozen=True)
class RecordedStudy:
    """The finished search trials of one study, whose results a simulated search uses.

    Attributes:
        trials: Trials by number; the published default is the first if it finished.
        labels: Labels of the rows that a search uses, (N,); see ``RecordedTrial``.
        test_labels: Labels of the rows that judge its choice, (M,).
        plain: The trial with which the study's accuracy guard compared, or None.
    """

    plan: StudyPlan
    trials: tuple[RecordedTrial, ...]
    labels: Tensor
    test_labels: Tensor
    plain: RecordedTrial | None
    data: PreparedData

    @cached_property
    def by_artifact(self) -> dict[str, RecordedTrial]:
        """The trials by the keys of their artifacts, including ``plain``."""
        every = [*self.trials, *([self.plain] if self.plain else [])]
        return {recorded.trial.artifact: recorded for recorded in every}

    def losses(self, metric: str) -> dict[int, float]:
        """Return a test metric of every trial, by number."""
        return {
            found.trial.number: found.test[metric]
            if found.test
            else float(objective_terms(metric, found.outputs, self.test_labels).mean())
            for found in self.trials
        }

    def drawn(self, validation: int, seed: int) -> RecordedStudy:
        """Return the study with new validation rows, drawn from all rows; the rest is for testing.

        Args:
            validation: Number of rows to draw, less than the number of all rows.
            seed: Determines the rows.
        """
        labels = torch.cat([self.labels, self.test_labels])
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
        own, others = order[:validation], order[validation:]
        return replace(
            self,
            trials=tuple(found.drawn(own, others) for found in self.trials),
            labels=labels[own],
            test_labels=labels[others],
            plain=self.plain and self.plain.drawn(own, others),
        )

    def nearest(self, configuration: Mapping[str, Mapping[str, Any]]) -> tuple[int, float]:
        """Return the position of the trial with the nearest configuration, and its distance.

        The distance is the largest over the searched parameters, as a share of the range on the
        parameter's scale; two different categorical values have distance 1.
        """
        given = (found.trial.configuration for found in self.trials)
        distances = [self._distance(one, configuration) for one in given]
        nearest = min(distances)
        return distances.index(nearest), nearest

    def _distance(self, one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
        return max(
            _apart(parameter, one[part][name], other[part][name])
            for part, parameters in self.plan.searched.items()
            for name, parameter in parameters.items()
        )


@dataclass(frozen=True)
class RecordedSweep:
    """The trials of a sweep, and the reasons why some of its studies were ``skipped``."""

    folder: SweepFolder
    spec: SweepSpec
    ledger: Ledger
    plan: Plan
    data: Mapping[str, PreparedData]
    studies: tuple[RecordedStudy, ...]
    skipped: Mapping[str, str]

    @property
    def complete(self) -> bool:
        """Return True if the storage still has the data of all tasks and seeds."""
        names = (t.data_name(seed) for t in self.spec.tasks for seed in self.spec.all_seeds)
        return all(name in self.data for name in names)

    def epochs(self) -> Iterator[tuple[Trial, int, Mapping[str, float]]]:
        """Yield (trial, epoch, metrics) for the epochs of all trials, including further seeds."""
        for event in iterate_events(self.folder.journal, kinds=(Epoch,)):
            if isinstance(event, Epoch) and event.key in self.ledger.trials:
                yield self.ledger.trials[event.key], event.step, event.metrics


def read_sweeps(
    storage: Storage,
    names: Sequence[str] = (),
    recipes: Sequence[str] = (),
    done: Callable[[int, int], None] = lambda count, total: None,
    test: bool = True,
) -> list[RecordedSweep]:
    """Return the ended sweeps of a storage; if ``test``, measure all finished trials on test data.

    This includes trials that a sweep does not measure, so it must come after all choices. The
    measurements stay in the storage as artifacts until ``gc``.

    Args:
        storage: The storage.
        names: Sweeps to read; all that have ended if empty. With ``test`` false, a named sweep may
            still run: its finished trials are read.
        recipes: Recipes whose studies to read; all with a search if empty.
        done: Receives the number of measured trials and their total, sweep by sweep.
        test: Whether to measure trials on test data; if False, there are no test rows.
    """
    known = {folder.name: folder for folder in storage.sweeps() if folder.journal.is_file()}
    for name in names:
        if name not in known:
            raise InputError(f"no sweep {name!r} in {storage.folder}; there are: {_list(known)}")
    ledgers = {name: read_ledger(known[name].journal) for name in names or known}
    # A sweep that has not chosen yet may be read, but only without test rows.
    free = bool(names) and not test
    ended = {name: found for name, found in ledgers.items() if free or found.status in ENDED}
    for name in names or (() if ended else known):
        if name not in ended:
            raise InputError(
                f"sweep {name!r} has not ended, so not all of its choices are known; "
                f"resume it with `{sweep_command('run --resume', known[name].path)}`"
            )
    found = [_read(storage, known[name], ended[name], recipes, done, test) for name in ended]
    if not any(sweep.studies for sweep in found):
        reasons = {f"{study}: {why}" for sweep in found for study, why in sweep.skipped.items()}
        listing = "; ".join(sorted(reasons)) or "there is no ended sweep"
        raise InputError(f"nothing in {storage.folder} can be replayed: {listing}")
    return found


def _read(
    storage: Storage,
    folder: SweepFolder,
    ledger: Ledger,
    recipes: Sequence[str],
    done: Callable[[int, int], None],
    test: bool,
) -> RecordedSweep:
    spec = storage.load_spec(folder.name)
    plan, data = make_plan(spec), stored_data(storage, ledger, spec)
    every = {study.recipe.name for study in plan}
    for recipe in recipes:
        if recipe not in every:
            listing = _list(every)
            raise InputError(f"no recipe {recipe!r} in sweep {folder.name!r}; there are: {listing}")
    skipped: dict[str, str] = {}
    studies = []
    wanted = [study for study in plan if study.recipe.name in (recipes or every)]
    known = [ledger.studies[study.id] for study in wanted if study.id in ledger.studies]
    total = sum(len(study.searched) for study in known)
    reader = _Reader(storage.store(), ledger, data, done, total, test)
    for study in wanted:
        try:
            studies.append(reader.study(study))
        except _NotReplayableError as reason:
            skipped[study.id] = str(reason)
    return RecordedSweep(folder, spec, ledger, plan, data, tuple(studies), skipped)


class _NotReplayableError(Exception):
    """A study that cannot be replayed; the text says why."""


class _Reader:
    def __init__(
        self,
        store: ArtifactStore,
        ledger: Ledger,
        data: Mapping[str, PreparedData],
        done: Callable[[int, int], None],
        total: int,
        test: bool,
    ) -> None:
        self._store, self._ledger, self._data, self._test = store, ledger, data, test
        self._done, self._total, self._count = done, total, 0

    def study(self, plan: StudyPlan) -> RecordedStudy:
        """Return a study, or raise ``_NotReplayableError`` with the reason."""
        known = self._ledger.studies.get(plan.id)
        self._count += len(known.searched) if known else 0
        if plan.points == 1:
            raise _NotReplayableError("nothing to search")
        finished = [t for t in known.searched if t.status == "finished"] if known else []
        if not finished:
            raise _NotReplayableError("no finished trial")
        data = self._data.get(plan.task.data_name(finished[0].seed))
        if data is None:
            raise _NotReplayableError(
                "its data was deleted from the storage; run the sweep there again"
            )
        rows = self._rows(finished[0])
        if rows.images is not None:
            raise _NotReplayableError("pixels of an image cannot be resampled as single rows")
        trials = tuple(self._trial(trial, data) for trial in finished)
        tested = rows.labels[:0]
        if self._test:
            tested = evaluate_on_test(self._store, finished[0].ref, data)[1].tensors("test")[
                "labels"
            ]
        self._done(self._count, self._total)
        reference = self._ledger.studies.get(plan.reference or "")
        guard = reference.chosen_trial if reference else None
        plain = self._trial(guard, data) if guard else None
        return RecordedStudy(plan, trials, rows.labels, tested, plain, data)

    def _rows(self, trial: Trial) -> ValidationRows:
        if self._store.find(trial.ref, whole=self._test) is None:
            dropped = self._store.is_dropped(trial.ref)
            what = "weights of trial {} are" if dropped else "artifact of trial {} is"
            raise _NotReplayableError(f"the {what.format(trial.number)} gone")
        return validation_rows(self._store, trial.ref)

    def _trial(self, trial: Trial, data: PreparedData) -> RecordedTrial:
        logits = self._rows(trial).logits
        if not self._test:
            return RecordedTrial(trial, logits, logits[:0], {})
        test, judged = evaluate_on_test(self._store, trial.ref, data)
        return RecordedTrial(trial, logits, judged.tensors("test")["log_probs"], test)


def _apart(parameter: Parameter, one: Any, other: Any) -> float:
    if parameter.type == "categorical":
        return float(one != other)
    assert parameter.low is not None
    assert parameter.high is not None
    low, high, one, other = parameter.low, parameter.high, one, other
    if parameter.scale == "log":
        low, high, one, other = map(math.log, (low, high, one, other))
    return float(abs(one - other) / (high - low)) if high > low else 0.0


def _list(names: Any) -> str:
    return ", ".join(sorted(names)) or "none"

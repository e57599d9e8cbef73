"""The edge to Ray Tune: one searcher for all studies, and one scheduler a study."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher
from ray.tune.utils.util import unflatten_dict

from orchestrator._state import SweepState, TrialSpec
from orchestrator._study import MACHINE, Outcome
from orchestrator.journal import Journal
from orchestrator.plan import StudyPlan
from orchestrator.spec import SweepSpec
from trainables.artifacts import Artifact
from trainables.errors import InputError, StorageError
from trainables.ray_edge import BROKEN

__all__ = ["StudySchedulers", "SweepSearcher", "make_scheduler"]

TAKE_OVER_SECONDS = 0.5
REAPED = "the trial's process ended more often than resources.max_failures allows"


class SweepSearcher(Searcher):
    """Hands the trials of a ``SweepState`` to Tune and its reports back to the state.

    Args:
        state: The sweep.
        journal: Receives the epochs.
        spec: The sweep's specification.
        changed: Called whenever something happened.
        notice: Receives what a person should know of, such as a damaged artifact.
        limit: Returns how many trials may be given out now.
        find: Returns the stored outcome of a stage and key, if there is one.
    """

    def __init__(
        self,
        state: SweepState,
        journal: Journal,
        spec: SweepSpec,
        changed: Callable[[], None] = lambda: None,
        notice: Callable[[str], None] = lambda text: None,
        limit: Callable[[], int] = lambda: sys.maxsize,
        find: Callable[[str, str], Artifact | None] = lambda stage, key: None,
    ) -> None:
        super().__init__(metric="score", mode="min")
        self._state = state
        self._journal = journal
        self._spec = spec
        self._changed = changed
        self._notice = notice
        self._limit = limit
        self._find = find
        self._running: dict[str, TrialSpec] = {}
        self._last: dict[str, dict[str, Any]] = {}
        self._failure: InputError | None = None

    def suggest(self, trial_id: str) -> Any:
        """Return a trial's configuration, None if all must wait, FINISHED at the very end.

        Raises:
            InputError: If the journal could not be written, now or when a report came: Tune lets
                only what is raised here end the sweep.
        """
        if self._failure is not None:
            raise self._failure
        if len(self._running) >= self._limit():
            return None
        trial = self._next_to_compute()
        if trial is None:
            return Searcher.FINISHED if self._state.finished else None
        self._running[trial_id] = trial
        resources = getattr(self._spec.resources, trial.request.stage)
        return {
            "study": trial.study,
            "number": trial.number,
            "role": trial.role,
            "request": trial.request.plain(),
            "together": [request.plain() for request in trial.together],
            "cpus": resources.cpu,
            "gpus": resources.gpu,
            "score": f"val_{self._spec.search.objective}",
        }

    def _next_to_compute(self) -> TrialSpec | None:
        """Return a trial whose outcome is not there yet; those before it need no process.

        What comes of the trials of one pass is stored when its first one ends, so that the others
        end here. Trained networks are left to trials: to check one takes longer than a loop that
        serves all trials may stand still.
        """
        started = time.monotonic()
        while (trial := self._state.next_trial()) is not None:
            stage = trial.request.stage
            found = None if stage == "train" else self._find(stage, trial.request.key())
            if found is None:
                return trial
            self._take_over(trial, found)
            if self._running and time.monotonic() - started > TAKE_OVER_SECONDS:
                return None
        return None

    def _take_over(self, trial: TrialSpec, found: Artifact) -> None:
        for epoch in found.record["history"]:
            self._journal.append({"event": "epoch", "key": trial.key, **epoch})
        outcome = Outcome("finished", dict(found.record["metrics"]), artifact=found.key)
        self._state.record(trial, outcome, reused=True, seconds=0.0)
        self._changed()

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Write the epochs of a report into the journal and pass its notices on."""
        self._last[trial_id] = result
        with self._failures_kept():
            self._take_report(self._running[trial_id], result)
        self._changed()

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Tell the state how a trial ended. Tune hands over the last report flattened."""
        trial = self._running.pop(trial_id)
        last = self._last.pop(trial_id, None)
        with self._failures_kept():
            if result:
                last = unflatten_dict(result)
                self._take_report(trial, last)
            if last and last["storage_failed"]:
                # No trial can end well: the sweep stops, and a resumed one computes this trial.
                raise StorageError(last["reason"])
            outcome = _outcome(trial, last, error)
            self._state.record(trial, outcome, **_facts(last), **_where(outcome, last))
        self._changed()

    @contextmanager
    def _failures_kept(self) -> Iterator[None]:
        try:
            yield
        except InputError as error:
            self._failure = self._failure or error

    def _take_report(self, trial: TrialSpec, result: dict[str, Any]) -> None:
        for text in result.get("notices", ()):
            self._notice(text)
        for epoch in result.get("history", ()):
            self._journal.append({"event": "epoch", "key": trial.key, **epoch})

    def __getstate__(self) -> dict[str, Any]:
        """Leave the live state out of Tune's snapshots, which nothing is restored from."""
        return {"_metric": self._metric, "_mode": self._mode}

    def save(self, checkpoint_path: str) -> None:
        """Write who this is: the journal, not Tune's snapshot, is what a sweep resumes from."""
        Path(checkpoint_path).write_text(json.dumps({"sweep_id": self._state.sweep_id}))

    def restore(self, checkpoint_path: str) -> None:
        """Refuse: a sweep resumes from its journal."""
        raise RuntimeError("a sweep resumes from its journal: calsweep run --resume NAME")


def _outcome(trial: TrialSpec, last: dict[str, Any] | None, error: bool) -> Outcome:
    """Translate Tune's last word on a trial; one that it stopped early counts as pruned."""
    broken = last is not None and last["status"] == BROKEN
    if error or last is None or broken:
        reason = last["reason"] if last is not None and broken else REAPED
        return Outcome("failed", {}, reason=reason, fault=MACHINE)
    if last["status"] == "failed":
        return Outcome("failed", last.get("metrics", {}), reason=last["reason"])
    if last["status"] == "finished":
        return Outcome("finished", last["metrics"], artifact=trial.request.key())
    return Outcome("pruned", last["metrics"])


def _facts(last: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "reused": bool(last and last["reused"]),
        "seconds": round(last["seconds"], 3) if last else 0.0,
        **_costs(last),
    }


def _where(outcome: Outcome, last: dict[str, Any] | None) -> dict[str, str]:
    """Return where a trial failed, as far as its last report tells."""
    if outcome.status != "failed" or last is None:
        return {}
    return {name: last[name] for name in ("host", "traceback") if last.get(name)}


def _costs(last: dict[str, Any] | None) -> dict[str, float]:
    """Return what computing cost; nothing for an outcome that was found, not computed."""
    if last is None or last["reused"] or not last.get("epoch_seconds"):
        return {}
    return {name: last[name] for name in ("epoch_seconds", "peak_memory")}


class StudySchedulers(FIFOScheduler):
    """One ASHA for each study, so that studies never stop each other's trials.

    Trials run in the order in which they come: the state decides it.

    Args:
        epochs: Study to the epochs of its trials.
    """

    def __init__(self, epochs: dict[str, int]) -> None:
        super().__init__()
        self._epochs = epochs
        self._schedulers: dict[str, ASHAScheduler] = {}

    def _of(self, trial: Any) -> ASHAScheduler:
        study = trial.config["study"]
        if study not in self._schedulers:
            self._schedulers[study] = ASHAScheduler(
                time_attr="epoch",
                metric="score",
                mode="min",
                max_t=max(2, self._epochs[study] + 1),
                grace_period=max(1, self._epochs[study] // 9),
                reduction_factor=3,
            )
        return self._schedulers[study]

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Pass on to the study's own scheduler."""
        self._of(trial).on_trial_add(tune_controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Let the study's own scheduler decide; further seeds of what was chosen run to the end.

        So does a trial whose machine failed: it has to end its process.
        """
        if trial.config["role"] == "seed" or result.get("status") == BROKEN:
            return TrialScheduler.CONTINUE
        return self._of(trial).on_trial_result(tune_controller, trial, result)

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        """Pass on to the study's own scheduler."""
        self._of(trial).on_trial_complete(tune_controller, trial, result)

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
        """Pass on to the study's own scheduler."""
        self._of(trial).on_trial_remove(tune_controller, trial)

    def debug_string(self) -> str:
        """Return a line for Tune's own status."""
        return f"{len(self._schedulers)} ASHA schedulers"


def make_scheduler(state: SweepState, spec: SweepSpec) -> TrialScheduler:
    """Return the scheduler that a sweep asks for."""
    if spec.search.scheduler == "none":
        return FIFOScheduler()
    return StudySchedulers({study.id: _epochs(study) for study in state.plan})


def _epochs(study: StudyPlan) -> int:
    if study.stage == "train":
        return study.task.resolved_protocol.epochs
    return max(int(values.get("epochs", 1)) for values in study.defaults.values())

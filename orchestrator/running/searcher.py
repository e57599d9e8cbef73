"""The edge to Ray Tune: one searcher for all studies, and one scheduler a study."""

import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.tune import PlacementGroupFactory
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher
from ray.tune.utils.util import unflatten_dict

from orchestrator.running.cluster.local import elsewhere
from orchestrator.search.state import SweepState
from orchestrator.search.trials import TrialSpec
from orchestrator.storage.events import MACHINE, Epoch, TrialFinished
from orchestrator.storage.journal import Journal
from orchestrator.sweep.plan import Plan, StudyPlan
from trainables.common.errors import InputError, StorageError
from trainables.common.faults import is_final
from trainables.ray_edge import BROKEN
from trainables.stages import with_objective
from trainables.store.artifacts import Artifact

TAKE_OVER_SECONDS = 0.5
REAPED = "the trial's process ended more often than resources.max_failures allows"


class SweepSearcher(Searcher):
    """Hands the trials of a ``SweepState`` to Tune and its reports back to the state.

    Args:
        state: The sweep.
        journal: Receives the epochs.
        changed: Called whenever something happened.
        notice: Receives what a person should know of, such as a damaged artifact.
        limit: Returns how many trials may be given out now.
        find: Returns the stored outcome of a stage and key, if there is one.
        failures: How often processes of each of Tune's trials that it gave up have failed.
    """

    def __init__(
        self,
        state: SweepState,
        journal: Journal,
        changed: Callable[[], None] = lambda: None,
        notice: Callable[[str], None] = lambda text: None,
        limit: Callable[[], int] = lambda: sys.maxsize,
        find: Callable[[str, str], Artifact | None] = lambda stage, key: None,
        failures: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(metric="score", mode="min")
        self._state = state
        self._journal = journal
        self._changed = changed
        self._notice = notice
        self._noticed: set[str] = set()  # Every trial of a study may have the same to say.
        self._limit = limit
        self._find = find
        self._running: dict[str, TrialSpec] = {}
        self._last: dict[str, dict[str, Any]] = {}
        self._failure: InputError | None = None
        self._failures = {} if failures is None else failures
        self._failed: Counter[str] = Counter()  # Processes, by key of the trial.
        self._lost: list[TrialSpec] = []  # To be handed out again.
        self._crowded: list[TrialSpec] = []  # To be tried again, each alone on a GPU.
        self._tried_alone: set[str] = set()
        self._making_room = ""  # The trial that waits for a GPU of its own.

    def suggest(self, trial_id: str) -> Any:
        """Return a trial's configuration, None if all must wait, FINISHED at the very end.

        Raises:
            InputError: If the journal could not be written, now or when a report came: Tune lets
                only what is raised here end the sweep.
        """
        if self._failure is not None:
            raise self._failure
        if self._making_room or len(self._running) >= self._limit():
            return None
        alone = bool(self._crowded)
        trial = self._crowded.pop() if alone else self._next_trial()
        if trial is None:
            return Searcher.FINISHED if self._state.finished else None
        self._running[trial_id] = trial
        self._making_room = trial_id if alone else ""
        resources = getattr(self._state.plan.spec.resources, trial.request.stage)
        return {
            "study": trial.study,
            "number": trial.number,
            "role": trial.role,
            "request": trial.request.plain(),
            "together": [request.plain() for request in trial.together],
            "cpus": resources.cpu,
            "gpus": 1.0 if alone else resources.gpu,
            "deterministic": self._state.plan.spec.resources.deterministic,
            "graph": self._state.plan.spec.resources.graph,
            "score": self._state.studies[trial.study].rule.objective,
        }

    def _next_trial(self) -> TrialSpec | None:
        return self._lost.pop() if self._lost else self._next_to_compute()

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
            self._journal.append(Epoch(key=trial.key, **epoch))
        rule = self._state.studies[trial.study].rule
        metrics = with_objective(found.record["metrics"], rule.objective, found)
        ending = trial.ending("finished", metrics, artifact=found.key, reused=True, seconds=0.0)
        self._state.record(trial, ending)
        self._changed()

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Write the epochs of a report into the journal and pass its notices on."""
        self._last[trial_id] = result
        self._room_is_made(trial_id)
        with self._keep_failure():
            self._take_report(self._running[trial_id], result)
        self._changed()

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Tell the state how a trial ended. Tune hands over the last report flattened."""
        trial = self._running.pop(trial_id)
        last = self._last.pop(trial_id, None)
        self._room_is_made(trial_id)
        with self._keep_failure():
            if result:
                last = unflatten_dict(result)
                self._take_report(trial, last)
            if last and last["storage_failed"]:
                # No trial can end well: the sweep stops, and a resumed one computes this trial.
                raise StorageError(last["reason"])
            crowded = last and last.get("memory_failed") and self._try_alone(trial)
            if not (crowded or (error and self._hand_out_again(trial, trial_id))):
                self._state.record(trial, _ending(trial, last, error))
        self._changed()

    def _hand_out_again(self, trial: TrialSpec, trial_id: str) -> bool:
        """Have a trial started again that Tune gave up too early.

        It does so with one whose process dies while it is changed over from an earlier trial.
        """
        most = self._state.plan.spec.resources.max_failures
        self._failed[trial.key] += self._failures.get(trial_id, most + 1)
        if self._failed[trial.key] > most:
            return False
        self._lost.append(trial)
        return True

    def _try_alone(self, trial: TrialSpec) -> bool:
        """Have a trial that ran out of its share of a GPU tried once more, if not done already."""
        share = getattr(self._state.plan.spec.resources, trial.request.stage).gpu
        if not 0 < share < 1 or trial.key in self._tried_alone:
            return False
        self._tried_alone.add(trial.key)
        self._crowded.append(trial)
        self._notice(
            f"{trial.study}: trial {trial.number} ran out of memory on {share:g} of a GPU; "
            "it is tried once more, alone on one"
        )
        return True

    def _room_is_made(self, trial_id: str) -> None:
        if trial_id == self._making_room:
            self._making_room = ""

    @contextmanager
    def _keep_failure(self) -> Iterator[None]:
        try:
            yield
        except InputError as error:
            self._failure = self._failure or error

    def _take_report(self, trial: TrialSpec, result: dict[str, Any]) -> None:
        for text in result.get("notices", ()):
            if text not in self._noticed:
                self._noticed.add(text)
                self._notice(text)
        for epoch in result.get("history", ()):
            self._journal.append(Epoch(key=trial.key, **epoch))

    def __getstate__(self) -> dict[str, Any]:
        """Leave the live state out of Tune's snapshots, which nothing is restored from."""
        return {"_metric": self._metric, "_mode": self._mode}

    def save(self, checkpoint_path: str) -> None:
        """Write who this is: the journal, not Tune's snapshot, is what a sweep resumes from."""
        Path(checkpoint_path).write_text(json.dumps({"sweep_id": self._state.sweep_id}))

    def restore(self, checkpoint_path: str) -> None:
        """Refuse: a sweep resumes from its journal."""
        raise RuntimeError("a sweep resumes from its journal: calsweep run --resume NAME")


def _ending(trial: TrialSpec, last: dict[str, Any] | None, error: bool) -> TrialFinished:
    """Translate Tune's last word on a trial; one that it stopped early counts as pruned."""
    if error or last is None or last["status"] == BROKEN:
        reason = last["reason"] if last is not None and last["status"] == BROKEN else REAPED
        fault = "" if is_final(reason) else MACHINE
        return trial.ending("failed", {}, reason=reason, fault=fault, **_facts("failed", last))
    status, facts = last["status"], _facts(last["status"], last)
    if status == "failed":
        return trial.ending(status, last.get("metrics", {}), reason=last["reason"], **facts)
    if status == "finished":
        return trial.ending(status, last["metrics"], artifact=trial.request.key(), **facts)
    return trial.ending("pruned", last["metrics"], **facts)


def _facts(status: str, last: dict[str, Any] | None) -> dict[str, Any]:
    """Return what else the last report tells of how a trial ended: its cost, where it failed."""
    if last is None:
        return {"reused": False, "seconds": 0.0}
    facts = {"reused": bool(last["reused"]), "seconds": round(last["seconds"], 3)}
    if last.get("epoch_seconds") and not last["reused"]:  # What was found has cost nothing.
        facts |= {name: last[name] for name in ("epoch_seconds", "peak_memory")}
    if status == "failed":
        facts |= {name: last[name] for name in ("host", "traceback") if last.get(name)}
    return facts


class CountingScheduler(FIFOScheduler):
    """Runs trials in the order in which they come, and none again on a node that failed it.

    Attributes:
        failures: How often processes of each trial that was given up have failed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.failures: dict[str, int] = {}
        self._avoided: defaultdict[str, set[str]] = defaultdict(set)  # Nodes, by trial.

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Have a trial that a node failed start again on another.

        The node that fails trials is free before the others.
        """
        last = trial.run_metadata.last_result
        if last.get("status") == BROKEN:
            avoided = self._avoided[trial.trial_id]
            avoided.add(last["node"])
            trial.update_resources(_elsewhere(trial.placement_group_factory, avoided))

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        """Count; Tune asks the searcher what comes of the trial right after."""
        self.failures[trial.trial_id] = max(1, trial.run_metadata.num_failures)


def _elsewhere(wanted: PlacementGroupFactory, avoided: set[str]) -> PlacementGroupFactory:
    """Return wanted resources on nodes not to be avoided; on any if no other has as much."""
    (bundle,) = wanted.bundles
    cpu, gpu = bundle.get("CPU", 0), bundle.get("GPU", 0)
    selector = elsewhere(ray.nodes(), avoided, cpu, gpu)
    if not selector:
        return PlacementGroupFactory([bundle])
    return PlacementGroupFactory([bundle], bundle_label_selector=[selector])


class StudySchedulers(CountingScheduler):
    """One ASHA for each study, so that studies never stop each other's trials.

    Trials run in the order in which they come: the state decides it. ``epochs`` are those of each
    study's trials.
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
        super().on_trial_add(tune_controller, trial)
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


def make_scheduler(plan: Plan) -> CountingScheduler:
    """Return the scheduler that a sweep asks for."""
    if plan.spec.search.scheduler == "none":
        return CountingScheduler()
    return StudySchedulers({study.id: _epochs(study) for study in plan})


def _epochs(study: StudyPlan) -> int:
    if study.stage == "train":
        return study.task.resolved_protocol.epochs
    return max(int(values.get("epochs", 1)) for values in study.defaults.values())

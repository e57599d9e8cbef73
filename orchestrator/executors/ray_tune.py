"""The executor that computes on a Ray cluster, and all code for Tune except the trainable."""

from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from orchestrator.cluster.interrupt import stop_promptly
from orchestrator.cluster.local import elsewhere
from orchestrator.executors._base import Executor
from orchestrator.executors._counters import Counters
from orchestrator.executors._held_gpus import HeldGpus
from orchestrator.executors._hung_actors import HungActors
from orchestrator.executors._nodes import Limit, Nodes, inspecting, require_node
from orchestrator.loop import Loop, Pause
from orchestrator.storage.storage import SweepFolder
from trainables.common.errors import InputError
from trainables.common.files import code_files
from trainables.jobs import FaultKind, Job, Report, Status, lost
from trainables.plugins import Pinned
from trainables.ray_edge import JobTrainable

REPORT_SECONDS = 2.0
PENDING = 1024


@dataclass
class RayTune(Executor):
    """Computes jobs as trials of one Tuner, in actors that are reused for many jobs.

    Args:
        folder: The sweep's folder.
        concurrent: Maximum number of jobs at once; None for as many as fit.
        storage, checkpoint_seconds, plugins: See ``Bench``.
        asha: Whether the weaker jobs of each group (a study) are stopped early.
        growing: Whether nodes may join during the sweep.
        hang_seconds: See ``Silence``.
    """

    storage: Path
    folder: Path
    concurrent: int | None = None
    checkpoint_seconds: float | None = None
    asha: bool = False
    growing: bool = False
    plugins: tuple[Pinned, ...] = ()
    hang_seconds: float | None = None
    _passed: set[str] = field(default_factory=set)  # Nodes that passed the inspection.

    def run(self, loop: Loop, sealed: bool = True) -> None:
        """Run one Tuner; a signal stops it within seconds."""
        hung = HungActors(self.hang_seconds)
        trainable = tune.with_parameters(
            JobTrainable,
            storage=str(self.storage),
            sealed=sealed,
            # ASHA decides after every epoch; otherwise short epochs are reported together.
            report_seconds=0.0 if self.asha else REPORT_SECONDS,
            checkpoint_seconds=self.checkpoint_seconds,
            logs=str(SweepFolder(self.folder).logs),
            plugins=self.plugins,
            code=code_files(),
            pulse=hung.run,
            beat_seconds=hung.beat_seconds,
        )
        limit = Limit(loop.source.sizes, self.concurrent, self.growing)
        held, counters = HeldGpus(loop.source.sizes), Counters(self.folder.name)
        looking = inspecting(self.storage, loop, self._passed) if self.growing else nullcontext()
        with stop_promptly(), looking as nodes, closing(held), closing(hung):
            tune.Tuner(
                tune.with_resources(trainable, _resources()),
                tune_config=tune.TuneConfig(
                    num_samples=-1,
                    search_alg=LoopSearcher(loop, limit, held, counters, hung, nodes),
                    scheduler=GroupSchedulers() if self.asha else OrderOfSearch(),
                    max_concurrent_trials=PENDING,
                    reuse_actors=True,
                    trial_name_creator=_name,
                    trial_dirname_creator=lambda trial: trial.trial_id,
                ),
                run_config=tune.RunConfig(
                    name="tune",
                    storage_path=str(self.folder),
                    verbose=0,
                    # Jobs write their own checkpoints, which outlive the driver, and the loop
                    # decides which jobs are retried.
                    checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
                    failure_config=tune.FailureConfig(max_failures=0),
                ),
            ).fit()


def _name(trial: Any) -> str:
    job = trial.config["job"]
    return f"{job.group}|{job.number}"


def _resources() -> Callable[[dict[str, Any]], Any]:
    # A nested function is pickled by value, so that workers need not import this package.
    def resources(config: dict[str, Any]) -> Any:
        job, labels = config["job"], config["labels"]
        selectors: dict[str, Any] = {"bundle_label_selector": [labels]} if labels else {}
        return tune.PlacementGroupFactory([{"CPU": job.cpus, "GPU": job.gpus}], **selectors)

    return resources


class LoopSearcher(Searcher):
    """Passes the jobs of a loop to Tune, and their reports to the loop."""

    def __init__(
        self,
        loop: Loop,
        limit: Callable[[], int],
        held: HeldGpus,
        counters: Counters,
        hung: HungActors,
        nodes: Nodes | None = None,
    ) -> None:
        super().__init__(metric="score", mode="min")
        self._counters, self._hung = counters, hung
        self._loop, self._limit, self._held, self._nodes = loop, limit, held, nodes
        self._jobs: dict[str, Job] = {}  # By Tune's trial.
        self._last: dict[str, Report] = {}
        self._failure: InputError | None = None

    def suggest(self, trial_id: str) -> Any:
        """Return a trial's configuration, or None if no trial can start now.

        Return ``Searcher.FINISHED`` if the loop is done.
        """
        if self._failure is not None:
            raise self._failure
        self._held.keep(self._loop.machines.gpus_left_out())
        self._hung.look()
        # While a job waits for a whole GPU, no other job may take a share of one.
        room = any(job.alone and name not in self._last for name, job in self._jobs.items())
        if room or len(self._jobs) >= self._limit():
            return None
        job = self._loop.next()
        if isinstance(job, Pause):
            return Searcher.FINISHED if job is Pause.DONE else None
        self._jobs[trial_id] = job
        self._counters.running(len(self._jobs))
        waiting = self._nodes.waiting() if self._nodes is not None else frozenset()
        avoided, never = job.avoided | waiting, waiting | self._loop.machines.refused.keys()
        labels = elsewhere(ray.nodes(), avoided, job.cpus, job.gpus, never) if avoided else {}
        return {"job": job, "labels": labels}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Pass a report to the loop; an ended one waits for ``on_trial_complete``."""
        self._last[trial_id] = report = result["report"]
        if not report.ended:
            self._take(self._jobs[trial_id], report)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Pass the last report to the loop; if it is no end, the job was lost or stopped early."""
        job, last = self._jobs.pop(trial_id), self._last.pop(trial_id, None)
        report = result["report"] if result else last
        if error or report is None:
            gone = self._hung.report(job, last) or lost(last)
            report = last if last is not None and last.broken else gone
        elif not report.ended:
            report = replace(report, status=Status.PRUNED)
        self._counters.running(len(self._jobs))
        self._counters.ended(job, report)
        self._take(job, report)

    def _take(self, job: Job, report: Report) -> None:
        try:
            self._loop.take(job, report)
            if report.fault is not None and report.fault.kind == FaultKind.CODE:
                require_node(self._loop.machines.refused, self._loop.source.sizes)
        except InputError as error:
            self._failure = self._failure or error

    def __getstate__(self) -> dict[str, Any]:
        """Leave the live state out of Tune's snapshots, which are never restored."""
        return {"_metric": self._metric, "_mode": self._mode}

    def save(self, checkpoint_path: str) -> None:
        """Write an empty file, because a sweep resumes from its journal."""
        Path(checkpoint_path).touch()


class OrderOfSearch(FIFOScheduler):
    """Runs trials in the order in which the search returns them."""

    def choose_trial_to_run(self, tune_controller: Any) -> None:
        """Leave the choice to Tune, which keeps the order."""


class GroupSchedulers(OrderOfSearch):
    """One ASHA scheduler per group, so that studies never stop each other's trials."""

    def __init__(self) -> None:
        super().__init__()
        self._schedulers: dict[str, ASHAScheduler] = {}

    def _of(self, trial: Any) -> TrialScheduler:
        job = trial.config["job"]
        if not job.epochs:
            return FIFOScheduler()
        if job.group not in self._schedulers:
            self._schedulers[job.group] = ASHAScheduler(
                time_attr="epoch",
                metric="score",
                mode="min",
                max_t=max(2, job.epochs + 1),
                grace_period=max(1, job.epochs // 9),
                reduction_factor=3,
            )
        return self._schedulers[job.group]

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Notify the group's scheduler."""
        self._of(trial).on_trial_add(tune_controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Return the decision of the group's scheduler.

        Tune passes a last report here only if the machine failed: the next step raises, so return
        CONTINUE.
        """
        if result["report"].ended:
            return TrialScheduler.CONTINUE
        return self._of(trial).on_trial_result(tune_controller, trial, result)

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        """Notify the group's scheduler."""
        self._of(trial).on_trial_complete(tune_controller, trial, result)

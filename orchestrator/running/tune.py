"""The search itself: all studies of a sweep in one Ray Tune run."""

import time
from collections.abc import Callable
from typing import Any

from ray import tune
from rich.console import Console

from orchestrator.running.cluster.local import slots
from orchestrator.running.progress import say, show_progress, snapshot
from orchestrator.running.searcher import SweepSearcher, make_scheduler
from orchestrator.search.state import SweepState
from orchestrator.storage.journal import Journal
from orchestrator.storage.storage import SweepFolder
from orchestrator.sweep.spec import SweepSpec
from trainables.ray_edge import StageTrainable
from trainables.store.artifacts import Artifact, ArtifactStore

REPORT_SECONDS = 2.0
LIMIT_SECONDS = 1.0


def search(
    state: SweepState,
    journal: Journal,
    store: ArtifactStore,
    ray: Any,
    console: Console | None,
    growing: bool = False,
) -> None:
    """Run every trial of a sweep, until it is finished or interrupted.

    The journal receives the epochs; the state writes everything else. Nodes may join while it runs
    if the cluster is ``growing``.
    """
    spec, lag = state.plan.spec, state.plan.spec.search.parallel_trials
    started = time.monotonic()
    with show_progress(console) as show:
        show(lambda: snapshot(state, started))
        scheduler = make_scheduler(state.plan)
        searcher = SweepSearcher(
            state,
            journal,
            changed=lambda: show(lambda: snapshot(state, started)),
            notice=lambda text: say(console, text),
            limit=_Limit(spec, ray, growing),
            find=lambda stage, key: _find_local(store, stage, key),
            failures=scheduler.failures,
        )
        trainable = tune.with_parameters(
            StageTrainable,
            storage=str(store.root),
            # ASHA decides after every epoch; otherwise short epochs are reported together.
            report_seconds=0.0 if spec.search.scheduler == "asha" else REPORT_SECONDS,
            checkpoint_every=spec.resources.checkpoint_every,
        )
        tune.Tuner(
            tune.with_resources(trainable, _resources()),
            tune_config=tune.TuneConfig(
                num_samples=-1,
                search_alg=searcher,
                scheduler=scheduler,
                # As many as the samplers can have running at once.
                max_concurrent_trials=sum(min(study.trials, lag) for study in state.plan),
                reuse_actors=True,
                trial_name_creator=lambda t: f"{t.config['study']}|{t.config['number']}",
                trial_dirname_creator=lambda trial: trial.trial_id,
            ),
            run_config=_run_config(spec),
        ).fit()


def _find_local(store: ArtifactStore, stage: str, key: str) -> Artifact | None:
    """Return an artifact that need not be fetched from a mirror first, which would take time."""
    return store.find(stage, key) if store.path(stage, key).exists() else None


def _run_config(spec: SweepSpec) -> tune.RunConfig:
    return tune.RunConfig(
        name="tune",
        storage_path=str(SweepFolder.of(spec).path),
        verbose=0,
        # Trials keep checkpoints of their own, which outlive the driver.
        checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
        failure_config=tune.FailureConfig(max_failures=spec.resources.max_failures),
    )


def _resources() -> Callable[[dict[str, Any]], Any]:
    # It goes to the workers with the trainable: within a function it goes by value, so that none of
    # them imports this package.
    def resources(config: dict[str, Any]) -> Any:
        return tune.PlacementGroupFactory([{"CPU": config["cpus"], "GPU": config["gpus"]}])

    return resources


class _Limit:
    """Tells how many trials may be given out now.

    On a cluster twice as many as fit: those that wait are what an autoscaler sees as demand, and
    what a node that joins finds to do. More would make short stages queue behind long ones.
    """

    def __init__(self, spec: SweepSpec, ray: Any, growing: bool) -> None:
        self._spec, self._ray, self._growing = spec, ray, growing
        self._known = self._ask()
        self._asked = time.monotonic()

    def __call__(self) -> int:
        # To ask the cluster costs as much as to run a short trial.
        if self._growing and time.monotonic() - self._asked > LIMIT_SECONDS:
            self._known, self._asked = self._ask(), time.monotonic()
        return self._known

    def _ask(self) -> int:
        wanted = self._spec.resources
        if wanted.concurrent is not None:
            return wanted.concurrent
        available = self._ray.cluster_resources()
        stages = (wanted.train, wanted.refine, wanted.calibrate)
        fitting = max(slots(available, stage.cpu, stage.gpu) for stage in stages)
        return 2 * fitting if self._growing else fitting

"""The one look at test data, in a process that no search trial ever ran in."""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
import yaml

from orchestrator.running.cluster.local import elsewhere, slots
from orchestrator.search.state import SweepState
from orchestrator.search.study_state import StudyState
from orchestrator.search.trials import Chosen
from orchestrator.storage.events import TEST_PREFIX, Evaluated
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.storage import SweepFolder
from orchestrator.sweep.spec import SweepSpec
from trainables.common.devices import trial_device
from trainables.common.errors import StorageError
from trainables.common.faults import is_machines_fault, reason_of
from trainables.data import PreparedData
from trainables.data.suites import SuiteData, find_suite, suite_directory
from trainables.metrics import reliability_curve, reliability_diagram
from trainables.stages import LastPass, evaluate_on_test, evaluate_suite, pooled
from trainables.store.artifacts import Artifact, ArtifactStore

MOST_IN_A_PROCESS = 8
NODE = "calsweep_node"  # Attribute of an error: Ray's name of the node that raised it.


@dataclass(frozen=True)
class Evaluation:
    """One chosen configuration and seed to be measured on test data and suites, by directory.

    The ``default`` is the artifact of the published default that it was chosen over, if any.
    """

    chosen: Chosen
    task: str
    recipe: str
    suites: Mapping[str, str] = field(default_factory=dict)
    default: str = ""


def pending_evaluations(
    state: SweepState,
    past: Ledger,
    available: Callable[[str, str], bool] = lambda stage, key: True,
) -> list[Evaluation]:
    """Return what is to be measured on test data; to be called once every study has chosen.

    What builds on one training comes one after the other; see ``LastPass``.

    What has been measured by an earlier run is not measured again unless its predictions are gone,
    and of published defaults only those whose artifacts are ``available``, by stage and key.
    """
    jobs = [
        _evaluation(study, chosen, state.plan.spec.data_root, available)
        for study in state.studies.values()
        for chosen in study.seeds.values()
        if study.plan.row and chosen is not None
    ]
    return sorted(
        (job for job in jobs if not _is_complete(job, past, available)),
        key=lambda job: _training(job.chosen),
    )


def _training(chosen: Chosen) -> str:
    """Return the key of the training, or of the given logits, that a configuration builds on."""
    request = chosen.trial.request
    before = request.upstream_request or {}
    return before.get("upstream") or request.upstream or chosen.outcome.artifact


def _is_complete(job: Evaluation, past: Ledger, available: Callable[[str, str], bool]) -> bool:
    """Tell whether all test metrics, of suites and default too, and the predictions are there."""
    trial = past.trials.get(job.chosen.trial.key)
    if trial is None or not trial.test or (job.default and not trial.default_predictions):
        return False
    if not available("evaluate", trial.predictions):
        return False
    return all(any(name.startswith(f"{label}/") for name in trial.test) for label in job.suites)


def _evaluation(
    study: StudyState, chosen: Chosen, root: str, available: Callable[[str, str], bool]
) -> Evaluation:
    data, plan = chosen.trial.request.data, study.plan
    suites = {
        suite.label: str(suite_directory(suite, PreparedData.open(data)))
        for suite in (find_suite(name, root) for name in plan.task.suites)
    }
    default = study.default_artifact if chosen is study.chosen else ""
    default = default if default and available(plan.stage, default) else ""
    return Evaluation(chosen, plan.task.id, plan.recipe.name, suites, default)


def evaluate_all(
    jobs: Sequence[Evaluation],
    spec: SweepSpec,
    store: ArtifactStore,
    ray: Any,
    emit: Callable[[Evaluated], None],
    give_up: Callable[[str, str], None],
) -> None:
    """Measure chosen configurations on test data, as many at once as trials may be.

    A process measures up to ``MOST_IN_A_PROCESS``: it takes long to start on a GPU, and a network's
    pass over the test rows serves all that build on it.

    What a machine fails is measured again, as often as a trial is started again, on another node if
    one has as much; what runs out of the memory of its share of a GPU, once more on a whole one. Of
    what still cannot be measured ``give_up`` is told the study and the reason, and the others go
    on.

    Raises:
        StorageError: If the storage cannot be written, which no other evaluation could do either.
    """
    folder, given = str(SweepFolder.of(spec).chosen), spec.resources.train.gpu

    @cache
    def remote(gpus: float) -> Any:
        # Declared, not an option of each call: only then Ray ends a process that has used a GPU.
        return ray.remote(num_cpus=1, num_gpus=gpus)(evaluate_each)

    def start(work: _Work) -> Any:
        where = elsewhere(ray.nodes(), work.avoided, 1, work.gpus)
        call = remote(work.gpus).options(label_selector=where)
        options = work.gpus, spec.resources.deterministic
        return call.remote(str(store.root), folder, work.jobs, *options)

    most = spec.resources.concurrent or max(1, len(jobs))
    processes = min(most, slots(ray.cluster_resources(), 1, given))
    # No more than leaves work to every other one.
    size = max(1, min(MOST_IN_A_PROCESS, math.ceil(len(jobs) / processes)))
    parts = (jobs[first : first + size] for first in range(0, len(jobs), size))
    waiting = deque(_Work(some, given) for some in parts)
    running: dict[Any, _Work] = {}
    while waiting or running:
        while waiting and len(running) < most:
            work = waiting.popleft()
            running[start(work)] = work
        (done,), _ = ray.wait(list(running))
        work = running.pop(done)
        try:
            events = ray.get(done)
        except Exception as error:  # noqa: BLE001 - what may pass is tried again, the rest told
            # Ray adds the worker's whole traceback to the text.
            cause = getattr(error, "cause", error)
            if isinstance(cause, StorageError):
                raise cause from None
            again = work.after(cause, spec.resources.max_failures)
            if again is None:
                study = work.jobs[0].chosen.trial.study
                give_up(study, f"not measured on test data: {reason_of(cause)}")
            else:
                waiting.append(again)
            left = _Work(work.jobs[1:], given, avoided=work.avoided | _node_of(cause))
        else:
            for event in events:
                emit(event)
            left = _Work(work.jobs[len(events) :], given, avoided=work.avoided)
        if left.jobs:
            waiting.append(left)


@dataclass(frozen=True)
class _Work:
    """What a process is to measure, on what share of a GPU, and on which nodes not to try again."""

    jobs: Sequence[Evaluation]
    gpus: float
    failures: int = 0
    avoided: frozenset[str] = frozenset()

    def after(self, error: Exception, most: int) -> "_Work | None":
        """Return how to measure again what failed, the first; None if that cannot mend it."""
        again = replace(self, jobs=self.jobs[:1], failures=self.failures + 1)
        if isinstance(error, torch.OutOfMemoryError) and 0 < self.gpus < 1:
            return replace(again, gpus=1.0)
        if is_machines_fault(error) and self.failures < most:
            return replace(again, avoided=self.avoided | _node_of(error))
        return None


def _node_of(error: Exception) -> frozenset[str]:
    """Return the node on which a machine's fault was raised, if it is one and tells."""
    where = getattr(error, NODE, "") if is_machines_fault(error) else ""
    return frozenset([where] if where else [])


def evaluate_each(
    storage: str, folder: str, jobs: Sequence[Evaluation], gpus: float, deterministic: bool
) -> list[Evaluated]:
    """Measure configurations in turn, up to the first that cannot be; see ``evaluate``.

    Raises:
        Exception: What the first one raised, if that is the one.
    """
    events: list[Evaluated] = []
    last = LastPass()
    for job in jobs:
        try:
            events.append(evaluate(storage, folder, job, gpus, deterministic, last))
        except Exception as error:
            if not events:
                # Imported late: Ray reads its settings when it is imported.
                from trainables.ray_edge import node_here

                setattr(error, NODE, node_here())  # Ray tells what was raised, but not where.
                raise
            break  # It begins the next process, which raises if this one was not the reason.
    return events


def evaluate(
    storage: str,
    folder: str,
    job: Evaluation,
    gpus: float = 0.0,
    deterministic: bool = False,
    last: LastPass | None = None,
) -> Evaluated:
    """Measure one configuration and return the event for the journal.

    The reliability diagram and the configuration are written below ``folder``. Without any of
    ``gpus``, those that this process was given, it computes on the CPU; for ``deterministic`` see
    ``trial_device``, for ``last`` ``evaluate_on_test``.

    Raises:
        StorageError: If the folder cannot be written.
        InputError: If an artifact or a suite is missing or damaged.
    """
    trial, key = job.chosen.trial, job.chosen.outcome.artifact
    stage, seed = trial.request.stage, trial.request.seed
    store, data = ArtifactStore(Path(storage)), PreparedData.open(trial.request.data)
    device = trial_device(gpus, deterministic)
    default = None
    # First, so that the last pass is that of what others build on.
    if job.default and store.find(stage, job.default) is not None:
        default = evaluate_on_test(store, stage, job.default, data, device, last)[1].key
    metrics, artifact = evaluate_on_test(store, stage, key, data, device, last)
    for directory in job.suites.values():
        metrics |= evaluate_suite(store, stage, key, data, directory, device)[0]
    stored = {label: SuiteData.open(place) for label, place in job.suites.items()}
    pools = {label: find_suite(suite.name, suite.root).pool for label, suite in stored.items()}
    metrics |= pooled(metrics, pools)
    chain = chain_of(store, stage, key)
    target = Path(folder) / job.task / job.recipe / f"seed-{seed}"
    try:
        written = _write_reports(target, job, artifact)
    except OSError as error:
        raise StorageError(f"{target} cannot be written: {error}") from error
    return Evaluated(
        key=trial.key,
        study=trial.study,
        seed=seed,
        metrics={f"{TEST_PREFIX}{name}": value for name, value in metrics.items()},
        predictions=artifact.key,
        seconds=chain_seconds(chain),
        computed={
            link.stage: link.record["computed"] for link in chain if "computed" in link.record
        },
        default_predictions=default,
        artifacts={path.name: str(path) for path in written},
    )


def chain_of(store: ArtifactStore, stage: str | None, key: str | None) -> list[Artifact]:
    """Return a stage's outcome and what it builds on, as far down as artifacts are there."""
    chain: list[Artifact] = []
    while stage is not None and key is not None and (found := store.find(stage, key)):
        chain.append(found)
        request = found.record["request"]
        stage, key = request["upstream_stage"], request["upstream"]
    return chain


def chain_seconds(chain: Sequence[Artifact]) -> float | None:
    """Return what a chain of stages cost; None if a link is missing or does not know."""
    costs = [link.record["seconds"] for link in chain if link.record.get("seconds") is not None]
    whole = bool(chain) and chain[-1].record["request"]["upstream"] is None
    return round(sum(costs), 3) if whole and len(costs) == len(chain) else None


def _write_reports(target: Path, job: Evaluation, artifact: Artifact) -> tuple[Path, ...]:
    target.mkdir(parents=True, exist_ok=True)
    rows = artifact.tensors("test")
    curve = reliability_curve(logits=rows["log_probs"], labels=rows["labels"])
    diagram, configuration = target / "reliability.png", target / "configuration.yaml"
    reliability_diagram(curve, title=f"{job.recipe} on {job.task}").savefig(diagram, dpi=110)
    configuration.write_text(_configuration_text(job), encoding="utf-8")
    return diagram, configuration


def _configuration_text(job: Evaluation) -> str:
    trial = job.chosen.trial
    document = {
        "task": job.task,
        "recipe": job.recipe,
        "seed": trial.request.seed,
        "objective": job.chosen.objective,
        "fixed": {part: dict(values) for part, values in trial.configuration.items()},
    }
    return yaml.safe_dump(document, sort_keys=False)

"""Runs the search of a sweep, then the measurement on test data, both by the same loop."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from orchestrator.executors import Executor
from orchestrator.loop import Loop, Pause, Source
from orchestrator.running.control import Control
from orchestrator.search.state import SearchSource, SweepState
from orchestrator.search.study_state import Ended, StudyState
from orchestrator.storage.events import TEST_PREFIX, Evaluated
from orchestrator.storage.journal import Journal
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.machines import Machines
from orchestrator.storage.storage import SweepFolder
from orchestrator.sweep.spec import SweepSpec
from trainables.common.stages import ArtifactRef
from trainables.common.words import many
from trainables.data import PreparedData
from trainables.data.suites import find_suite, suite_directory
from trainables.jobs import Job, Report, Status, TestWork
from trainables.store.artifacts import ArtifactStore
from trainables.worker import stored_report

Available = Callable[[ArtifactRef], bool]


@dataclass(frozen=True)
class Measurement:
    """A chosen configuration on one seed, and the published ``default`` to measure with it."""

    chosen: Ended
    task: str
    recipe: str
    suites: Mapping[str, str] = field(default_factory=dict)
    default: ArtifactRef | None = None

    @property
    def training(self) -> str:
        """Return the key of the training, or given logits, that the configuration builds on."""
        request = self.chosen.trial.request
        before = request.upstream_request or {}
        return before.get("upstream") or request.upstream or self.chosen.ref.key


def pending_measurements(
    state: SweepState, past: Ledger, available: Available = lambda ref: True
) -> list[Measurement]:
    """Return the missing measurements on test data; every study must have made its choice.

    An earlier measurement is repeated if its predictions were deleted. Published defaults are
    measured only if their artifacts are ``available``.
    """
    wanted = [
        _measurement(study, chosen, state.plan.spec.data_root, available)
        for study in state.studies.values()
        for chosen in study.seeds.values()
        if study.plan.row and chosen is not None
    ]
    return [one for one in wanted if not _is_complete(one, past, available)]


def _is_complete(one: Measurement, past: Ledger, available: Available) -> bool:
    """Return True if the test metrics, suites, default and predictions are all stored."""
    trial = past.trials.get(one.chosen.trial.key)
    if trial is None or not trial.test or (one.default and not trial.default_predictions):
        return False
    keys = (trial.predictions, trial.default_predictions if one.default else trial.predictions)
    if not all(available(ArtifactRef("evaluate", key)) for key in keys):
        return False
    return all(any(name.startswith(f"{label}/") for name in trial.test) for label in one.suites)


def _measurement(study: StudyState, chosen: Ended, root: str, available: Available) -> Measurement:
    data, plan = chosen.trial.request.data, study.plan
    suites = {
        suite.label: str(suite_directory(suite, PreparedData.open(data)))
        for suite in (find_suite(name, root) for name in plan.task.suites)
    }
    default = study.default_artifact if chosen is study.chosen else None
    default = default if default and available(default) else None
    return Measurement(chosen, plan.task.id, plan.recipe.name, suites, default)


class MeasuringSource(Source):
    """Returns measurements as jobs; measurements of the same training run one after the other.

    The worker keeps the network's outputs for the test rows, so the measurements of a training
    share one pass.

    Args:
        write: Receives an event for each measurement.
        give_up: Receives the study and the reason if a measurement fails.
    """

    def __init__(
        self,
        pending: Sequence[Measurement],
        spec: SweepSpec,
        write: Callable[[Evaluated], None],
        give_up: Callable[[str, str], None],
    ) -> None:
        self._left: dict[str, list[Measurement]] = {}
        for one in pending:
            self._left.setdefault(one.training, []).append(one)
        self._free = deque(self._left)  # Trainings without a running measurement.
        self._out: dict[str, Measurement] = {}
        self._spec, self._write, self._give_up = spec, write, give_up
        self._folder = SweepFolder.of(spec).chosen
        self.sizes = [(1, min(1, spec.resources.train.gpu))]

    def next(self) -> Job | Pause:
        """Return the next measurement of a training that has none running, or a ``Pause``."""
        if not self._free:
            return Pause.WAIT if self._left else Pause.DONE
        training = self._free.popleft()
        one = self._left[training].pop(0)
        if not self._left[training]:
            del self._left[training]
        self._out[one.chosen.trial.key] = one
        return self._job(one)

    def _job(self, one: Measurement) -> Job:
        trial, resources = one.chosen.trial, self._spec.resources
        seed = f"seed-{trial.request.seed}"
        work = TestWork(
            artifact=one.chosen.ref,
            data=trial.request.data,
            default=one.default,
            suites=one.suites,
            folder=str(self._folder / one.task / one.recipe / seed),
            title=f"{one.recipe} on {one.task}",
            configuration={
                "task": one.task,
                "recipe": one.recipe,
                "seed": trial.request.seed,
                "objective": one.chosen.objective,
                "fixed": {part: dict(values) for part, values in trial.configuration.items()},
            },
        )
        return Job(
            key=trial.key,
            group=trial.study,
            number=trial.number,
            work=work,
            gpus=min(1, resources.train.gpu),
            deterministic=resources.deterministic,
        )

    def ended(self, job: Job, report: Report) -> None:
        """Write the measurement, or give the study up."""
        one = self._out.pop(job.key)
        if one.training in self._left:  # Run it next: the worker still has the network's outputs.
            self._free.appendleft(one.training)
        if report.status != Status.FINISHED or report.measured is None:
            reason = report.fault.reason if report.fault else report.status
            self._give_up(job.group, f"not measured on test data: {reason}")
            return
        measured = report.measured
        self._write(
            Evaluated(
                key=job.key,
                study=job.group,
                seed=one.chosen.trial.request.seed,
                metrics={f"{TEST_PREFIX}{name}": value for name, value in report.metrics.items()},
                predictions=report.artifact,
                seconds=measured.seconds,
                computed=measured.computed,
                default_predictions=measured.default,
                artifacts=measured.files,
            )
        )


def is_done(state: SweepState, past: Ledger, store: ArtifactStore) -> bool:
    """Take over the trials of earlier runs; return True if nothing is left to compute."""
    if not state.take_over() or not state.finished:
        return False
    return not pending_measurements(state, past, store.contains)


def drive(
    state: SweepState,
    past: Ledger,
    store: ArtifactStore,
    executor: Executor,
    journal: Journal,
    control: Control,
    machines: Machines,
    changed: Callable[[], None] = lambda: None,
) -> bool:
    """Run the missing searches and measurements; return False if a search is unfinished."""
    spec, write, say = state.plan.spec, journal.append, control.say_once
    limit = spec.resources.max_failures
    known = partial(stored_report, store)
    search = control.source(SearchSource(state))
    executor.run(Loop(search, write, limit, say, known, changed, machines))
    if not state.finished:
        return False
    pending = pending_measurements(state, past, store.contains)
    say(f"measuring {many(len(pending), 'chosen configuration')} on test data")

    def give_up(study: str, reason: str) -> None:
        say(f"{study} failed: {reason}")
        state.give_up(study, reason)

    source = MeasuringSource(pending, spec, write, give_up)
    measured = Loop(control.source(source), write, limit, say, machines=machines)
    executor.run(measured, sealed=False)
    return True

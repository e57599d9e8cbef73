"""Simulates a search: passes the results of recorded trials to the real search state."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from orchestrator.replay.recorded import RecordedStudy, RecordedSweep, RecordedTrial
from orchestrator.search.choice import FINISHED
from orchestrator.search.state import SweepState
from orchestrator.search.study_state import Predictions, TrialSpec
from orchestrator.storage.events import Event, StudyOpened, TrialFinished, TrialStarted, fields_of
from orchestrator.storage.ledger import Ledger
from orchestrator.sweep.plan import Plan, make_plan
from orchestrator.sweep.spec import SweepSpec
from trainables.common.later import Tensor, torch
from trainables.common.stages import ArtifactRef
from trainables.data import PreparedData
from trainables.stages import ValidationRows, objective_terms, validation_rows


@dataclass(frozen=True)
class Choice:
    """The choice of a search after ``budget`` trials.

    Attributes:
        budget: Number of trials.
        position: Position of the recorded trial that was chosen; None if none finished.
        objective: Guarded objective of the choice, as the search computed it.
    """

    budget: int
    position: int | None
    objective: float


@dataclass(frozen=True)
class Search:
    """A simulated search.

    Attributes:
        choices: Choices by rising budget; the last is after all trials.
        distances: Distance of each configuration from the recorded one whose results it got.
    """

    choices: tuple[Choice, ...]
    distances: tuple[float, ...]


class Table:
    """Returns metrics of recorded trials on the validation rows at ``rows`` (N,); None for all."""

    def __init__(self, study: RecordedStudy, rows: Tensor | None = None) -> None:
        self.study, self._rows = study, rows
        self._known: dict[tuple[str, str], float] = {}

    def predictions(self, ref: ArtifactRef) -> ValidationRows:
        """Return logits and labels of the rows, for ``SweepState``."""
        logits, labels = self.study.by_artifact[ref.key].logits, self.study.labels
        if self._rows is None:
            return ValidationRows(logits, labels)
        return ValidationRows(logits[self._rows], labels[self._rows])

    def metrics(self, found: RecordedTrial, metrics: tuple[str, ...]) -> dict[str, float]:
        """Return validation metrics of a recorded trial, ``val_*``."""
        known = found.trial.metrics if self._rows is None else {}
        names = [f"val_{metric}" for metric in metrics]
        return {name: known[name] if name in known else self._value(found, name) for name in names}

    def _value(self, found: RecordedTrial, name: str) -> float:
        key = found.trial.artifact, name.removeprefix("val_")
        if key not in self._known:
            rows = self.predictions(found.trial.ref)
            self._known[key] = float(objective_terms(key[1], rows.logits, rows.labels).mean())
        return self._known[key]


def simulate(table: Table, spec: SweepSpec, seed: int, budgets: tuple[int, ...] = ()) -> Search:
    """Run a search with the settings of ``spec`` on the recorded results of a study.

    Args:
        table: The study and its validation rows.
        spec: The sweep with the strategy's settings.
        seed: Seed of the sampler, like the first seed of a sweep.
        budgets: Numbers of trials after which to choose; the last choice is after all trials.
    """
    plan = _alone(table.study, spec, seed)
    data = {table.study.plan.task.data_name(seed): table.study.data}
    state = SweepState(plan, "replay", data, lambda event: None, predictions=table.predictions)
    study = state.studies[table.study.plan.id]
    positions: dict[int, int] = {}
    distances: list[float] = []
    while (trial := state.next_trial()) is not None:
        if trial.study != study.plan.id:
            assert table.study.plain is not None
            found = table.study.plain
        else:
            position, distance = table.study.nearest(trial.configuration)
            positions[trial.number] = position
            distances.append(distance)
            found = table.study.trials[position]
        wanted = ("acc", state.studies[trial.study].rule.metric, *spec.search.pareto)
        metrics = table.metrics(found, wanted)
        state.record(trial, trial.ending(FINISHED, metrics, artifact=found.trial.artifact))
    counts = sorted({*(b for b in budgets if b < study.plan.trials), study.plan.trials})
    choices = tuple(_choice(state, table.study.plan.id, budget, positions) for budget in counts)
    return Search(choices, tuple(distances))


def _choice(state: SweepState, name: str, budget: int, positions: Mapping[int, int]) -> Choice:
    chosen, _ = state.scores.choice(state.studies[name], budget)
    if chosen is None:
        return Choice(budget, None, float("inf"))
    return Choice(budget, positions[chosen.trial.number], chosen.objective)


def _alone(study: RecordedStudy, spec: SweepSpec, seed: int) -> Plan:
    """Return the plan of one study and the baseline that guards it, on one seed."""
    search = spec.search.model_copy(update={"seed": None})
    spec = spec.model_copy(update={"seeds": (seed,), "search": search})
    plans = {found.id: found for found in make_plan(spec)}
    own = replace(plans[study.plan.id], upstream=None)
    if study.plain is None:
        return Plan(spec, (replace(own, reference=None),))
    guard = [plans[own.reference]] if own.reference else []
    return Plan(spec, (*guard, own))


@dataclass(frozen=True)
class Repeated:
    """The number of a study's chosen trial, as recorded and as repeated with the same settings."""

    study: str
    recorded: int | None
    replayed: int | None

    @property
    def same(self) -> bool:
        """Return True if both choices are the same trial, or none."""
        return self.recorded == self.replayed


def repeat(sweep: RecordedSweep) -> list[Repeated]:
    """Repeat the searches of a sweep; return the recorded and the repeated choice of each study.

    A trial that never ran counts as failed.
    """
    known = partial(validation_rows, sweep.folder.storage.store())
    state = search_again(sweep.plan, sweep.ledger, sweep.data, known)
    return [
        Repeated(
            name, _number(study.chosen_trial), _number(again.chosen.trial if again.chosen else None)
        )
        for name, study in sweep.ledger.studies.items()
        if (again := state.studies.get(name)) is not None
    ]


def search_again(
    plan: Plan,
    ledger: Ledger,
    data: Mapping[str, PreparedData],
    predictions: Predictions,
    emit: Callable[[Event], None] = lambda event: None,
) -> SweepState:
    """Repeat the search of a sweep; results of trials are read from the ledger by key."""
    opened = [StudyOpened(**fields_of(study, StudyOpened)) for study in ledger.studies.values()]
    past = Ledger(opened)  # Has the number of trials suggested at once, and no results.
    state = SweepState(plan, ledger.sweep_id, data, emit, past, predictions=predictions)
    while (trial := state.next_trial()) is not None:
        state.record(trial, _recorded_ending(trial, ledger))
    return state


def _number(trial: TrialStarted | None) -> int | None:
    return None if trial is None else trial.number


def _recorded_ending(trial: TrialSpec, ledger: Ledger) -> TrialFinished:
    known = ledger.trials.get(trial.key)
    if known is None or not known.ended:
        return trial.ending("failed", {}, reason="never ran")
    return trial.ending(
        known.status, dict(known.metrics), artifact=known.artifact, reason=known.reason
    )


def resampled(rows: int, seed: int) -> Tensor:
    """Return ``rows`` positions of validation rows, drawn with replacement."""
    return torch.randint(rows, (rows,), generator=torch.Generator().manual_seed(seed))

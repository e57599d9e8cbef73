"""One study while its sweep runs: its trials, their scores, the choice, and its events."""

import hashlib
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from orchestrator.search.choice import (
    DEFAULT,
    FINISHED,
    SEARCH,
    SEED,
    ChoiceRule,
    Margin,
    Rank,
    stands_for_choice,
)
from orchestrator.search.prior import ERRORS, LEAST
from orchestrator.search.study import StudySearch
from orchestrator.storage.events import (
    StudyClosed,
    StudyOpened,
    TrialFinished,
    TrialScored,
    TrialStarted,
    fields_of,
)
from orchestrator.storage.ledger import Ledger, Study, Trial
from orchestrator.sweep.plan import StudyPlan
from orchestrator.sweep.spec import SweepSpec, TaskSpec
from trainables.common.later import Tensor
from trainables.common.stages import EVERY_STAGE, ArtifactRef
from trainables.data import PreparedData
from trainables.metrics import METRICS
from trainables.stages import StageRequest, ValidationRows, objective_terms, stage_precision
from trainables.store.artifacts import stage_key


@dataclass(slots=True, kw_only=True)
class TrialSpec(TrialStarted):
    """One configuration to compute, with the fields of its event in the journal.

    Trials of the chosen configuration on further seeds have the highest numbers. The key is the
    same when the sweep is resumed.
    """

    request: StageRequest

    def starting(self) -> TrialStarted:
        """Return the event that the trial has started."""
        return TrialStarted(**fields_of(self, TrialStarted))

    def ending(self, status: str, metrics: Mapping[str, float], **facts: Any) -> TrialFinished:
        """Return the event that the trial has ended."""
        return TrialFinished(key=self.key, status=status, metrics=metrics, **facts)


@dataclass(frozen=True)
class Ended:
    """A trial, its outcome, and its objective (NaN before it is scored)."""

    trial: TrialSpec
    outcome: TrialFinished
    objective: float = math.nan

    @property
    def ref(self) -> ArtifactRef:
        """Return the reference to the trial's stored outcome."""
        return ArtifactRef(self.trial.stage, self.outcome.artifact)


class TrialMaker:
    """Makes the trials of a sweep; equal parameters give equal trials, also in a resumed sweep."""

    def __init__(self, sweep_id: str, spec: SweepSpec, data: Mapping[str, PreparedData]) -> None:
        self._sweep_id, self._spec, self._data = sweep_id, spec, data
        self._protocols = {task.id: task.resolved_protocol.to_dict() for task in spec.tasks}

    def make(
        self,
        plan: StudyPlan,
        number: int,
        parameters: Mapping[str, Any],
        base: Ended | None,
        position: int = 0,
    ) -> TrialSpec:
        """Return a trial of a study; ``position`` is the index of its seed in ``all_seeds``.

        ``base`` is the outcome of the previous stage, None for a first stage.
        """
        parts, seed = _configured(plan, parameters), self._spec.all_seeds[position]
        training = self._spec.resources.train
        request = StageRequest(
            stage=plan.stage,
            parts={self._spec.base(part): values for part, values in parts.items()},
            data=str(self._data[plan.task.data_name(seed)].directory),
            model=plan.task.model,
            protocol=self._protocols[plan.task.id],
            seed=seed,
            upstream=base.ref.key if base else None,
            upstream_stage=base.ref.stage if base else None,
            upstream_request=base.trial.request.plain() if base else None,
            precision=stage_precision(plan.stage, training.gpu, training.precision),
            portable=self._spec.resources.portable,
        )
        role = SEED if position else SEARCH
        before = base.trial.configuration if base else {}
        identity = (self._sweep_id, plan.id, role, str(number), request.key())
        return TrialSpec(
            study=plan.id,
            number=number,
            key=hashlib.sha256("|".join(identity).encode()).hexdigest(),
            role=role,
            seed=request.seed,
            stage=plan.stage,
            parameters=dict(parameters),
            configuration={**before, **parts},
            request=request,
        )


def _configured(plan: StudyPlan, parameters: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return every part's parameters: suggested values, and defaults for the others."""
    parts = {part: dict(values) for part, values in plan.defaults.items()}
    for name, value in parameters.items():
        part, parameter = name.split(".", 1)
        parts[part][parameter] = value
    return parts


@dataclass
class StudyState:
    """The state of one study; mappings are by trial number.

    Attributes:
        unscored: Numbers of ended search trials that have no score until the study that guards
            accuracy is closed.
        unscored_seeds: Positions of ended further seeds that have no score until the guard's
            trial on the same seed has ended.
        objectives: Guarded objectives of search trials; infinite for failed ones.
        passes: Maps a trial to the numbers of all trials in its pass, if it is not computed alone.
        seeds: Maps the position of a seed to the chosen configuration's trial on that seed; None
            if it, or the trial that it builds on, failed.
        seeds_asked: Number of seeds that were started, including the first.
        margin: Margin of the best trial over the published default, if the choice used it.
    """

    plan: StudyPlan
    search: StudySearch
    rule: ChoiceRule
    trials: dict[int, TrialSpec] = field(default_factory=dict)
    outcomes: dict[int, TrialFinished] = field(default_factory=dict)
    unscored: set[int] = field(default_factory=set)
    unscored_seeds: set[int] = field(default_factory=set)
    objectives: dict[int, float] = field(default_factory=dict)
    queue: list[TrialSpec] = field(default_factory=list)
    passes: dict[int, set[int]] = field(default_factory=dict)
    seeds: dict[int, Ended | None] = field(default_factory=dict)
    seeds_asked: int = 1
    margin: Margin | None = None
    closed: bool = False

    @property
    def chosen(self) -> Ended | None:
        """Return the chosen trial on the first seed; None if there is none (yet)."""
        return self.seeds.get(0)

    @property
    def default_artifact(self) -> ArtifactRef | None:
        """Return the reference to the outcome of the published default, the first trial.

        None without a search, or if the trial has not finished.
        """
        first = self.outcomes.get(0)
        if first is None or not first.artifact or self.plan.trials <= 1:
            return None
        return self.ended(0).ref

    def ended(self, number: int) -> Ended:
        """Return a trial of the search that ended."""
        objective = self.objectives.get(number, math.nan)
        return Ended(self.trials[number], self.outcomes[number], objective)

    @property
    def running(self) -> int:
        """The number of trials that have started and not ended."""
        return len(self.trials) - len(self.outcomes) - len(self.queue)

    def done(self, seeds: int) -> bool:
        """Return True if nothing is left to do, including further seeds."""
        whole = len(self.seeds) == seeds and not self.unscored_seeds
        return self.closed and (self.chosen is None or whole)

    def next_queued(self) -> TrialSpec | None:
        """Remove and return a queued trial that no other trial is computing in its pass."""
        waiting = {trial.number for trial in self.queue}
        for position, trial in enumerate(self.queue):
            started = self.passes.get(trial.number, set()) - waiting
            ended = [self.outcomes[number] for number in started & self.outcomes.keys()]
            computed = any(outcome.status == FINISHED for outcome in ended)
            if computed or len(ended) == len(started):
                return self.queue.pop(position)
        return None

    def failures(self) -> list[TrialFinished]:
        """Return the failed trials by number, since a resumed sweep gets them in another order."""
        ended = [self.outcomes[number] for number in sorted(self.outcomes)]
        return [outcome for outcome in ended if outcome.status == "failed"]

    def opening(self, data: PreparedData, spec: SweepSpec) -> StudyOpened:
        """Return the event that describes the study."""
        plan, task = self.plan, self.plan.task
        return StudyOpened(
            study=plan.id,
            task=task.id,
            recipe=plan.recipe.name,
            trials=plan.trials,
            block=self.search.block,
            upstream=plan.upstream,
            row=plan.row,
            fingerprint=data.key,
            dataset=task.dataset_name,
            model=task.model,
            protocol=task.protocol_name,
            setting=setting_of(task, data),
            rule=self.rule.plain(),
            origin=_origin(plan, spec, data),
        )

    def closing(self, reason: str) -> StudyClosed:
        """Return the event that ends the search."""
        ended = [self.outcomes[number].status for number in self.objectives]
        return StudyClosed(
            study=self.plan.id,
            chosen=self.chosen.trial.key if self.chosen else None,
            finished=ended.count(FINISHED),
            failed=ended.count("failed"),
            reason=reason,
            margin=self.margin._asdict() if self.margin else None,
        )


class Past:
    """Outcomes and decisions of earlier runs of the same sweep."""

    def __init__(self, ledger: Ledger) -> None:
        self._studies, self._trials = ledger.studies, ledger.trials
        self._tries_again = any(trial.fault for trial in self._trials.values())
        self._suggested = defaultdict[tuple[str, int], list[Trial]](list)
        for trial in self._trials.values():
            if trial.role == SEARCH:
                self._suggested[trial.study, trial.number].append(trial)

    @property
    def is_empty(self) -> bool:
        """Whether no earlier run started a trial."""
        return not self._trials

    def suggested(self, study: StudyState, number: int) -> Sequence[Trial]:
        """Return the trials of a search with that number; several if its upstream changed."""
        return self._suggested.get((study.plan.id, number), ())

    def holds(self, event: StudyOpened | TrialScored | StudyClosed) -> bool:
        """Return True if the journal has this event; a ``StudyOpened`` may have other fields."""
        if isinstance(event, TrialScored):
            trial = self._trials.get(event.key)
            known = None if trial is None else (trial.objective, trial.accuracy_error)
            return known == (event.objective, event.error)
        study = self._studies.get(event.study)
        if study is None or isinstance(event, StudyOpened):
            return study is not None
        # The ledger also counts trials that were built on a choice that was withdrawn since.
        counted = (study.finished, study.failed) == (event.finished, event.failed)
        return counted and study.closed == event

    def block(self, study: StudyPlan) -> int | None:
        """Return a study's block size in an earlier run; None for a new study."""
        known = self._studies.get(study.id)
        return None if known is None else known.block

    def kept_default(self, study: StudyPlan) -> bool:
        """Return True if an earlier run opened a study with a rule that keeps its default."""
        known = self._studies.get(study.id)
        return known is not None and "keep_default" in known.rule

    def goes_on(self, study: StudyPlan, number: int) -> bool | None:
        """Return whether an earlier run asked for a trial with that number; None if undecided."""
        if (study.id, number) in self._suggested:
            return True
        return None if self._settled(study.id) is None else False

    def can_do_without(self, trial: TrialSpec) -> bool:
        """Return True if a closed study's final choice is another trial."""
        study = self._settled(trial.study)
        return study is not None and trial.role == SEARCH and study.chosen != trial.key

    def _settled(self, name: str) -> Study | None:
        """Return a study if its choice is final, else None.

        No choice is final if a trial of the sweep runs again because its machine failed.
        """
        study = self._studies.get(name)
        return None if self._tries_again or study is None or study.chosen is None else study

    def margin(self, name: str) -> Margin | None:
        """Return the recorded margin of a final choice, whose artifacts may be deleted, or None."""
        study = self._settled(name)
        margin = study.closed.margin if study is not None and study.closed is not None else None
        return None if margin is None else Margin(margin["difference"], margin["error"])

    def accuracy_error(self, trial: TrialSpec) -> float | None:
        """Return the recorded error of a trial's lost accuracy if a final choice rejected it."""
        return self._trials[trial.key].accuracy_error if self.can_do_without(trial) else None

    def outcome(self, key: str) -> TrialFinished | None:
        """Return the outcome of a trial; None if it has none, or only a failure of the machine."""
        trial = self._trials.get(key)
        if trial is None or not trial.ended or trial.fault:
            return None
        return TrialFinished(
            key=key,
            status=trial.status,
            metrics=dict(trial.metrics),
            artifact=trial.artifact,
            reason=trial.reason,
        )


def setting_of(task: TaskSpec, data: PreparedData) -> str:
    """Return a hash of data, model and protocol, which must be equal to compare two results."""
    return stage_key(
        "setting", data=data.key, model=task.model, protocol=task.resolved_protocol.to_dict()
    )


def _origin(plan: StudyPlan, spec: SweepSpec, data: PreparedData) -> dict[str, Any]:
    """Return what is needed to reproduce a trial, besides its network and configuration."""
    task, whole = plan.task, data.split.validation_seed is None
    splits = {str(seed): task.split_on(seed, whole).to_dict() for seed in spec.all_seeds}
    return {
        "dataset": task.dataset,
        "split": splits[str(spec.all_seeds[0])],
        **({"splits": splits} if task.varies else {}),
        "seeds": list(spec.seeds),
        "inputs": dict(task.inputs),
        "protocol": task.resolved_protocol.to_dict(),
        "variants": {p: spec.base(p) for p in plan.recipe.parts if spec.base(p) != p},
        "resources": {s: getattr(spec.resources, s).model_dump() for s in EVERY_STAGE},
        "deterministic": spec.resources.deterministic,
        **({"copies": data.copies.lines()} if data.copies and data.copies.lines() else {}),
        **({"portable": True} if spec.resources.portable else {}),
        **({"plugins": plugins} if (plugins := [p.model_dump() for p in spec.plugins]) else {}),
        **({"metrics": metrics} if (metrics := METRICS.described()) else {}),
    }


UNKNOWN = sys.float_info.max
"""A standard error that cannot be estimated; finite, because the journal stores no infinity."""

Predictions = Callable[[ArtifactRef], ValidationRows]
"""Returns the stored validation rows of an outcome."""


def no_predictions(ref: ArtifactRef) -> ValidationRows:
    """Raise ``LookupError``; used by searches whose rule never compares rows."""
    raise LookupError(f"no predictions are known of {ref.stage} {ref.key}")


class Scores:
    """Scores the trials of studies and chooses between them; repeats final choices of ``past``.

    Rules that compare configurations row by row read ``predictions``.
    """

    def __init__(
        self, studies: Mapping[str, StudyState], past: Past, predictions: Predictions
    ) -> None:
        self._studies, self._past, self._predictions = studies, past, predictions

    def score(self, study: StudyState, one: Ended, position: int = 0) -> TrialScored | None:
        """Return the guarded objective of a trial on a seed; None for a failed trial."""
        metrics, status = one.outcome.metrics, one.outcome.status
        if status == "failed":
            return None
        reference = self._reference(study, position)
        if reference is None:
            return TrialScored(key=one.trial.key, objective=study.rule.score(metrics))
        error = None
        if study.rule.pairs_accuracy and status == FINISHED:
            error = self._accuracy_error(one, reference)
        value = study.rule.score(metrics, reference.outcome.metrics, error or 0.0)
        return TrialScored(key=one.trial.key, objective=value, error=error)

    def choice(self, study: StudyState, trials: int) -> tuple[Ended | None, Margin | None]:
        """Return the choice among the first ``trials`` trials (all scored), and the margin."""
        ranked = [
            Rank(objective, number)
            for number, objective in study.objectives.items()
            if number < trials
            and stands_for_choice(study.trials[number].role, study.outcomes[number].status)
        ]
        if not ranked:
            return None, None
        best, margin = study.rule.choose(ranked, partial(self._margin, study))
        return study.ended(best.number), margin

    def goes_on(self, study: StudyState) -> bool:
        """Return False if a search may stop and its next trial is expected to gain too little.

        Too little is at most half a standard error of the difference between the best trial so far
        and the published default (or the second best, if the default is best or failed).
        """
        number = study.search.asked
        if not study.rule.stop or number < LEAST or study.plan.points <= study.plan.trials:
            return True
        known = self._past.goes_on(study.plan, number)
        if known is not None:
            return known
        usable = range(study.search.heard())
        ended = (n for n in usable if study.outcomes[n].status == FINISHED)
        ranked = sorted(Rank(study.objectives[n], n) for n in ended)
        if len(ranked) < 2:
            return True
        best, *others = ranked
        other = next((rank for rank in others if rank.number == DEFAULT), others[0])
        error = self._margin(study, best, other).error
        return error == UNKNOWN or study.search.modelled().improvement > ERRORS * error

    def _reference(self, study: StudyState, position: int = 0) -> Ended | None:
        """Return the outcome of a study's ``plan.reference`` on a seed, or None."""
        reference = self._studies.get(study.plan.reference or "")
        return reference.seeds.get(position) if reference else None

    def _accuracy_error(self, one: Ended, plain: Ended) -> float:
        known = self._past.accuracy_error(one.trial)
        if known is not None:
            return known
        lost = self._terms("acc", plain) - self._terms("acc", one)
        return standard_error(lost, self._predictions(one.ref).images)

    def _terms(self, metric: str, one: Ended) -> Tensor:
        rows = self._predictions(one.ref)
        return objective_terms(metric, rows.logits, rows.labels)

    def _margin(self, study: StudyState, best: Rank, default: Rank) -> Margin:
        known = self._past.margin(study.plan.id)
        if known is not None:
            return known
        first, other = study.ended(best.number), study.ended(default.number)
        change = self._guarded_terms(study, other) - self._guarded_terms(study, first)
        error = standard_error(change, self._predictions(first.ref).images)
        return Margin(default.objective - best.objective, error)

    def _guarded_terms(self, study: StudyState, one: Ended) -> Tensor:
        """Return each row's term of the guarded objective of a trial, up to a constant."""
        terms, reference = self._terms(study.rule.metric, one), self._reference(study)
        if reference is None or one.objective == one.outcome.metrics[study.rule.objective]:
            return terms
        return terms + self._terms("acc", reference) - self._terms("acc", one)


def standard_error(difference: Tensor, images: Tensor | None = None) -> float:
    """Return the standard error of the mean of differences (N,), one per row.

    If rows are pixels, ``images`` (N,) are their image numbers. Only images are independent, so the
    error is computed from the sums over images, for a fixed number of pixels. The result is
    ``UNKNOWN``, which no difference exceeds, for a single row or image.
    """
    sums = difference
    if images is not None:
        units, place = images.unique(return_inverse=True)
        away = difference - difference.mean()
        sums = away.new_zeros(len(units)).index_add_(0, place, away)
    if len(sums) < 2:
        return UNKNOWN
    return float(sums.std() * len(sums) ** 0.5 / len(difference))

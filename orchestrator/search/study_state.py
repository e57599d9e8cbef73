"""The state of one study while its sweep runs, and its events for the journal."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.search.choice import FINISHED, SEARCH, ChoiceRule, Margin
from orchestrator.search.study import StudySearch
from orchestrator.search.trials import Ended, TrialSpec
from orchestrator.storage.events import StudyClosed, StudyOpened, TrialFinished, TrialScored
from orchestrator.storage.ledger import Ledger, Study, Trial
from orchestrator.sweep.plan import StudyPlan
from orchestrator.sweep.spec import SweepSpec, TaskSpec
from trainables.common.stages import EVERY_STAGE, ArtifactRef
from trainables.data import PreparedData
from trainables.metrics import METRICS
from trainables.store.artifacts import stage_key


@dataclass
class StudyState:
    """The state of one study, by the numbers of its trials.

    Attributes:
        trials: All that were asked for.
        outcomes: Those that ended.
        unscored: Numbers of search trials that ended but wait for what they are compared with.
        unscored_seeds: Positions of seeds that do.
        objectives: Guarded objectives of search trials; infinite for failed ones.
        queue: Trials that were asked for but not given out.
        leaders: Trial to the one whose pass computes it, perhaps itself.
        seeds: Position of a seed to its chosen trial, None where that failed.
        seeds_asked: Seeds that were given out, the first included.
        margin: Of the best trial over the published default, if that decided.
        closed: Whether its search is over.
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
    leaders: dict[int, int] = field(default_factory=dict)
    seeds: dict[int, Ended | None] = field(default_factory=dict)
    seeds_asked: int = 1
    margin: Margin | None = None
    closed: bool = False

    @property
    def chosen(self) -> Ended | None:
        """Return the chosen configuration on the first seed; None before, or if all failed."""
        return self.seeds.get(0)

    @property
    def default_artifact(self) -> ArtifactRef | None:
        """Return the outcome of the published default, the first trial; None without a search."""
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
        """Return how many trials were given out and have not ended."""
        return len(self.trials) - len(self.outcomes) - len(self.queue)

    def done(self, seeds: int) -> bool:
        """Return True if nothing is left to do, further seeds included."""
        whole = len(self.seeds) == seeds and not self.unscored_seeds
        return self.closed and (self.chosen is None or whole)

    def next_queued(self) -> TrialSpec | None:
        """Take a trial off the queue that waits for no other one's pass."""
        for position, trial in enumerate(self.queue):
            leader = self.leaders.get(trial.number, trial.number)
            if leader == trial.number or leader in self.outcomes:
                return self.queue.pop(position)
        return None

    def failures(self) -> list[TrialFinished]:
        """Return the failed trials by number: a resumed sweep hears of them in another order."""
        ended = [self.outcomes[number] for number in sorted(self.outcomes)]
        return [outcome for outcome in ended if outcome.status == "failed"]

    def opening(self, data: PreparedData, spec: SweepSpec) -> StudyOpened:
        """Return the event that lays the study out."""
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
    """The outcomes and decisions of the runs before this one."""

    def __init__(self, ledger: Ledger) -> None:
        self._studies, self._trials = ledger.studies, ledger.trials
        self._tries_again = any(trial.fault for trial in self._trials.values())
        self._suggested = defaultdict[tuple[str, int], list[Trial]](list)
        for trial in self._trials.values():
            if trial.role == SEARCH:
                self._suggested[trial.study, trial.number].append(trial)

    @property
    def is_empty(self) -> bool:
        """Return True if nothing was computed."""
        return not self._trials

    def suggested(self, study: StudyState, number: int) -> Sequence[Trial]:
        """Return the trials of a search with that number: one for each choice they built on."""
        return self._suggested.get((study.plan.id, number), ())

    def holds(self, event: StudyOpened | TrialScored | StudyClosed) -> bool:
        """Return True if the same was written last; a study is opened but once."""
        if isinstance(event, TrialScored):
            trial = self._trials.get(event.key)
            told = None if trial is None else (trial.objective, trial.accuracy_error)
            return told == (event.objective, event.error)
        study = self._studies.get(event.study)
        if study is None or isinstance(event, StudyOpened):
            return study is not None
        # Trials of a choice that was given up since may have been counted beside.
        counted = (study.finished, study.failed) == (event.finished, event.failed)
        return counted and study.closed == event

    def block(self, study: StudyPlan) -> int | None:
        """Return how many trials a study begun earlier suggests at once; None for a new one."""
        known = self._studies.get(study.id)
        return None if known is None else known.block

    def can_do_without(self, trial: TrialSpec) -> bool:
        """Return True if a closed study has chosen another trial than this one, for good."""
        study = self._settled(trial.study)
        return study is not None and trial.role == SEARCH and study.chosen != trial.key

    def _settled(self, name: str) -> Study | None:
        """Return a study that has chosen for good."""
        study = self._studies.get(name)
        return None if self._tries_again or study is None or study.chosen is None else study

    def margin(self, name: str) -> Margin | None:
        """Return the margin that settled a study for good: the artifacts of it may be gone."""
        study = self._settled(name)
        told = study.closed.margin if study is not None and study.closed is not None else None
        return None if told is None else Margin(told["difference"], told["error"])

    def accuracy_error(self, trial: TrialSpec) -> float | None:
        """Return the standard error with which a trial that can be done without was guarded."""
        return self._trials[trial.key].accuracy_error if self.can_do_without(trial) else None

    def outcome(self, key: str) -> TrialFinished | None:
        """Return how a trial ended; None also if the machine failed it, so that it runs again."""
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
    """Return a hash of all that two results must share to be compared: data, model, protocol."""
    return stage_key(
        "setting", data=data.key, model=task.model, protocol=task.resolved_protocol.to_dict()
    )


def _origin(plan: StudyPlan, spec: SweepSpec, data: PreparedData) -> dict[str, Any]:
    """Return what must be known, beside a trial's own configuration, to compute it again."""
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

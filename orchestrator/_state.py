"""The state of a sweep: which trial comes next, what ended, what was chosen. It knows no Ray."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from orchestrator._study import Outcome, StudySearch
from orchestrator.plan import BASELINE, Plan, StudyPlan
from orchestrator.spec import SearchModel, SweepSpec, TaskSpec
from trainables.artifacts import stage_key
from trainables.data import PreparedData
from trainables.stages import STAGES, StageRequest, stage_precision

__all__ = ["Chosen", "StudyState", "SweepState", "TrialSpec"]

Event = dict[str, Any]

# Trials of one pass: enough to fill a device, few enough that a block spreads over several.
PASS = 32

SAID_ONCE = ("study_opened", "trial_scored", "study_closed")


@dataclass(frozen=True)
class TrialSpec:
    """One configuration to compute.

    Attributes:
        study: The study's name.
        number: Counts a study's trials from 0; the further seeds of the chosen one come last.
        key: The trial's identity, the same when the sweep is resumed.
        role: ``search`` or ``seed``.
        parameters: What this study searched, as ``part.name``.
        configuration: The whole chain, part to its parameters.
        request: The stage to compute.
        together: Stages of the trials that come next, which may be computed in the same pass.
    """

    study: str
    number: int
    key: str
    role: str
    parameters: Mapping[str, Any]
    configuration: Mapping[str, Mapping[str, Any]]
    request: StageRequest
    together: tuple[StageRequest, ...] = ()


@dataclass(frozen=True)
class Chosen:
    """The configuration that a study settled on, and what it left behind for one seed."""

    trial: TrialSpec
    outcome: Outcome
    objective: float


@dataclass
class StudyState:
    """What is known of one study."""

    plan: StudyPlan
    search: StudySearch
    trials: dict[int, TrialSpec] = field(default_factory=dict)
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    unscored: set[int] = field(default_factory=set)
    objectives: dict[int, float] = field(default_factory=dict)
    queue: list[TrialSpec] = field(default_factory=list)
    leaders: dict[int, int] = field(default_factory=dict)
    seeds: dict[int, Chosen | None] = field(default_factory=dict)
    seeds_asked: int = 1
    chosen: Chosen | None = None
    closed: bool = False
    reason: str = ""

    @property
    def running(self) -> int:
        """Return how many trials were given out and have not ended."""
        return len(self.trials) - len(self.outcomes) - len(self.queue)

    def done(self, seeds: int) -> bool:
        """Tell whether nothing is left to do, further seeds included."""
        return self.closed and (self.chosen is None or len(self.seeds) == seeds)

    def next_queued(self) -> TrialSpec | None:
        """Take a trial off the queue that waits for no other one's pass."""
        for position, trial in enumerate(self.queue):
            leader = self.leaders[trial.number]
            if leader == trial.number or leader in self.outcomes:
                return self.queue.pop(position)
        return None

    def failures(self) -> list[Outcome]:
        """Return the failed trials."""
        return [outcome for outcome in self.outcomes.values() if outcome.status == "failed"]


class SweepState:
    """Gives out trials in turn and keeps what came of them.

    Args:
        plan: The studies.
        sweep_id: Identifies the sweep for good.
        data: Task name to its prepared data.
        emit: Receives every event for the journal.
        history: The events of an interrupted run of the same sweep: trials that ended there are
            taken over, not computed again, unless the machine failed them.
        available: Tells whether the artifact of a stage and key is in the store.

    Attributes:
        studies: The studies by name, each after those it builds on.
        taken_over: Trials that were taken over from ``history``.
    """

    def __init__(
        self,
        plan: Plan,
        sweep_id: str,
        data: Mapping[str, PreparedData],
        emit: Callable[[Event], None],
        history: Iterable[Event] = (),
        available: Callable[[str, str], bool] = lambda stage, key: True,
    ) -> None:
        self.plan = plan
        self.sweep_id = sweep_id
        self._data = data
        self._emit = emit
        self._available = available
        self._held: TrialSpec | None = None
        self.taken_over = 0
        self._past = _Past(history)
        self.studies = {
            study.id: StudyState(
                study,
                StudySearch(study, plan.spec.search, plan.spec.seeds[0], self._past.block(study)),
            )
            for study in plan
        }
        for study in self.studies.values():
            self._emit_once(_opened(study, data[study.plan.task.id], plan.spec))

    @property
    def finished(self) -> bool:
        """Tell whether every study is done."""
        return all(study.done(len(self.plan.spec.seeds)) for study in self.studies.values())

    def next_trial(self) -> TrialSpec | None:
        """Return a trial that can run now, or None if all must wait for others."""
        self.take_over()
        trial, self._held = self._held, None
        if trial is not None:
            self._emit(_started(trial, self.studies[trial.study].plan))
        return trial

    def take_over(self) -> bool:
        """Take over what an interrupted run finished; tell whether nothing is left to run now."""
        before = -1
        while self._held is None and before != self._decided():
            before = self._decided()
            for study in self._in_turn():
                trial = self._next_of(study)
                if trial is None:
                    continue
                outcome = self._kept_outcome(trial)
                if outcome is None:
                    self._held = trial
                    break
                self.taken_over += 1
                self._take_in(trial, outcome)
        return self._held is None

    def _decided(self) -> int:
        """Return a count that grows with every trial taken over and every study closed."""
        studies = self.studies.values()
        return sum(len(study.outcomes) + len(study.seeds) + study.closed for study in studies)

    def _kept_outcome(self, trial: TrialSpec) -> Outcome | None:
        outcome = self._past.outcome(trial.key)
        if outcome is None or not outcome.artifact or self._past.dispensable(trial):
            return outcome
        return outcome if self._available(trial.request.stage, outcome.artifact) else None

    def _in_turn(self) -> list[StudyState]:
        """Return the studies that have trials left, those first whose outcome is short or awaited.

        Short stages come first because they keep the machine busy at no cost; the baseline comes
        before other trainings because every guarded study waits for it.
        """
        waiting = [study for study in self.studies.values() if not self._exhausted(study)]
        return sorted(waiting, key=lambda study: (*_urgency(study.plan), len(study.trials)))

    def _exhausted(self, study: StudyState) -> bool:
        if not study.closed:
            return study.search.asked >= study.plan.trials and not study.queue
        return study.seeds_asked >= len(self.plan.spec.seeds) or study.chosen is None

    def _next_of(self, study: StudyState) -> TrialSpec | None:
        upstream = self.studies.get(study.plan.upstream or "")
        if upstream is not None and not self._ready(upstream, study):
            return None
        if study.closed:
            return self._next_seed(study, upstream)
        if study.queue:
            return study.next_queued()
        return self._next_of_search(study, upstream)

    def _next_of_search(self, study: StudyState, upstream: StudyState | None) -> TrialSpec | None:
        """Ask for the next trial, or for a block in which the first of each pass carries others."""
        block: list[TrialSpec] = []
        while study.search.may_ask() and len(block) < study.search.block:
            block.append(self._suggested(study, upstream))
        for start in range(0, len(block), PASS):
            first, *others = block[start : start + PASS]
            together = tuple(trial.request for trial in others)
            study.queue += [replace(first, together=together), *others]
            study.leaders |= {trial.number: first.number for trial in (first, *others)}
        return study.next_queued()

    def _suggested(self, study: StudyState, upstream: StudyState | None) -> TrialSpec:
        number, parameters = study.search.ask()
        seed = self.plan.spec.seeds[0]
        parts = _fill(study.plan, parameters)
        return self._trial(study, number, "search", seed, parts, parameters, upstream)

    def _ready(self, upstream: StudyState, study: StudyState) -> bool:
        """Tell whether what a study builds on is known; close the study if it never will be."""
        if not upstream.closed:
            return False
        if upstream.chosen is None:
            self._close(study, f"{upstream.plan.id} has no finished trial to build on")
            return False
        return not study.closed or study.seeds_asked in upstream.seeds

    def _next_seed(self, study: StudyState, upstream: StudyState | None) -> TrialSpec | None:
        assert study.chosen is not None
        position = study.seeds_asked
        study.seeds_asked += 1
        if upstream is not None and upstream.seeds[position] is None:
            study.seeds[position] = None
            return None
        chosen = study.chosen.trial
        parts = {part: chosen.configuration[part] for part in study.plan.recipe.own_parts}
        return self._trial(
            study,
            study.plan.trials + position - 1,
            "seed",
            self.plan.spec.seeds[position],
            parts,
            dict(chosen.parameters),
            upstream,
            position,
        )

    def _trial(
        self,
        study: StudyState,
        number: int,
        role: str,
        seed: int,
        parts: Mapping[str, Mapping[str, Any]],
        parameters: Mapping[str, Any],
        upstream: StudyState | None,
        position: int = 0,
    ) -> TrialSpec:
        base = upstream.seeds[position] if upstream is not None else None
        task = study.plan.task
        request = StageRequest(
            stage=study.plan.stage,
            parts={self.plan.spec.base(part): values for part, values in parts.items()},
            data=str(self._data[task.id].directory),
            model=task.model,
            protocol=task.resolved_protocol.to_dict(),
            seed=seed,
            upstream=base.outcome.artifact if base else None,
            upstream_stage=base.trial.request.stage if base else None,
            upstream_request=base.trial.request.plain() if base else None,
            precision=stage_precision(study.plan.stage, self.plan.spec.resources.train.gpu),
        )
        before = base.trial.configuration if base else {}
        key = _trial_key(self.sweep_id, study.plan.id, role, number, request.key())
        trial = TrialSpec(
            study.plan.id, number, key, role, parameters, {**before, **parts}, request
        )
        study.trials[number] = trial
        return trial

    def record(self, trial: TrialSpec, outcome: Outcome, **facts: Any) -> None:
        """Take in how a trial ended and see which decisions that allows."""
        self._emit({"event": "trial_finished", "key": trial.key, **facts, **asdict(outcome)})
        self._take_in(trial, outcome)

    def _take_in(self, trial: TrialSpec, outcome: Outcome) -> None:
        study = self.studies[trial.study]
        study.outcomes[trial.number] = outcome
        if trial.role == "search":
            study.unscored.add(trial.number)
        if trial.role == "seed":
            position = self.plan.spec.seeds.index(trial.request.seed)
            value = self._objective(study, outcome) if outcome.status == "finished" else None
            study.seeds[position] = None if value is None else Chosen(trial, outcome, value)
            if value is not None:
                self._emit_once(_scored(trial, value))
        self._settle()

    def _settle(self) -> None:
        """Score what can be scored and close what is complete, until nothing changes."""
        changed = True
        while changed:
            changed = False
            for study in self.studies.values():
                if not study.closed and self._reference_known(study):
                    changed = self._score(study) or changed

    def _reference_known(self, study: StudyState) -> bool:
        return study.plan.reference is None or self.studies[study.plan.reference].closed

    def _score(self, study: StudyState) -> bool:
        """Hand scores to the study's search; return whether the study closed."""
        for number in sorted(study.unscored):
            outcome = study.outcomes[number]
            value = self._objective(study, outcome)
            study.objectives[number] = math.inf if value is None else value
            study.search.score(number, value, outcome)
            if value is not None:
                self._emit_once(_scored(study.trials[number], value))
        study.unscored.clear()
        if len(study.objectives) < study.plan.trials:
            return False
        self._choose(study)
        return True

    def _objective(self, study: StudyState, outcome: Outcome) -> float | None:
        """Return the validation metric plus what the accuracy guard charges; None if failed."""
        rules = self.plan.spec.search
        if outcome.status == "failed":
            return None
        value = outcome.metrics[f"val_{rules.objective}"]
        reference = self.studies[study.plan.reference].chosen if study.plan.reference else None
        if reference is None or rules.accuracy_tolerance is None:
            return value
        floor = reference.outcome.metrics["val_acc"] - rules.accuracy_tolerance
        return value + max(0.0, floor - outcome.metrics["val_acc"])

    def _choose(self, study: StudyState) -> None:
        """Choose the finished trial of the lowest objective; the first one asked wins a tie."""
        finished = [
            (objective, number)
            for number, objective in study.objectives.items()
            if study.outcomes[number].status == "finished"
        ]
        if finished:
            objective, number = min(finished)
            study.chosen = Chosen(study.trials[number], study.outcomes[number], objective)
            study.seeds[0] = study.chosen
        self._close(study, _why(study.failures(), bool(finished)))

    def _close(self, study: StudyState, reason: str) -> None:
        if study.closed:
            return
        study.closed, study.reason = True, reason
        self._emit_once(
            {
                "event": "study_closed",
                "study": study.plan.id,
                "chosen": study.chosen.trial.key if study.chosen else None,
                "finished": sum(o.status == "finished" for o in study.outcomes.values()),
                "failed": len(study.failures()),
                "reason": reason,
            }
        )

    def _emit_once(self, event: Event) -> None:
        if not self._past.has(event):
            self._emit(event)


class _Past:
    """What the journal of an interrupted run already tells."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._said: dict[tuple[str, str], Event] = {}
        self._outcomes: dict[str, Outcome] = {}
        self._chosen: dict[str, str | None] = {}
        self._blocks: dict[str, int | None] = {}
        for event in events:
            if event["event"] in SAID_ONCE:
                self._said[_identity(event)] = {k: v for k, v in event.items() if k != "time"}
            if event["event"] == "study_opened":
                self._blocks[event["study"]] = event.get("block")
            if event["event"] == "study_closed":
                self._chosen[event["study"]] = event["chosen"]
            if event["event"] == "trial_finished":
                self._outcomes[event["key"]] = Outcome(
                    event["status"],
                    event["metrics"],
                    event["artifact"],
                    event["reason"],
                    event.get("fault", ""),
                )
        self._tries_again = any(outcome.fault for outcome in self._outcomes.values())

    def has(self, event: Event) -> bool:
        """Tell whether the same was said last; a study is opened but once, whatever it says."""
        said = self._said.get(_identity(event))
        return said is not None and (event["event"] == "study_opened" or said == event)

    def block(self, study: StudyPlan) -> int | None:
        """Return how many trials a study begun earlier suggests at once; None for a new one."""
        if study.id not in self._blocks:
            return None
        # Journals say so since calibrations are computed together: until then, one by one.
        return self._blocks[study.id] or (1 if study.stage == "calibrate" else None)

    def dispensable(self, trial: TrialSpec) -> bool:
        """Tell whether a closed study has chosen another trial than this one, for good."""
        if self._tries_again:
            return False
        chosen = self._chosen.get(trial.study, trial.key)
        return trial.role == "search" and chosen != trial.key

    def outcome(self, key: str) -> Outcome | None:
        """Return how a trial ended; None also if the machine failed it, so that it runs again."""
        outcome = self._outcomes.get(key)
        return None if outcome is None or outcome.fault else outcome


def _why(failures: Sequence[Outcome], any_finished: bool) -> str:
    """Return the reason of the first failure, and whether all of them can be tried again."""
    if not failures:
        return ""
    if any_finished or not all(outcome.fault for outcome in failures):
        return failures[0].reason
    return f"by a fault of the machine, a resumed sweep tries again: {failures[0].reason}"


def _urgency(plan: StudyPlan) -> tuple[int, bool]:
    return -STAGES.index(plan.stage), plan.recipe.name != BASELINE


def _identity(event: Event) -> tuple[str, str]:
    return event["event"], str(event.get("key") or event.get("study") or "")


def _fill(plan: StudyPlan, parameters: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return every part's parameters: the searched ones as suggested, the others at default."""
    parts = {part: dict(values) for part, values in plan.defaults.items()}
    for name, value in parameters.items():
        part, parameter = name.split(".", 1)
        parts[part][parameter] = value
    return parts


def _trial_key(sweep_id: str, study: str, role: str, number: int, request: str) -> str:
    content = "|".join((sweep_id, study, role, str(number), request))
    return hashlib.sha256(content.encode()).hexdigest()


def _rule(search: SearchModel, task: TaskSpec) -> dict[str, Any]:
    """Return how a study's configuration is chosen, as plain values for journal and tracking."""
    return {
        "objective": f"val_{search.objective}",
        "accuracy_tolerance": search.accuracy_tolerance,
        "epoch": task.resolved_protocol.keep,
        "tie": "earlier trial",
    }


def _origin(plan: StudyPlan, spec: SweepSpec) -> dict[str, Any]:
    """Return what must be known, beside a trial's own configuration, to compute it again."""
    task = plan.task
    parts = (*plan.recipe.method, plan.recipe.refinement, plan.recipe.calibrator)
    return {
        "dataset": task.dataset,
        "split": task.split_spec.to_dict(),
        "protocol": task.resolved_protocol.to_dict(),
        "variants": {p: spec.base(p) for p in parts if p and spec.base(p) != p},
        "resources": {s: getattr(spec.resources, s).model_dump() for s in STAGES},
    }


def setting_of(task: TaskSpec, data: PreparedData) -> str:
    """Return a hash of all that two results must share to be compared: data, model, protocol."""
    return stage_key(
        "setting", data=data.key, model=task.model, protocol=task.resolved_protocol.to_dict()
    )


def _opened(study: StudyState, data: PreparedData, spec: SweepSpec) -> Event:
    plan = study.plan
    return {
        "event": "study_opened",
        "study": plan.id,
        "task": plan.task.id,
        "recipe": plan.recipe.name,
        "trials": plan.trials,
        "block": study.search.block,
        "upstream": plan.upstream,
        "row": plan.row,
        "fingerprint": data.key,
        "dataset": plan.task.dataset_name,
        "model": plan.task.model,
        "protocol": plan.task.protocol_name,
        "setting": setting_of(plan.task, data),
        "rule": _rule(spec.search, plan.task),
        "origin": _origin(plan, spec),
    }


def _started(trial: TrialSpec, plan: StudyPlan) -> Event:
    return {
        "event": "trial_started",
        "study": trial.study,
        "number": trial.number,
        "key": trial.key,
        "role": trial.role,
        "seed": trial.request.seed,
        "stage": plan.stage,
        "parameters": dict(trial.parameters),
        "configuration": {part: dict(values) for part, values in trial.configuration.items()},
    }


def _scored(trial: TrialSpec, objective: float) -> Event:
    return {"event": "trial_scored", "key": trial.key, "objective": objective}

"""A sweep's search as a source of jobs: decides which trial runs next and when a study ends."""

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from orchestrator.loop import Pause, Source
from orchestrator.search.choice import FINISHED, SEARCH, ChoiceRule
from orchestrator.search.study import StudySearch
from orchestrator.search.study_state import (
    Ended,
    Past,
    Predictions,
    Scores,
    StudyState,
    TrialMaker,
    TrialSpec,
    no_predictions,
)
from orchestrator.storage.events import Event, StudyClosed, StudyOpened, TrialFinished, TrialScored
from orchestrator.storage.ledger import Ledger
from orchestrator.sweep.names import BASELINES
from orchestrator.sweep.plan import Plan, StudyPlan
from orchestrator.sweep.spec import TrainResources
from trainables.common.faults import is_final
from trainables.common.stages import EVERY_STAGE, STAGES, ArtifactRef
from trainables.data import PreparedData
from trainables.jobs import FaultKind, Job, Report, StageWork, Status

# Trials computed together: enough to fill a device, few enough to use several devices.
PASS = 32


class SweepState:
    """Suggests trials, records their results and closes studies; ``emit`` receives every event.

    The results of ``past``, an earlier run of the same sweep, are reused, except failures that the
    machine caused and results whose artifacts are needed but no longer ``available``. Rules that
    compare configurations row by row read ``predictions``. ``beaten`` receives the outcomes of a
    closed study that no study needs any more; the choice and the published default are still
    needed. ``studies`` maps names to studies; each comes after the studies that it builds on.
    """

    def __init__(
        self,
        plan: Plan,
        sweep_id: str,
        data: Mapping[str, PreparedData],
        emit: Callable[[Event], None],
        past: Ledger | None = None,
        available: Callable[[ArtifactRef], bool] = lambda ref: True,
        predictions: Predictions = no_predictions,
        beaten: Callable[[Sequence[ArtifactRef]], None] | None = None,
    ) -> None:
        self.plan = plan
        self.sweep_id = sweep_id
        self._trials = TrialMaker(sweep_id, plan.spec, data)
        self._emit = emit
        self._available = available
        self._beaten, self._claims = beaten, Counter[ArtifactRef]()
        self.taken_over = 0
        self._past = Past(past or Ledger())
        rules, seed = plan.spec.search, plan.spec.all_seeds[0]
        self._seeds = len(plan.spec.all_seeds)
        self.studies = {
            study.id: StudyState(
                study,
                StudySearch(study, rules, seed, self._past.block(study)),
                # Sweeps that an older version started also keep defaults that no paper gives.
                ChoiceRule.of(rules, study.task, study.published or self._past.kept_default(study)),
            )
            for study in plan
        }
        self.scores = Scores(self.studies, self._past, predictions)
        self._order = {name: number for number, name in enumerate(self.studies)}
        # Maps a study to the studies that wait for it: they build on it, or it guards them.
        self._followers = defaultdict[str, list[StudyState]](list)
        self._guarded = defaultdict[str, list[StudyState]](list)
        for study in self.studies.values():
            self._followers[study.plan.upstream or ""].append(study)
            self._guarded[study.plan.reference or ""].append(study)
        self._in_turn: list[tuple[tuple[int, bool], int, int, str]] = []
        self._awake: set[str] = set()
        for study in self.studies.values():
            self._wake(study)
        for study in self.studies.values():
            first = study.plan.task.data_name(seed)
            self._emit_once(study.opening(data[first], plan.spec))

    @property
    def finished(self) -> bool:
        """Return True if every study is done."""
        return all(study.done(self._seeds) for study in self.studies.values())

    @property
    def succeeded(self) -> bool:
        """Return True if every row of the table has a chosen configuration."""
        rows = (study for study in self.studies.values() if study.plan.row)
        return all(study.chosen is not None for study in rows)

    def next_trial(self) -> TrialSpec | None:
        """Return a trial that can run now, and record its start; None if there is none now."""
        for _, trial in self._runnable():
            self._emit(trial.starting())
            return trial
        return None

    def take_over(self) -> bool:
        """Reuse an earlier run's results, if any; return True if they leave no trial to run now."""
        if self._past.is_empty:
            return False
        unknown = defaultdict[str, list[TrialSpec]](list)
        for study, trial in self._runnable():
            unknown[study.plan.id].append(trial)
        for name, trials in unknown.items():
            self.studies[name].queue[:0] = trials
            self._wake(self.studies[name])
        return not unknown

    def _runnable(self) -> Iterator[tuple[StudyState, TrialSpec]]:
        """Yield the trials that can run now; trials with a known outcome are only recorded."""
        while self._in_turn:
            study = self.studies[heapq.heappop(self._in_turn)[-1]]
            self._awake.remove(study.plan.id)
            trial = None if self._exhausted(study) else self._next_of(study)
            if trial is None:  # Its next result, or the study it waits for, will wake it.
                continue
            outcome = self._kept_outcome(trial)
            self._wake(study)
            if outcome is None:
                yield study, trial
            else:
                self.taken_over += 1
                self._take_in(trial, outcome)

    def _wake(self, study: StudyState) -> None:
        """Put a study into the queue of studies that may have a trial to run.

        Later stages come first, because they are shorter and fill gaps on the machine. Within a
        stage, the baselines come first, because every guarded study waits for them.
        """
        plan = study.plan
        if plan.id not in self._awake:
            self._awake.add(plan.id)
            turn = (_urgency(plan), len(study.trials), self._order[plan.id], plan.id)
            heapq.heappush(self._in_turn, turn)

    def _news(self, study: StudyState) -> None:
        """Wake a study and the studies that wait for it."""
        for each in (study, *self._followers[study.plan.id]):
            self._wake(each)

    def _kept_outcome(self, trial: TrialSpec) -> TrialFinished | None:
        outcome = self._past.outcome(trial.key)
        if outcome is None or not outcome.artifact or self._past.can_do_without(trial):
            return outcome
        return outcome if self._available(Ended(trial, outcome).ref) else None

    def _exhausted(self, study: StudyState) -> bool:
        if study.closed:
            all_asked = study.seeds_asked >= self._seeds or study.chosen is None
        else:
            all_asked = study.search.asked >= study.search.trials
        return all_asked and not study.queue

    def _next_of(self, study: StudyState) -> TrialSpec | None:
        if study.queue:
            return study.next_queued()
        upstream = self.studies.get(study.plan.upstream or "")
        if upstream is not None and not self._ready(upstream, study):
            return None
        if study.closed:
            return self._next_seed(study, upstream)
        return self._next_of_search(study, upstream)

    def _next_of_search(self, study: StudyState, upstream: StudyState | None) -> TrialSpec | None:
        """Ask for the next trial or block, and return the first that can run.

        Every ``PASS`` refinements of a block are computed in one pass.
        """
        block: list[TrialSpec] = []
        while study.search.may_ask() and len(block) < study.search.block:
            if not self.scores.goes_on(study):
                study.search.stop()
                self._settle(study)
                break
            block.append(self._ask(study, upstream))
        size = PASS if study.plan.stage == "refine" else 1
        for start in range(0, len(block), size):
            own = block[start : start + size]
            distinct = {trial.request.key(): trial.request.parts for trial in own}
            if len(distinct) > 1:
                study.passes |= dict.fromkeys(numbers := {trial.number for trial in own}, numbers)
                for trial in own:
                    trial.request = replace(trial.request, together=[*distinct.values()])
            study.queue += [self._keep(study, trial) for trial in own]
        return study.next_queued()

    def _ask(self, study: StudyState, upstream: StudyState | None) -> TrialSpec:
        """Return the next trial: an earlier run's if it has the same base, else a new one."""
        number, base = study.search.asked, upstream.chosen if upstream is not None else None
        make = partial(self._trials.make, study.plan, number, base=base)
        earlier = self._past.suggested(study, number)
        again = ((make(trial.parameters), trial.key) for trial in earlier)
        trial = next((trial for trial, key in again if trial.key == key), None)
        _, parameters = study.search.ask(None if trial is None else trial.parameters)
        if trial is None or trial.parameters != parameters:
            trial = make(parameters)
        return trial

    def _ready(self, upstream: StudyState, study: StudyState) -> bool:
        """Return True if the base of a study's next trial is known; close a study without one."""
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
            self._news(study)
            return None
        number = study.plan.trials + position - 1
        base = upstream.seeds[position] if upstream is not None else None
        parameters = study.chosen.trial.parameters
        return self._keep(study, self._trials.make(study.plan, number, parameters, base, position))

    def _keep(self, study: StudyState, trial: TrialSpec) -> TrialSpec:
        study.trials[trial.number] = trial
        if self._beaten is not None:
            self._claims[trial.request.ref] += 1
        return trial

    def record(self, trial: TrialSpec, outcome: TrialFinished) -> None:
        """Record the outcome of a trial, and make the decisions that it allows."""
        self._emit(outcome)
        self._take_in(trial, outcome)

    def _take_in(self, trial: TrialSpec, outcome: TrialFinished) -> None:
        study = self.studies[trial.study]
        study.outcomes[trial.number] = outcome
        if trial.role == SEARCH:
            study.unscored.add(trial.number)
        else:
            position = self.plan.spec.all_seeds.index(trial.request.seed)
            finished = outcome.status == FINISHED
            study.seeds[position] = Ended(trial, outcome) if finished else None
            study.unscored_seeds |= {position} if finished else set()
        self._news(study)
        self._settle(study)

    def _settle(self, study: StudyState) -> None:
        """Score a study's trials if possible, then the trials of the studies that it guards."""
        reference = self.studies.get(study.plan.reference or "")
        if not study.closed and (reference is None or reference.closed):
            self._score(study)
        self._score_seeds(study)
        for each in self._guarded[study.plan.id] if study.closed else ():
            self._settle(each)

    def _score(self, study: StudyState) -> None:
        """Score ended trials, pass the scores to the search, and close the study if complete."""
        for number in sorted(study.unscored):
            outcome = study.outcomes[number]
            scored = self.scores.score(study, study.ended(number))
            value = None if scored is None else scored.objective
            study.objectives[number] = math.inf if value is None else value
            study.search.score(number, value, outcome.status, outcome.metrics)
            if scored is not None:
                self._emit_once(scored)
        if study.unscored:
            self._wake(study)
        study.unscored.clear()
        if len(study.objectives) == study.search.trials:
            self._choose(study)

    def _score_seeds(self, study: StudyState) -> None:
        """Score further seeds, each guarded by the study's ``plan.reference`` on the same seed."""
        reference = self.studies.get(study.plan.reference or "")
        for position in sorted(study.unscored_seeds):
            if reference and reference.chosen and position not in reference.seeds:
                continue
            one = study.seeds[position]
            assert one is not None
            scored = self.scores.score(study, one, position)
            assert scored is not None
            study.seeds[position] = replace(one, objective=scored.objective)
            study.unscored_seeds.remove(position)
            self._emit_once(scored)

    def _choose(self, study: StudyState) -> None:
        chosen, study.margin = self.scores.choice(study, study.plan.trials)
        if chosen is not None:
            study.seeds[0] = chosen
        self._close(study, _reason(study.failures(), chosen is not None))

    def _close(self, study: StudyState, reason: str) -> None:
        if study.closed:
            return
        study.closed = True
        self._news(study)
        self._emit_once(study.closing(reason))
        if self._beaten is not None and study.chosen is not None:
            # The published default (the first trial) is measured in addition to the chosen trial.
            kept = {0, study.chosen.trial.number}
            beaten = [trial for number, trial in study.trials.items() if number not in kept]
            names = [trial.request.ref for trial in beaten]
            self._claims.subtract(names)
            self._beaten([name for name in names if not self._claims[name]])

    def give_up(self, study: str, reason: str) -> None:
        """Withdraw the choice of a study: it counts as failed until a resumed sweep retries it."""
        state = self.studies[study]
        state.seeds[0] = None
        self._emit(state.closing(reason))

    def _emit_once(self, event: StudyOpened | TrialScored | StudyClosed) -> None:
        if not self._past.holds(event):
            self._emit(event)


def _reason(failures: Sequence[TrialFinished], any_finished: bool) -> str:
    """Return the reason of the first failure, if any.

    If no trial finished and the machine caused all failures, it says that a resumed sweep retries.
    """
    if not failures:
        return ""
    if any_finished or not all(outcome.fault for outcome in failures):
        return failures[0].reason
    return f"the machine failed (resume the sweep to try again): {failures[0].reason}"


def _urgency(plan: StudyPlan) -> tuple[int, bool]:
    return -EVERY_STAGE.index(plan.stage), plan.recipe.name not in BASELINES


class SearchSource(Source):
    """Returns the trials of a sweep's studies as jobs."""

    def __init__(self, state: SweepState) -> None:
        self._state, self._spec = state, state.plan.spec
        self._out: dict[str, TrialSpec] = {}
        stages = [getattr(self._spec.resources, stage) for stage in STAGES]
        self.sizes = [(stage.cpu, stage.gpu) for stage in stages]

    def next(self) -> Job | Pause:
        trial = self._state.next_trial()
        if trial is None:
            return Pause.DONE if self._state.finished else Pause.WAIT
        self._out[trial.key] = trial
        return self._job(trial)

    def _job(self, trial: TrialSpec) -> Job:
        study, resources = self._state.studies[trial.study], self._spec.resources
        share = getattr(resources, trial.request.stage)
        stoppable = trial.role == SEARCH and self._spec.search.scheduler == "asha"
        score = study.rule.objective
        return Job(
            key=trial.key,
            group=trial.study,
            number=trial.number,
            work=StageWork(request=trial.request, score=score),
            cpus=share.cpu,
            gpus=share.gpu,
            processes=share.together if isinstance(share, TrainResources) else 1,
            deterministic=resources.deterministic,
            graph=resources.graph,
            epochs=epochs_of(study.plan) if stoppable else 0,
        )

    def ended(self, job: Job, report: Report) -> None:
        trial = self._out.pop(job.key)
        self._state.record(trial, ending(trial, report))


def epochs_of(study: StudyPlan) -> int:
    """Return the number of epochs of a study's trials; the default if the search varies it."""
    if study.stage == "train":
        return study.task.resolved_protocol.epochs
    return max(int(values.get("epochs", 1)) for values in study.defaults.values())


def ending(trial: TrialSpec, report: Report) -> TrialFinished:
    """Return the event of a trial's last report."""
    cost, facts = report.cost, dict[str, Any]()
    if cost.epoch_seconds and not cost.reused:
        facts = {"epoch_seconds": cost.epoch_seconds, "peak_memory": cost.peak_memory}
    metrics = report.metrics
    if report.status == Status.FINISHED:
        facts["artifact"] = report.artifact
    if report.status == Status.FAILED and report.fault is not None:
        by_machine = report.fault.kind == FaultKind.MACHINE
        metrics = {} if by_machine else metrics
        facts |= {
            "reason": report.fault.reason,
            "fault": FaultKind.MACHINE if by_machine and not is_final(report.fault.reason) else "",
            "host": report.host or None,
            "traceback": report.fault.traceback or None,
        }
    seconds = round(cost.seconds, 3)
    return trial.ending(report.status, metrics, reused=cost.reused, seconds=seconds, **facts)
